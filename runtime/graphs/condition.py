"""Conditions: CEL expressions that decide whether an edge is taken.

A condition is compiled once, when the graph is registered. It reads its values as data. They are
never part of the expression, so no payload can change the meaning of a condition.

No other task runs while a condition is evaluated, so an evaluation has a budget of operations that
is counted as it runs. The count depends on the expression and the data only, so a replay gets the
same answer.
"""

from collections.abc import Mapping
from typing import Any

from keyrun.actors.errors import shown
from keyrun.runtime.errors import ConditionError
from keyrun.runtime.graphs.cel.errors import (
    InvalidExpression,
    MissingKey,
    OverBudget,
    Unanswerable,
)

__all__ = ["BUDGET", "NAMES", "Condition", "InvalidExpression"]

NAMES = ("output", "input", "outputs", "error", "failures", "item", "index")
"""The names that a condition can use."""
NO_FAILURES: Mapping[str, Any] = {}
"""The failures of the inputs of a node none of whose inputs failed."""
BUDGET = 3_000_000
"""Operations of one evaluation, of about a tenth of a microsecond each."""


class Condition:
    """One compiled expression."""

    __slots__ = ("_evaluate", "_names", "_variables", "source")

    def __init__(self, source: str) -> None:
        """Compile an expression. Raise `InvalidExpression` with its faults if it is not valid."""
        # Graphs without conditions need not wait for this import, which takes about 15 ms.
        from keyrun.runtime.graphs.cel.compiler import Compiler

        compiler = Compiler(source, NAMES)
        self.source = source
        self._evaluate = compiler.evaluate
        self._variables = [None] * compiler.variables
        self._names = sorted(compiler.used)

    def holds(
        self,
        output: Any,
        run_input: Any,
        outputs: Any,
        error: Any = None,
        failures: Mapping[str, Any] = NO_FAILURES,
        *,
        item: tuple[int, Any] | None = None,
    ) -> bool:
        """Return whether the condition is true for these values. `item` is the index and the value
        of an item, in the body of a map."""
        index, value = item or (None, None)
        frame = [output, run_input, outputs, error, failures, value, index, BUDGET]
        if self._variables:
            frame += self._variables
        try:
            answer = self._evaluate(frame)
        except MissingKey as missing:
            raise ConditionError(
                f"there is no {missing.key!r} in {self.source!r}; guard it with has(...)"
            ) from missing
        except Unanswerable as reason:
            raise ConditionError(self._explained(reason, frame)) from reason
        except OverBudget:
            raise ConditionError(
                f"{self.source!r} takes more than {BUDGET:,} operations for this data; "
                "compute the answer in a node instead"
            ) from None
        if answer is True or answer is False:
            return answer
        raise ConditionError(
            f"{self.source!r} gave {shown(answer)}, but a condition must be true or false"
        )

    def _explained(self, reason: Unanswerable, frame: list[Any]) -> str:
        """Return a message that also names the values that are null, the most frequent cause."""
        said = f"{self.source!r} cannot be evaluated: {reason}"
        empty = [name for name in self._names if frame[NAMES.index(name)] is None]
        return f"{said}; {' and '.join(empty)} is null here" if empty else said
