"""Conditions: expressions in CEL that say whether an edge is taken.

They are compiled once, when the graph is registered. What they are about is handed to them as data
and is never part of the expression, so no payload can change what a condition means.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from keyrun.actors.errors import shown
from keyrun.runtime.graphs.errors import ConditionError, MissingExtra
from keyrun.runtime.values import Failure

NAMES = ("output", "input", "outputs", "error")
"""What a condition can be about."""

_PLACE = re.compile(r"<input>:(\d+):(\d+): (?:Syntax error: )?([^\n]*)")
_EXPECTING = re.compile(r" expecting \{.*\}")
_BINDS = re.compile(r"\.(?:all|exists|exists_one|map|filter)\(\s*(\w+)\s*,")


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
    """One expression, compiled."""

    __slots__ = ("_execute", "_names", "source")

    def __init__(self, source: str, execute: Callable[[dict[str, Any]], Any], names: set[str]):
        self.source = source
        self._execute = execute
        self._names = tuple(name for name in NAMES if name in names)

    @classmethod
    def compile(cls, source: str) -> "Condition":
        """Raises `Unreadable` with every fault that was found."""
        try:
            import cel
        except ImportError:
            raise MissingExtra(
                "conditions need the package common-expression-language: pip install keyrun[flows]"
            ) from None
        try:
            program = cel.compile(source)
        except ValueError as error:
            raise Unreadable(_faults(str(error))) from None
        names = set(program.variables())
        strange = names.difference(NAMES, _BINDS.findall(source))
        if strange:
            raise Unreadable([_unknown(source, name) for name in sorted(strange)])
        return cls(source, program.execute, names)

    def holds(self, about: Mapping[str, Any]) -> bool:
        """Whether it is true of `about`, which has a value for each of the NAMES."""
        values = {name: about[name] for name in self._names}
        try:
            try:
                answer = self._execute(values)
            except ValueError:
                # It holds something that is no plain data, which its parts may be.
                answer = self._execute({name: plain(value) for name, value in values.items()})
        except KeyError as error:
            raise ConditionError(
                f"there is no {error.args[0]!r} in {self.source!r}; guard it with has(...)"
            ) from error
        except Exception as error:
            said = str(error).partition(". CEL does not")[0]
            raise ConditionError(f"{self.source!r} cannot be answered: {said}") from error
        if answer is True or answer is False:
            return answer
        raise ConditionError(f"{self.source!r} came to {shown(answer)}, and not to true or false")


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
