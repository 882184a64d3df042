"""Failures that nobody handled: those that a redrive tries again.

A workflow that handled a failure went on after it, so what it did then is in the journal. The last
failure, and what failed beside it, is not followed by anything.
"""

from collections.abc import Mapping, Sequence

from keyrun.runtime.records.journal_entry import Call, Ending, Entry, Memory
from keyrun.runtime.values import State


def unhandled(memories: Mapping[str, Memory], order: Sequence[str]) -> set[str]:
    """What is to be tried again, of the outcomes in their order."""
    graph = memories.get("graph()")
    if graph is not None:
        return _in_graph(memories, order, graph)
    return {ident for at, ident in enumerate(order) if _ends(memories, order, at)}


def _in_graph(memories: Mapping[str, Memory], order: Sequence[str], graph: Memory) -> set[str]:
    """A graph says itself which nodes failed; what follows elsewhere says nothing."""
    again = {"graph()"}
    for node in graph.payload:
        if node.endswith("/"):
            # It failed by the port that it left by: all its calls are made again.
            again.update(ident for ident in order if ident.startswith(node))
            continue
        inside = [ident for ident in order if ident.startswith(f"{node}/")]
        again.update(ident for at, ident in enumerate(inside) if _ends(memories, inside, at))
        if node in memories:
            again.add(node)
    return again


def _ends(memories: Mapping[str, Memory], order: Sequence[str], at: int) -> bool:
    """Whether the outcome at this place is a failure that nothing follows, except in branches
    beside it."""
    ident = order[at]
    memory = memories[ident]
    if memory.call is Call.GATHER:
        ident = f"{ident.removesuffix('()')}.{memory.payload}/"
    elif memory.call is Call.SCOPE:
        if memory.payload[0] == Ending.FINISHED or "fail_after()" not in ident:
            return False
    elif memory.call is Call.CHILD:
        if memory.payload[1][0] == State.SUCCEEDED:
            return False
    elif memory.outcome is Entry.DONE:
        return False
    later = order[at + 1 :]
    return all(memories[each].call is Call.GATHER or _beside(ident, each) for each in later)


def _beside(ident: str, other: str) -> bool:
    """Whether two calls are in different branches of the same `gather`."""
    for one, two in zip(ident.split("/")[:-1], other.split("/")[:-1], strict=False):
        if one != two:
            return one.partition(".")[0] == two.partition(".")[0]
    return False
