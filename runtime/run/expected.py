"""Expected calls: those that the journal has, and that the code has not asked for in this pass.

The calls of one scope (the workflow, a branch of `gather`, a child that is a part of its parent)
are sequential. So the code must ask for the oldest call of its scope that it has not asked for,
whether that call has its outcome or has only begun. A call that the journal does not have starts
when nothing is expected in any scope: before that, the code may still turn out to contradict the
journal.

The end of a block with a time limit is expected like a call, so that a call in the block is not
taken for one behind it.

A call that lost a race is optional. It was cut off: a branch beside it failed, a time limit passed,
or a Trio scope of the workflow's own was cancelled. If the code has left a block since, the call is
never asked for outside of the block. The nodes of a graph run side by side, so their order says
nothing.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Literal

from keyrun.runtime.records.journal_entry import CallKind, CallRecord, Ending, Left

END = " (its end)"
"""What the label of the end of a block, or of a `gather` that failed, ends with."""
INSIDE = "/"
"""What the label of a `gather`, or of a child that is a part of its parent, ends with."""

_BRANCH = re.compile(r"(g\d+)\.(\d+)")
_CHILD = re.compile(r"child(\d*)")
_TURN = re.compile(r"turn-\d+")
_NOWHERE = Left(0, "", 0)

Kind = Literal["function", "machine", "graph"]
"""What the code of a workflow is."""


class Awaited:
    """An expected call that may be optional. Most are not, and are kept as their labels."""

    __slots__ = ("label", "required")

    def __init__(self, label: str, required: bool) -> None:
        self.label = label
        self.required = required


class Expected:
    """What is left to be asked for, by scope. `left` counts what is not optional."""

    __slots__ = ("_inside", "_nodes", "_scopes", "_widths", "left")

    def __init__(self, *, graph: bool) -> None:
        self._scopes: dict[str, deque[str | Awaited]] = {}
        self._nodes: dict[str, Awaited] | None = {} if graph else None
        """The nodes of a graph, instead of the calls of the outermost scope."""
        self._inside: dict[str, Awaited] = {}
        """What has scopes inside: a `gather`, or a child."""
        self._widths: dict[str, int] = {}
        """How many branches of each `gather` have calls."""
        self.left = 0

    def add(self, ident: str, label: str, *, required: bool) -> None:
        """Expect one more call, in the scope of `ident`."""
        prefix = ""
        if "/" in ident:
            for part in ident.split("/")[:-1]:
                self._add_inside(prefix, part, required=required)
                prefix += f"{part}/"
        self.left += required
        if self._nodes is not None and not prefix:
            self._nodes[label] = Awaited(label, required)
        else:
            call = label if required else Awaited(label, required)
            self._scopes.setdefault(prefix, deque()).append(call)

    def _add_inside(self, prefix: str, part: str, *, required: bool) -> None:
        """Expect what has a scope inside, where its first call is."""
        name = prefix + part
        if branch := _BRANCH.fullmatch(part):
            name = prefix + branch[1]
            self._widths[name] = max(self._widths.get(name, 0), int(branch[2]) + 1)
        known = self._inside.get(name)
        if known is None:
            self.left += required
            if self._nodes is not None and not prefix:
                self._inside[name] = self._nodes.setdefault(part, Awaited(part, required))
            else:
                known = self._inside[name] = Awaited(label_inside(part), required)
                self._scopes.setdefault(prefix, deque()).append(known)
        elif required and not known.required:
            known.required = True
            self.left += 1

    def ask(self, prefix: str, label: str) -> str | None:
        """The code asks for a call: "" if that is expected, None if the journal does not have it,
        or else what is expected in its place."""
        if self._nodes is not None and not prefix:
            node = self._nodes.pop(label, None)
            self.left -= node is not None and node.required
            return None if node is None else ""
        calls = self._scopes.get(prefix)
        if not calls:
            return None
        if calls[0] == label:
            calls.popleft()
            self.left -= 1
            return ""
        for at, call in enumerate(calls):
            if _label(call) == label:
                for _ in range(at + 1):
                    self.left -= _is_required(calls.popleft())
                return ""
            if _is_required(call):
                return prefix + _label(call)
        return None

    def has(self, prefix: str, label: str) -> bool:
        """Whether a call is expected in a scope, if not next."""
        if self._nodes is not None and not prefix:
            return label in self._nodes
        return any(_label(call) == label for call in self._scopes.get(prefix, ()))

    @property
    def nodes(self) -> list[str]:
        """The nodes of a graph that are expected."""
        return list(self._nodes or ())

    def next_around(self, prefix: str) -> str | None:
        """The oldest call that must be asked for in a scope, or in one that it is inside of."""
        while True:
            found = self._first(prefix)
            if found is not None or not prefix:
                return found
            prefix = prefix[: prefix.rfind("/", 0, -1) + 1]

    def next(self, prefix: str = "") -> str | None:
        """A call that must be asked for, in the scopes that begin with `prefix`."""
        if self._nodes is not None and not prefix and (found := self._first("")):
            return found
        scopes = [each for each in self._scopes if each.startswith(prefix)]
        return next((found for each in scopes if (found := self._first(each))), None)

    def _first(self, prefix: str) -> str | None:
        calls: Iterable[str | Awaited] = self._scopes.get(prefix, ())
        if self._nodes is not None and not prefix:
            calls = self._nodes.values()
        return next((prefix + _label(call) for call in calls if _is_required(call)), None)

    def beyond(self, gather: str, parts: int) -> str | None:
        """A call in a branch of a `gather` that has only `parts` branches today."""
        for index in range(parts, self._widths.get(gather, 0)):
            if (found := self.next(f"{gather}.{index}/")) is not None:
                return found
        return None

    def drop(self, prefix: str) -> None:
        """Expect nothing more in the scopes that begin with `prefix`."""
        for scope in [each for each in self._scopes if each.startswith(prefix)]:
            self.left -= sum(map(_is_required, self._scopes.pop(scope)))
        if self._nodes and not prefix:
            self.left -= sum(call.required for call in self._nodes.values())
            self._nodes.clear()


def _label(call: str | Awaited) -> str:
    return call if isinstance(call, str) else call.label


def _is_required(call: str | Awaited) -> bool:
    return isinstance(call, str) or call.required


def label_inside(part: str) -> str:
    """The label of what has a scope of this name inside."""
    if branch := _BRANCH.fullmatch(part):
        return f"{branch[1]}(){INSIDE}"
    if child := _CHILD.fullmatch(part):
        return f"child(){'#' if child[1] else ''}{child[1]}{INSIDE}"
    return part + INSIDE


def expected_of(
    memories: Mapping[str, CallRecord], order: Iterable[str], kind: Kind, *, turning: bool
) -> Expected | None:
    """What a pass is expected to ask for, given the memories in the order in which they began and
    the outcomes in theirs. None if that is nothing. `turning` says that a machine left them."""
    graph, machine = kind == "graph", kind == "machine"
    expected = Expected(graph=graph)
    if turning and not machine:
        expected.add("turn", "turn", required=True)
    losers: list[tuple[str, str]] = []
    """Branches that a failed one cut off, and which that was."""
    ends: dict[str | None, list[str]] = {}
    """The blocks that were left, or only expired, when a call was the last to have begun."""
    for ident in order:
        memory = memories[ident]
        if memory.call is CallKind.GATHER:
            scope = ident.removesuffix("()")
            losers.append((f"{scope}.", f"{scope}.{memory.payload}/"))
        elif memory.call is CallKind.SCOPE:
            last = memory.last if memory.left is None else memory.left.last
            ends.setdefault(last, []).append(ident)
    for blocks in ends.values():
        if len(blocks) > 1:
            blocks.sort(key=lambda block: memories[block].left or _NOWHERE)
    inside: dict[str, str] = {}
    """Blocks that are left after this, inner ones last: the prefix of what is in them."""
    expired: dict[str, str] = {}
    """Blocks that expire after this."""
    plain = not (losers or ends or graph or machine)
    for ident, memory in memories.items():
        if plain and memory.outcome is not None and "/" not in ident:
            # What most entries of most journals are.
            expected.add(ident, ident, required=True)
            continue
        if ident == "graph()" or ident.startswith("undo()/"):
            continue
        if machine and _TURN.fullmatch(ident):
            continue  # a machine takes the turn that is next
        cut = memory.outcome is None and (
            memory.lost
            or any(map(ident.startswith, expired.values()))
            or any(ident.startswith(all_) and not ident.startswith(one) for all_, one in losers)
        )
        if cut:
            around = (each for each in reversed(inside) if ident.startswith(inside[each]))
            memory.block = next(around, None)
        label = ident.rpartition("/")[2]
        expected.add(
            ident, label + END if memory.call is CallKind.GATHER else label, required=not cut
        )
        if memory.call is CallKind.SCOPE and memory.outcome:
            prefix = ident[: len(ident) - len(label)]
            if memory.left is not None:
                inside[ident] = prefix
            if memory.payload[0] != Ending.FINISHED:
                expired[ident] = prefix
        for ended in ends.get(ident, ()):
            expired.pop(ended, None)
            if inside.pop(ended, None) is not None:
                expected.add(ended, ended.rpartition("/")[2] + END, required=True)
    return expected if expected.left else None
