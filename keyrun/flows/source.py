"""The source of a flow: read YAML or JSON as plain values, with the line of each value.

The reader takes the text event by event. It builds only mappings with names, lists, text, numbers,
true, false and null, as in YAML 1.2: no tags, no dates, no objects, and `on` is a plain word. It
rejects hostile files, with the line: files that are too large, values that are nested too deep,
and aliases that expand to too many values.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from keyrun.extras import need
from keyrun.flows import jsons

Place = tuple[str | int, ...]
"""The place of a value: names and indices from the top, as in ("nodes", "fetch", "url")."""

LARGEST = 1024 * 1024
"""Bytes of a file."""
DEEPEST = 50
"""Levels of nesting."""
MOST = 100_000
"""Values of a file, including those that aliases stand for."""

_NULL = re.compile(r"|~|null|Null|NULL")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_STRANGE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DIGITS = 400
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|.)")


class Unreadable(Exception):
    """A text cannot be read. `line` is the line where reading stopped."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


@attrs.frozen(kw_only=True)
class Source:
    """The value of a text, and the lines of all values in it."""

    value: Any
    lines: dict[Place, int]
    blocks: dict[Place, int]
    """The first lines of texts that are written as literal blocks (`|`)."""
    problems: list[tuple[int, str]]
    """Errors after which reading could continue, with their lines."""

    def line(self, place: Place, below: int = 0) -> int:
        """Return the line of a value, or of the value around it. For a literal block, return the
        line that is `below` lines below its first line."""
        if place in self.blocks:
            return self.blocks[place] + below
        while place not in self.lines and place:
            place = place[:-1]
        return self.lines.get(place, 1)


def read_file(path: Path) -> str:
    """Return the text of a file. Raise `Unreadable` if it cannot be a flow."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from error
    if len(data) > LARGEST:
        raise Unreadable(f"has more than {LARGEST:,} bytes, the limit of a flow")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable("is not UTF-8; save the file as UTF-8", line) from error


def read_json(text: str) -> Source:
    """Read JSON. Raise `Unreadable` if the text is not JSON."""
    try:
        jsons.loads(text)
    except json.JSONDecodeError as error:
        said = f"is not JSON: {error.msg}, column {error.colno}"
        raise Unreadable(said, error.lineno) from error
    except ValueError as error:
        raise Unreadable(f"is not JSON: {error}") from error
    # JSON is YAML if its tabs, which are only between values, become spaces, and characters that it
    # writes as two surrogates become one.
    return read_yaml(_ESCAPE.sub(_whole, text.replace("\t", " ")))


def read_yaml(text: str) -> Source:
    """Read YAML. Raise `Unreadable` if the text is not YAML."""
    yaml = need("yaml", for_="a flow in a file")
    if len(text.encode(errors="replace")) > LARGEST:
        raise Unreadable(f"has more than {LARGEST:,} bytes, the limit of a flow")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Reader(yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = _yaml_error(error.context or "", error.problem or "")
        raise Unreadable(f"is not YAML: {reason}", mark and mark.line + 1) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        said = f"a character that YAML does not allow: U+{error.character:04X}"
        raise Unreadable(said, line) from error


def _yaml_error(context: str, problem: str) -> str:
    """Return an error of the YAML parser, with the remedy if it is a frequent one."""
    said = " ".join(part for part in (context, problem) if part)
    if "tab character" in said or "cannot start any token" in said:
        return f"{said}; indent with spaces, not with tabs, and quote text that begins with a sign"
    if "mapping values are not allowed" in said:
        return f"{said}; quote text that contains a colon and a space"
    if "flow mapping" in context or "flow sequence" in context:
        return f"{said}; close the bracket, and quote text with braces, such as a template"
    return said


class _Reader:
    """Builds values from events."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._lines: dict[Place, int] = {}
        self._blocks: dict[Place, int] = {}
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
                        raise Unreadable(
                            "has a second document; keep one flow in a file", _line(event)
                        )
                    value = self._value(next(self._events), ())
        if not documents:
            raise Unreadable("is empty; a flow requires 'name' and 'nodes'")
        return Source(value=value, lines=self._lines, blocks=self._blocks, problems=self._problems)

    def _value(self, event: Any, place: Place) -> Any:
        line = _line(event)
        self._lines.setdefault(place, line)
        self._count(1, line)
        if len(place) > DEEPEST:
            raise Unreadable(f"is nested more than {DEEPEST} levels deep", line)
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
            if event.style == "|":
                self._blocks[place] = line + 1
            # A plain scalar has no style. The C parser gives an empty text for it.
            value = _text(event.value, line) if event.style else _scalar(event.value, line)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._values - before + 1)
        return value

    def _mapping(self, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while type(event := next(self._events)).__name__ != "MappingEndEvent":
            line = _line(event)
            if type(event).__name__ != "ScalarEvent":
                raise Unreadable(
                    "has a name that is not text; put quotes around a template, as in "
                    '"{{ input.name }}"',
                    line,
                )
            self._check_tag(event)
            name = _text(event.value, line)
            if name in found:
                first = self._lines[(*place, name)]
                self._problems.append(
                    (line, f"the name {name!r} is used twice, first in line {first}")
                )
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
            raise Unreadable(
                f"has the alias *{anchor}, but no value has the anchor &{anchor}", line
            )
        known = self._anchors[anchor]
        if known is None:
            raise Unreadable(
                f"has the alias *{anchor} inside of the value that it stands for", line
            )
        value, size = known
        self._count(size, line)
        return value

    def _check_tag(self, event: Any) -> None:
        # "!" is the tag of quoted text.
        if event.tag not in (None, "!"):
            reason = f"the tag {event.tag[:60]!r} is not allowed; a flow has no tags"
            self._problems.append((_line(event), reason))

    def _count(self, more: int, line: int) -> None:
        self._values += more
        if self._values > MOST:
            raise Unreadable(f"has more than {MOST:,} values, including aliases", line)


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1


def _text(value: str, line: int) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unreadable("has a lone surrogate, which is not text", line) from None
    return value


def _whole(found: re.Match[str]) -> str:
    return str(json.loads(f'"{found[0]}"')) if len(found[0]) == 12 else found[0]


def _scalar(text: str, line: int) -> Any:
    """Return the value of a plain scalar, by the core schema of YAML 1.2."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text[0] in "tT"
    if len(text) > _DIGITS and _FLOAT.fullmatch(text):
        raise Unreadable(f"has a number with more than {_DIGITS} digits", line)
    if _INT.fullmatch(text):
        return int(text)
    if _BASE.fullmatch(text):
        return int(text, 0)
    if _STRANGE.fullmatch(text):
        raise Unreadable(f"has {text}, which is not a finite number", line)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise Unreadable(f"has {text}, a number that is too large", line)
        return number
    return _text(text, line)
