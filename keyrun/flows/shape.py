"""Shapes: what a value in a flow may look like, to check one and to tell editors in JSON Schema.

One description serves both, so that what an editor accepts is what Keyrun accepts. Here are those
of single values; `keyrun.flows.record` has those of values with others in them.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Protocol

import attrs

from keyrun.flows.source import Place

Problem = tuple[Place, str]
Schema = dict[str, Any]


class Shape(Protocol):
    """What a value may look like."""

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """All that is wrong with `value`, which is at `place`."""

    def schema(self) -> Schema:
        """The same in JSON Schema."""


@attrs.frozen
class Anything:
    """Every value there is."""

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """Nothing."""
        return iter(())

    def schema(self) -> Schema:
        """Everything."""
        return {}


@attrs.frozen
class Text:
    """A text that is not empty, unless it may be."""

    empty: bool = False

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """What is no text."""
        if not isinstance(value, str):
            yield place, f"must be a text, got {said(value)}"
        elif not value and not self.empty:
            yield place, "must not be empty"

    def schema(self) -> Schema:
        """A string."""
        return {"type": "string"} if self.empty else {"type": "string", "minLength": 1}


@attrs.frozen
class Flag:
    """True or false."""

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """What is neither."""
        if not isinstance(value, bool):
            yield place, f"must be true or false, got {said(value)}"

    def schema(self) -> Schema:
        """A boolean."""
        return {"type": "boolean"}


@attrs.frozen(kw_only=True)
class Number:
    """A number: `least` and `most` are allowed, `above` is not any more."""

    whole: bool = False
    least: float | None = None
    above: float | None = None
    most: float | None = None

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """What is no such number."""
        kind = int if self.whole else int | float
        what = "a whole number" if self.whole else "a number"
        if isinstance(value, bool) or not isinstance(value, kind):
            yield place, f"must be {what}, got {said(value)}"
        elif self.least is not None and value < self.least:
            yield place, f"must be at least {self.least:g}, got {value}"
        elif self.above is not None and value <= self.above:
            yield place, f"must be more than {self.above:g}, got {value}"
        elif self.most is not None and value > self.most:
            yield place, f"must be at most {self.most:g}, got {value}"

    def schema(self) -> Schema:
        """A number or an integer."""
        limits = {
            "minimum": self.least,
            "exclusiveMinimum": self.above,
            "maximum": self.most,
        }
        kind = "integer" if self.whole else "number"
        return {"type": kind, **{name: at for name, at in limits.items() if at is not None}}


@attrs.frozen
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """Every other word."""
        if value not in self.words:
            got = f"{said(value)}{hint(value, self.words)}"
            yield place, f"must be one of {', '.join(self.words)}; got {got}"

    def schema(self) -> Schema:
        """An enumeration."""
        return {"enum": list(self.words)}


def said(value: Any) -> str:
    """A value as an error shows it."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value if len(value) <= 60 else value[:60] + "...")
        case dict():
            return "a mapping"
        case list():
            return "a list"
    return repr(value)


def hint(word: Any, known: tuple[str, ...]) -> str:
    """What was probably meant."""
    close = get_close_matches(word, known, 1) if isinstance(word, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""
