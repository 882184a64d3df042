"""Unhandled failures: find the failed calls that a redrive makes again.

If a workflow handled a failure, the journal has the calls that it made afterwards. The last
failure, and the failures beside it, are not followed by any call.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice, takewhile

from keyrun.runtime.records.journal_entry import CallKind, CallRecord, Ending, EntryKind
from keyrun.runtime.run.expected import are_apart
from keyrun.runtime.values import State


def unhandled(memories: Mapping[str, CallRecord], order: Sequence[str]) -> set[str]:
    """Return the calls that a redrive makes again. `order` has the outcomes in their order."""
    graph = memories.get("graph()")
    if graph is not None:
        return _in_graph(memories, order, graph)
    return {ident for at, ident in enumerate(order) if _ends(memories, order, at)}


def _in_graph(
    memories: Mapping[str, CallRecord], order: Sequence[str], graph: CallRecord
) -> set[str]:
    """Return what a redrive of a graph retries. The outcome of the graph names the nodes that
    failed, so the order of the outcomes of other nodes does not matter."""
    again = {"graph()"}
    for node in graph.payload:
        if node.endswith("/"):
            # The node failed because of its port, so all its calls are made again.
            again.update(ident for ident in order if ident.startswith(node))
            continue
        inside = [ident for ident in order if ident.startswith(f"{node}/")]
        again.update(ident for at, ident in enumerate(inside) if _ends(memories, inside, at))
        if node in memories:
            again.add(node)
    return again


def _ends(memories: Mapping[str, CallRecord], order: Sequence[str], at: int) -> bool:
    """Return whether the outcome at this place is a failure that no call follows, except in
    branches beside it."""
    ident = order[at]
    memory = memories[ident]
    if memory.call is CallKind.GATHER:
        ident = f"{ident.removesuffix('()')}.{memory.payload}/"
    elif memory.call is CallKind.SCOPE:
        if memory.payload[0] == Ending.FINISHED or "fail_after()" not in ident:
            return False
    elif memory.call is CallKind.CHILD:
        if memory.payload[1][0] == State.SUCCEEDED:
            return False
    elif memory.outcome is EntryKind.DONE:
        return False
    return _is_last(memories, ident, order[at + 1 :])


def blocks_left_last(memories: Mapping[str, CallRecord], order: Sequence[str]) -> list[str]:
    """Return the expired blocks that the code left without a call behind them. An error may have
    made it leave them."""
    begun, graph = list(memories), "graph()" in memories
    found: list[str] = []
    for ident in order:
        memory = memories[ident]
        if memory.left is None or memory.payload[0] == Ending.FINISHED:
            continue
        # The nodes of a graph run side by side.
        node = f"{ident.partition('/')[0]}/" if graph else ""
        ended = islice(reversed(order), len(order) - memory.left.outcomes)
        later = chain(ended, takewhile(memory.left.last.__ne__, reversed(begun)))
        if _is_last(memories, ident, (each for each in later if each.startswith(node))):
            found.append(ident)
    return found


def _is_last(memories: Mapping[str, CallRecord], ident: str, later: Iterable[str]) -> bool:
    """Return whether no later call follows a call, except in branches beside it."""
    return all(memories[each].call is CallKind.GATHER or are_apart(ident, each) for each in later)
