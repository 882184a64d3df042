"""The effort of a condition: how long it may take, estimated before CEL evaluates it.

CEL answers in one go, and meanwhile nothing else in the process runs. What comes in from outside
decides how long that takes:

- A loop over a list takes as long as the list, and a loop in a loop the square of that.
- `map` and `filter` copy the list that they have so far at every turn.
- Every mention of `output`, `input`, `outputs` or `error` copies the data, and `+` copies both
  sides.
- `matches` compiles its pattern each time.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import attrs

MOST = 3_000_000
"""Turns, of about a third of a microsecond each."""

_LOOP = re.compile(r"\.\s*(all|exists|exists_one|existsOne|map|filter)\s*\(")
_COPYING = ("map", "filter")
_COPY = 1 / 8
"""Turns for copying an item of a list that `map` or `filter` makes."""
_DATA = re.compile(r"\b(?:output|input|outputs|error)\b")
_MENTION = 1 / 3
"""Turns for copying an item of the data."""
_LETTERS = 300
"""Letters that take as long to copy as an item."""
_SEARCH = re.compile(r"\bin\b|[\w\])]\s*[=!]=\s*(?:output|input|outputs|error)\b")
_SEARCHED = 1 / 5
"""Turns for looking at an item in a search."""
_MATCHES = re.compile(r"\bmatches\s*\(\s*(?:[rR]?(?:'([^'\\\n]*)'|\"([^\"\\\n]*)\")\s*\))?")
_MATCH, _CLASS, _PATTERN, _LETTER = 150, 300, 300_000, 5
"""Turns for a simple pattern, for each class of letters in it, for a pattern that can be of any
kind, and for each letter of one that comes from the data."""


class Size(NamedTuple):
    """How large the data of a condition is: the items of its longest list, all its items, and the
    letters of its longest text. Texts count as items, too: 300 letters as one."""

    longest: int
    items: float
    letters: int


@attrs.frozen
class Effort:
    """The effort of an expression, or of the body of a loop."""

    mentions: int
    """How often it names data."""
    pluses: int
    searches: int
    patterns: tuple[int, ...]
    """Turns for each `matches`; 0 if its pattern can be of any kind."""
    loops: "tuple[Loop, ...]"

    @property
    def slight(self) -> bool:
        """Whether it takes about as long as to hand the data to CEL."""
        return not (self.loops or self.pluses or self.patterns or self.mentions > 4)

    def over(self, size: Size) -> float:
        """Return the turns for data of this size."""
        turns = self.mentions * size.items * _MENTION * (1 + self.pluses)
        for pattern in self.patterns:
            turns += pattern or _PATTERN + size.letters * _LETTER
        return turns + sum(loop.over(size) for loop in self.loops)


@attrs.frozen
class Loop:
    """A loop. `copies` if it makes a list."""

    body: Effort
    copies: bool

    def over(self, size: Size) -> float:
        """Return the turns of all rounds."""
        searched = self.body.searches * size.longest * _SEARCHED
        once = 1 + self.body.over(size) + searched + (size.longest * _COPY if self.copies else 0)
        # What the rounds look at is all in the data, or in what `+` makes of that.
        return size.longest * once + size.items * _MENTION * (1 + self.body.pluses)


def effort(source: str) -> Effort:
    """Return the effort of an expression whose texts were taken out, except those of patterns."""
    loops, rest, at = [], [], 0
    while (found := _LOOP.search(source, at)) is not None:
        end = _closing(source, found.end())
        loops.append(Loop(effort(source[found.end() : end]), found[1] in _COPYING))
        rest.append(source[at : found.start()])
        at = end
    rest.append(source[at:])
    outside = " ".join(rest)
    return Effort(
        mentions=len(_DATA.findall(outside)),
        pluses=outside.count("+"),
        searches=len(_SEARCH.findall(outside)),
        patterns=tuple(map(_turns, _MATCHES.finditer(outside))),
        loops=tuple(loops),
    )


def _turns(found: re.Match[str]) -> int:
    """Return the turns for compiling a pattern; 0 if it can be of any kind."""
    pattern = found[1] if found[1] is not None else found[2]
    if pattern is None or "{" in pattern or "\\" in pattern:
        return 0
    return _MATCH + _CLASS * (pattern.count(".") + pattern.count("["))


def _closing(source: str, at: int) -> int:
    depth = 1
    while at < len(source) and depth:
        depth += {"(": 1, ")": -1}.get(source[at], 0)
        at += 1
    return at


def size_of(source: str, values: Iterable[Any]) -> Size:
    """Return the size of the data. A list that an expression makes of it may be longer by as much
    as the expression has commas and pluses."""
    longest, items, letters, longest_text = source.count(",") + 1, 0, 0, 0
    left = list(values)
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            left.extend(value)
        else:
            if isinstance(value, str | bytes):
                letters += len(value)
                longest_text = max(longest_text, len(value))
            continue
        items += len(value)
        longest = max(longest, len(value))
    return Size(longest * (1 + source.count("+")), items + letters / _LETTERS, longest_text)
