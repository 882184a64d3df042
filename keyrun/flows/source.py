"""The source of a flow: YAML or JSON as plain values, with the line that each of them is on.

The text is taken event by event, and nothing is ever built of it but mappings with names, lists,
texts, numbers, true, false and null, as YAML 1.2 has them: no tags, no dates, no objects, and `on`
is a word like any other. What is meant to hurt is refused with the line it is on: files that are
too large, nesting that is too deep, aliases that grow into more than there is room for.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from keyrun.flows import jsons
from keyrun.flows.extras import need

Place = tuple[str | int, ...]
"""Where a value is: names and numbers from the top, as in ("nodes", "fetch", "url")."""

LARGEST = 1024 * 1024
"""Bytes that a file may have."""
DEEPEST = 50
MOST = 100_000
"""Values that a file may have, those that aliases stand for included."""

_NULL = re.compile(r"|~|null|Null|NULL")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_STRANGE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DIGITS = 400
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|.)")


class Unreadable(Exception):
    """A text that cannot be read, and where it cannot be read any further."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


@attrs.frozen(kw_only=True)
class Source:
    """What a text says, and where."""

    value: Any
    lines: dict[Place, int]
    problems: list[tuple[int, str]]
    """What is wrong with the text, where it could be read on."""

    def line(self, place: Place) -> int:
        """The line of a value, or of the one that it belongs to."""
        while place not in self.lines and place:
            place = place[:-1]
        return self.lines.get(place, 1)


def read_file(path: Path) -> str:
    """The text of a file, if that may be a flow."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from error
    if len(data) > LARGEST:
        raise Unreadable(f"has more than {LARGEST:,} bytes, which is the most a flow may have")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable("is not UTF-8 here", line) from error


def read_json(text: str) -> Source:
    """JSON with the lines of its values. Raises `Unreadable`."""
    try:
        jsons.loads(text)
    except json.JSONDecodeError as error:
        said = f"is not JSON: {error.msg}, column {error.colno}"
        raise Unreadable(said, error.lineno) from error
    except ValueError as error:
        raise Unreadable(f"is not JSON: {error}") from error
    # What is JSON is YAML, once its tabs, which it has only between values, are out of the way,
    # and letters that it writes as two halves are whole.
    return read_yaml(_ESCAPE.sub(_whole, text.replace("\t", " ")))


def read_yaml(text: str) -> Source:
    """YAML with the lines of its values. Raises `Unreadable`."""
    yaml = need("yaml", for_="a flow in a file")
    if len(text.encode(errors="replace")) > LARGEST:
        raise Unreadable(f"has more than {LARGEST:,} bytes, which is the most a flow may have")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Reader(yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = " ".join(part for part in (error.context, error.problem) if part)
        raise Unreadable(f"is not YAML: {said}", mark and mark.line + 1) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        said = f"a character that YAML does not allow: U+{error.character:04X}"
        raise Unreadable(said, line) from error


class _Reader:
    """Makes values of events."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._lines: dict[Place, int] = {}
        self._anchors: dict[str, tuple[Any, int] | None] = {}
        self._values = 0
        self._problems: list[tuple[int, str]] = []

    def document(self) -> Source:
        value: Any = None
        documents = 0
        for event in self._events:
            match type(event).__name__:
                case "DocumentStartEvent":
                    documents += 1
                    if documents > 1:
                        raise Unreadable("has a second document; a flow is one", _line(event))
                    value = self._value(next(self._events), ())
        if not documents:
            raise Unreadable("is empty")
        return Source(value=value, lines=self._lines, problems=self._problems)

    def _value(self, event: Any, place: Place) -> Any:
        line = _line(event)
        self._lines.setdefault(place, line)
        self._count(1, line)
        if len(place) > DEEPEST:
            raise Unreadable(f"is nested more than {DEEPEST} deep", line)
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._alias(event.anchor, line)
        self._check_tag(event)
        before = self._values
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if kind == "MappingStartEvent":
            value: Any = self._mapping(place)
        elif kind == "SequenceStartEvent":
            value = self._sequence(place)
        else:
            # A plain scalar has no style; the C parser says so with an empty text.
            value = _text(event.value, line) if event.style else _scalar(event.value, line)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._values - before + 1)
        return value

    def _mapping(self, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while type(event := next(self._events)).__name__ != "MappingEndEvent":
            line = _line(event)
            if type(event).__name__ != "ScalarEvent":
                raise Unreadable("has a name that is no text", line)
            self._check_tag(event)
            name = _text(event.value, line)
            if name in found:
                first = self._lines[(*place, name)]
                self._problems.append((line, f"{name!r} is there twice, first in line {first}"))
            self._lines[(*place, name)] = line
            found[name] = self._value(next(self._events), (*place, name))
        return found

    def _sequence(self, place: Place) -> list[Any]:
        found: list[Any] = []
        while type(event := next(self._events)).__name__ != "SequenceEndEvent":
            found.append(self._value(event, (*place, len(found))))
        return found

    def _alias(self, anchor: str, line: int) -> Any:
        if anchor not in self._anchors:
            raise Unreadable(f"has the alias *{anchor}, and nothing has that name", line)
        known = self._anchors[anchor]
        if known is None:
            raise Unreadable(f"has the alias *{anchor} inside of what it stands for", line)
        value, size = known
        self._count(size, line)
        return value

    def _check_tag(self, event: Any) -> None:
        # "!" is what is said of a quoted text.
        if event.tag not in (None, "!"):
            said = f"the tag {event.tag[:60]!r} means nothing here: a flow has no tags"
            self._problems.append((_line(event), said))

    def _count(self, more: int, line: int) -> None:
        self._values += more
        if self._values > MOST:
            raise Unreadable(f"has more than {MOST:,} values, aliases included", line)


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1


def _text(value: str, line: int) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unreadable("has half of a letter, which is no text", line) from None
    return value


def _whole(found: re.Match[str]) -> str:
    return str(json.loads(f'"{found[0]}"')) if len(found[0]) == 12 else found[0]


def _scalar(text: str, line: int) -> Any:
    """What a plain scalar is, by the core schema of YAML 1.2."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text[0] in "tT"
    if len(text) > _DIGITS and _FLOAT.fullmatch(text):
        raise Unreadable("has a number of more digits than any number needs", line)
    if _INT.fullmatch(text):
        return int(text)
    if _BASE.fullmatch(text):
        return int(text, 0)
    if _STRANGE.fullmatch(text):
        raise Unreadable(f"has {text}, which is no number", line)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise Unreadable(f"has {text}, which is too large for a number", line)
        return number
    return _text(text, line)
