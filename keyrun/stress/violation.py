"""Violations: which promise was broken, by what, and what shows it."""

from enum import StrEnum

import attrs


class Promise(StrEnum):
    """What is checked, as a sentence that is true if nothing was found."""

    ORDER = "the runs of each key ran one after the other, in order"
    LOSS = "every acknowledged run ended once, and its end was told"
    DOUBLED = "no finished step, attempt or run ran again"
    LIMITS = "attempts, timeouts, budgets and delays are exact"
    CANCEL = "what was cancelled is cancelled, and nothing else"
    PAUSE = "what was paused stood still, and went on when resumed"
    RESULT = "every result and every failure is the right one"
    STATE = "the state of each key is its steps, in order, once each"
    STORE = "every record in the store is as it was written"
    ALIVE = "the process under test kept going"


@attrs.frozen(kw_only=True)
class Violation:
    """One thing that must not be. `run_id` or `key` says where to look."""

    promise: Promise
    text: str
    run_id: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        where = self.run_id or self.key
        return f"{where}: {self.text}" if where else self.text
