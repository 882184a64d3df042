"""Violations: the guarantee that was broken, and the run or key that shows it."""

from enum import StrEnum

import attrs


class Promise(StrEnum):
    """A guarantee that is checked, as a sentence that is true if no violation was found."""

    ORDER = "runs with the same key ran one after another, in order"
    LOSS = "every acknowledged run ended once and reached the hook"
    DOUBLED = "no completed step, attempt or run was repeated"
    LIMITS = "attempts, timeouts, budgets and delays are exact"
    CANCEL = "cancelled runs stopped, and no other run was cancelled"
    PAUSE = "paused runs and keys waited until they were resumed"
    RESULT = "every result and every failure is correct"
    STATE = "the state of each key has every step once, in order"
    STORE = "every record in the store is undamaged"
    ALIVE = "the process under test did not fail"


@attrs.frozen(kw_only=True)
class Violation:
    """A violation of a guarantee, with the run or the key that shows it."""

    promise: Promise
    text: str
    run_id: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        where = self.run_id or self.key
        return f"{where}: {self.text}" if where else self.text
