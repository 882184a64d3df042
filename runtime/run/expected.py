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
"""The suffix of the label for the end of a block, or of a `gather` that failed."""
REMEDY = (
    "restore the call, put the change behind ctx.patched(...), or register the changed code as a "
    "new version"
)
"""The remedy in messages about code that contradicts a journal."""
INSIDE = "/"
"""The suffix of the label of a `gather`, or of a child that is a part of its parent."""

_BRANCH = re.compile(r"(g\d+)\.(\d+)")
_CHILD = re.compile(r"child(\d*)")
_TURN = re.compile(r"turn-\d+")
_NOWHERE = Left(0, "", 0)
_GATHER, _SCOPE = CallKind.GATHER, CallKind.SCOPE

Kind = Literal["function", "machine", "graph"]
"""The kind of a workflow."""


class Awaited:
    """An expected call that may be optional. A call that is not optional is kept as its label."""

    __slots__ = ("label", "required")

    def __init__(self, label: str, required: bool) -> None:
        self.label = label
        self.required = required


class Expected:
    """The calls that the code has not asked for, by scope. `left` counts those that are not
    optional."""

    __slots__ = ("_inside", "_nodes", "_scopes", "_widths", "left")

    def __init__(self, *, graph: bool) -> None:
        self._scopes: dict[str, deque[str | Awaited]] = {}
        self._nodes: dict[str, Awaited] | None = {} if graph else None
        """The nodes of a graph, instead of the calls of the outermost scope."""
        self._inside: dict[str, Awaited] = {}
        """The calls that have scopes inside: a `gather`, or a child."""
        self._widths: dict[str, int] = {}
        """The number of branches of each `gather` that have calls."""
        self.left = 0

    def add_plain(self, idents: Iterable[str]) -> None:
        """Expect calls of the outermost scope of a function."""
        calls = self._scopes[""] = deque(idents)
        self.left += len(calls)

    def add(self, ident: str, label: str, *, required: bool) -> None:
        """Expect one more call, in the scope of `ident`."""
        prefix = ""
        if "/" in ident:
            for part in ident.split("/")[:-1]:
                self._add_inside(prefix, part, required=required)
                prefix += f"{part}/"
        if self._nodes is not None and not prefix:
            # The calls of workflow code in a node, and notes about the node, are one expectation.
            known = self._nodes.setdefault(label, Awaited(label, False))
            self.left += required and not known.required
            known.required = known.required or required
        else:
            self.left += required
            call = label if required else Awaited(label, required)
            self._scopes.setdefault(prefix, deque()).append(call)

    def _add_inside(self, prefix: str, part: str, *, required: bool) -> None:
        """Expect a call that has a scope inside, in the place of the first call in that scope."""
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
        """Record that the code asks for a call. Return "" if the call is expected, None if the
        journal does not have it, and otherwise the call that is expected in its place."""
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
        """Return whether a call is expected in a scope, now or later."""
        if self._nodes is not None and not prefix:
            return label in self._nodes
        return any(_label(call) == label for call in self._scopes.get(prefix, ()))

    @property
    def nodes(self) -> list[str]:
        """Return the nodes of a graph that are expected."""
        return list(self._nodes or ())

    def next_around(self, prefix: str) -> str | None:
        """Return the oldest call that is not optional in a scope, or in a scope around it.

        The nodes of a graph are not around each other: code in one may be ahead of the others."""
        while prefix or self._nodes is None:
            found = self._first(prefix)
            if found is not None or not prefix:
                return found
            prefix = prefix[: prefix.rfind("/", 0, -1) + 1]
        return None

    def next(self, prefix: str = "") -> str | None:
        """Return a call that is not optional, in the scopes that begin with `prefix`."""
        if self._nodes is not None and not prefix and (found := self._first("")):
            return found
        scopes = [each for each in self._scopes if each.startswith(prefix)]
        return next((found for each in scopes if (found := self._first(each))), None)

    def all_next(self) -> list[str]:
        """Return the oldest call of each scope that is not optional."""
        firsts = [self._first("")] if self._nodes is not None else []
        firsts += [self._first(scope) for scope in self._scopes]
        return [found for found in firsts if found is not None]

    def _first(self, prefix: str) -> str | None:
        calls: Iterable[str | Awaited] = self._scopes.get(prefix, ())
        if self._nodes is not None and not prefix:
            calls = self._nodes.values()
        return next((prefix + _label(call) for call in calls if _is_required(call)), None)

    def beyond(self, gather: str, parts: int) -> str | None:
        """Return a call in a branch that a `gather` does not have any more, because it has only
        `parts` branches now."""
        for index in range(parts, self._widths.get(gather, 0)):
            if (found := self.next(f"{gather}.{index}/")) is not None:
                return found
        return None

    def drop(self, prefix: str) -> None:
        """Expect nothing more in the scopes that begin with `prefix`."""
        for scope in [each for each in self._scopes if each.startswith(prefix)]:
            self.left -= sum(map(_is_required, self._scopes.pop(scope)))
        for label in [each for each in self._nodes or () if each.startswith(prefix)]:
            assert self._nodes is not None
            self.left -= self._nodes.pop(label).required


def are_apart(ident: str, other: str) -> bool:
    """Return whether two calls are in different branches of one `gather`."""
    for one, two in zip(ident.split("/")[:-1], other.split("/")[:-1], strict=False):
        if one != two:
            mine, theirs = _BRANCH.fullmatch(one), _BRANCH.fullmatch(two)
            return mine is not None and theirs is not None and mine[1] == theirs[1]
    return False


def _label(call: str | Awaited) -> str:
    return call if isinstance(call, str) else call.label


def _is_required(call: str | Awaited) -> bool:
    return isinstance(call, str) or call.required


def label_inside(part: str) -> str:
    """Return the label of a call that has a scope of this name inside."""
    if branch := _BRANCH.fullmatch(part):
        return f"{branch[1]}(){INSIDE}"
    if child := _CHILD.fullmatch(part):
        return f"child(){'#' if child[1] else ''}{child[1]}{INSIDE}"
    return part + INSIDE


def _is_plain(ident: str, memory: CallRecord) -> bool:
    """Return whether a call is in the outermost scope, is not a block, and lost no race."""
    call = memory.call
    return "/" not in ident and call is not _GATHER and call is not _SCOPE and not memory.lost


def expected_of(
    memories: Mapping[str, CallRecord], order: Iterable[str], kind: Kind, *, turning: bool
) -> Expected | None:
    """Return the calls that a pass has to ask for, or None if there are none. `memories` are in the
    order in which the calls began, and `order` has the outcomes in their order. `turning` says that
    the journal is that of a machine."""
    graph, machine = kind == "graph", kind == "machine"
    expected = Expected(graph=graph)
    if kind == "function" and not turning and all(map(_is_plain, memories, memories.values())):
        # Most journals have only such calls.
        expected.add_plain(memories)
        return expected if memories else None
    if turning and not machine:
        expected.add("turn", "turn", required=True)
    losers: list[tuple[str, str]] = []
    """The prefix of the branches that a failed branch cut off, and the prefix of that branch."""
    ends: dict[str | None, list[str]] = {}
    """The blocks that were left, or expired, by the call that had begun last."""
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
    """The blocks that are left later, inner ones last, with the prefix of the calls in them."""
    expired: dict[str, str] = {}
    """The blocks that expire later."""
    for ident, memory in memories.items():
        if ident == "graph()" or ident.startswith("undo()/"):
            continue
        if machine and _TURN.fullmatch(ident):
            continue  # a machine resumes with its next turn
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
