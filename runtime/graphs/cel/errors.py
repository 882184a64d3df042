"""Errors of expressions, when they are compiled and when they are evaluated."""

import attrs


@attrs.frozen
class ExpressionFault:
    """The reason why an expression cannot be compiled, and its position."""

    reason: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        if self.line is None:
            return self.reason
        return f"line {self.line}, column {self.column}: {self.reason}"


class InvalidExpression(ValueError):
    """An expression that cannot be compiled, with all faults that were found."""

    def __init__(self, faults: list[ExpressionFault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults


class Unanswerable(Exception):
    """An expression has no value for this data."""


class MissingKey(Unanswerable):
    """A map does not have the field or key that an expression reads."""

    def __init__(self, key: object) -> None:
        super().__init__(f"there is no {key!r}")
        self.key = key


class OverBudget(Exception):
    """An evaluation has used up its operations. `&&` and `||` do not absorb this error."""
