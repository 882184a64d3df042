"""The effort of a condition: how long its loops may take, told before it is asked.

CEL answers in one go, and meanwhile nothing else in the process moves. A loop over a list takes as
long as the list is, a loop in a loop the square of that, so what comes in from outside could stop
everything. `map` and `filter` copy what they have so far at every turn, which is a loop of its own.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

MOST = 3_000_000
"""Turns, of about a third of a microsecond each."""

_LOOP = re.compile(r"\.\s*(all|exists|exists_one|existsOne|map|filter)\s*\(")
_COPYING = ("map", "filter")
_COPY = 1 / 8
"""What it takes to copy an item, in turns."""
_DATA = re.compile(r"\b(?:output|input|outputs|error)\b")
_SEARCH = re.compile(r"\bin\b|[\w\])]\s*[=!]=\s*(?:output|input|outputs|error)\b")
_SEARCHED = 1 / 5
"""What it takes to look at an item in a search, in turns."""


@attrs.frozen(order=True)
class Effort:
    """A loop over n items takes `weight` times n to the power of `power` turns."""

    power: int
    weight: float = 1.0

    def over(self, items: int) -> float:
        """How many turns that are, for so many items."""
        return self.weight * float(items) ** self.power


def effort(source: str) -> Effort:
    """That of the loops in an expression whose texts were taken out."""
    most, at = Effort(0), 0
    while (found := _LOOP.search(source, at)) is not None:
        at = _closing(source, found.end())
        body = source[found.end() : at]
        inner = effort(body)
        copies = found[1] in _COPYING
        if found[1] == "map" and _DATA.search(body):
            inner = max(inner, Effort(1))
        elif _SEARCH.search(body):
            inner = max(inner, Effort(1, _SEARCHED))
        loop = Effort(inner.power + 1 + copies, inner.weight * (_COPY if copies else 1))
        most = max(most, loop)
    return most


def _closing(source: str, at: int) -> int:
    depth = 1
    while at < len(source) and depth:
        depth += {"(": 1, ")": -1}.get(source[at], 0)
        at += 1
    return at


def items(source: str, values: Iterable[Any]) -> int:
    """How many items the longest list may have that an expression makes of these values."""
    longest = source.count(",") + 1
    left = list(values)
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            left.extend(value)
        else:
            continue
        longest = max(longest, len(value))
    return longest * (1 + source.count("+"))
