"""Conditions: expressions in CEL that say whether an edge is taken.

They are compiled once, when the graph is registered. What they are about is handed to them as data
and is never part of the expression, so no payload can change what a condition means.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

import attrs

from keyrun.actors.errors import shown
from keyrun.runtime.errors import ConditionError, MissingExtra
from keyrun.runtime.graphs.effort import MOST, effort, size_of
from keyrun.runtime.graphs.shortcut import shortcut
from keyrun.runtime.values import Failure

NAMES = ("output", "input", "outputs", "error")
"""What a condition can be about."""

LONGEST = 1000
"""Letters of an expression."""
DEEPEST = 24
"""Brackets in brackets. CEL's parser takes about 6 kB of stack for each, and ends the process where
the stack ends, which in threads can be at half a megabyte."""

_PLACE = re.compile(r"<input>:(\d+):(\d+): (?:Syntax error: )?([^\n]*)")
_EXPECTING = re.compile(r" expecting \{.*\}")
_TEXTS = re.compile(
    r"""(?P<comment>//[^\n]*)"""
    r"""|(?<!\w)[bB]?[rR](?:'''.*?'''|\"{3}.*?\"{3}|'[^'\n]*'|"[^"\n]*")"""
    r"""|'''(?:\\.|[^\\])*?'''|\"{3}(?:\\.|[^\\])*?\"{3}"""
    r"""|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`[^`\n]*`""",
    re.DOTALL,
)
"""Comments and texts of CEL, raw texts included."""
_MATCHES = re.compile(r"\bmatches\s*\(\s*$")
_ODD_TEXTS = ("\\", "'''", '"""', "//", "`")
_OUTPUT = re.compile(r"(?<![\w.])output\b(?:\s*\.\s*([A-Za-z_]\w*)\s*(\(?))?")
_BINDS = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne|map|filter)\s*\(\s*(\w+)\s*,")


@attrs.frozen
class Fault:
    """Why an expression cannot be compiled, and where that is."""

    reason: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        if self.line is None:
            return self.reason
        return f"line {self.line}, column {self.column}: {self.reason}"


class Unreadable(ValueError):
    """An expression that cannot be compiled."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults


class Condition:
    """One expression, compiled. `names` are what it is about."""

    __slots__ = ("_effort", "execute", "fields", "names", "shortcut", "source")

    def __init__(self, source: str, execute: Callable[[Any], Any], names: set[str]) -> None:
        self.source = source
        self.execute = execute
        """What it comes to in a context."""
        self.names = frozenset(names.intersection(NAMES))
        self.fields = _fields_of_output(source)
        """What it looks at in the output; None if that is the whole of it."""
        self.shortcut = shortcut(source)
        """Answers it in Python, if it is of the usual kind."""
        self._effort = effort(_without_texts(source, patterns=True))

    @classmethod
    def compile(cls, source: str) -> "Condition":
        """Raises `Unreadable` with every fault that was found."""
        try:
            cel = import_module("cel")
        except ImportError:
            raise MissingExtra(
                "conditions need the package common-expression-language: "
                'pip install "keyrun[flows]"'
            ) from None
        if len(source) > LONGEST:
            raise Unreadable([Fault(f"it has {len(source):,} letters, and may have {LONGEST:,}")])
        # Where CEL and this module may disagree about what is text, all brackets count.
        odd = any(mark in source for mark in _ODD_TEXTS)
        deep = _depth(source if odd else _without_texts(source))
        if deep > DEEPEST:
            said = f"its brackets are nested {deep} deep, and may be nested {DEEPEST} deep"
            raise Unreadable([Fault(said)])
        try:
            program = cel.compile(source)
        except ValueError as error:
            # A lone surrogate, which CEL cannot encode, is a ValueError, too.
            raise Unreadable(_faults(str(error))) from None
        names = set(program.variables())
        strange = names.difference(NAMES, _BINDS.findall(_without_texts(source)))
        if strange:
            raise Unreadable([_unknown(source, name) for name in sorted(strange)])
        return cls(source, program.execute, names)

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether it is true where its names have these values."""
        if self.shortcut is not None:
            with suppress(Exception):
                return self.shortcut(values["output"], values["input"], values["outputs"])
        self.weigh(values)
        return self.judge(context(self.names, values), values)

    def weigh(self, values: Mapping[str, Any]) -> None:
        """Raise if its loops would take too long with these values."""
        if self._effort.slight:
            return
        about = {**values, "output": narrowed(values["output"], self.fields)}
        size = size_of(self.source, [about[name] for name in self.names])
        turns = self._effort.over(size)
        if turns > MOST:
            raise ConditionError(
                f"{self.source!r} would take up to {turns:,.0f} turns for lists of "
                f"{size.longest:,} items, with {size.items:,.0f} items in all, and may take "
                f"{MOST:,}; work it out in a node, which may take its time"
            )

    def judge(self, made: Any, values: Mapping[str, Any]) -> bool:
        """Whether it is true in a context, which was made of these values."""
        answer: Any
        try:
            answer = self.execute(made)
        except Exception as error:
            raise self._doubt(error, values) from error
        if answer is True or answer is False:
            return answer
        raise self._doubt(answer, values)

    def _doubt(self, answer: object, values: Mapping[str, Any]) -> ConditionError:
        """What is wrong with an answer that is neither true nor false."""
        if isinstance(answer, KeyError):
            said = f"there is no {answer.args[0]!r} in {self.source!r}; guard it with has(...)"
        elif isinstance(answer, Exception):
            said = f"{self.source!r} cannot be answered: {answer}".partition(". CEL does not")[0]
            # CEL does not say which of them, and that nothing came is what is wrong most often.
            empty = [name for name in sorted(self.names) if values[name] is None]
            said += f"; {' and '.join(empty)} is null here" if empty else ""
        else:
            said = f"{self.source!r} came to {shown(answer)}, and not to true or false"
        return ConditionError(said)


def _fields_of_output(source: str) -> frozenset[str] | None:
    """To hand a large output to CEL takes long, and most conditions look at one or two fields."""
    if any(mark in source for mark in _ODD_TEXTS):
        return None
    fields = set()
    for field, call in _OUTPUT.findall(_without_texts(source)):
        if not field or call:
            return None
        fields.add(field)
    return frozenset(fields)


def _without_texts(source: str, *, patterns: bool = False) -> str:
    """Return an expression without its comments and with its texts emptied. With `patterns`, those
    of `matches` stay, without their brackets."""
    parts, at = [], 0
    for found in _TEXTS.finditer(source):
        parts.append(source[at : found.start()])
        at = found.end()
        if found["comment"] is not None:
            parts.append(" ")
        elif patterns and _MATCHES.search("".join(parts)):
            parts.append(found[0].replace("(", "").replace(")", ""))
        else:
            parts.append("''")
    parts.append(source[at:])
    return "".join(parts)


def _depth(source: str) -> int:
    """Return how deep the brackets of an expression are nested."""
    depth = deepest = 0
    for letter in source:
        if letter in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in ")]}":
            depth = max(0, depth - 1)
    return deepest


def narrowed(output: Any, fields: frozenset[str] | None) -> Any:
    """What conditions that look at these fields need of an output."""
    if fields is None or type(output) is not dict or len(output) <= len(fields):
        return output
    return {name: output[name] for name in fields if name in output}


@cache
def _cel() -> Any:
    return import_module("cel")


def context(names: Iterable[str], values: Mapping[str, Any]) -> Any:
    """What conditions with these names are about, made ready for CEL."""
    made = _cel().Context()
    for name in names:
        value = values[name]
        try:
            made.add_variable(name, value)
        except ValueError:
            # It holds something that is no plain data, which its parts may be.
            made.add_variable(name, plain(value))
    return made


def plain(value: Any) -> Any:
    """Objects as mappings of their fields, for CEL, which knows plain data only."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, Failure):
        return {
            "kind": str(value.kind),
            "reason": value.reason,
            "step": value.step,
            "attempt": value.attempt,
            "error_type": value.error_type,
        }
    if attrs.has(type(value)):
        fields = [field.name for field in attrs.fields(type(value))]
        return {name: plain(getattr(value, name)) for name in fields}
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return getattr(value, "value", value) if hasattr(type(value), "__members__") else value


def _faults(said: str) -> list[Fault]:
    found = [
        Fault(_EXPECTING.sub("", what), int(line), int(column))
        for line, column, what in _PLACE.findall(said)
    ]
    return found or [Fault(said)]


def _unknown(source: str, name: str) -> Fault:
    before = source[: re.search(rf"\b{re.escape(name)}\b", source).start()]  # type: ignore[union-attr]
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    known = ", ".join(NAMES)
    return Fault(f"{name!r} is unknown; a condition is about {known}", line, column)
