"""Steps that hold the event loop until the watchdog has noticed."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from keyrun.runtime.tuning import Tuning

SOON = Tuning(watchdog_period=0.02, watchdog_limit=0.2)
"""A watchdog that needs no second."""


class Noticed(logging.Handler):
    """Collects what the watchdog logs."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", None) in ("step_blocked", "loop_lag"):
            self.records.append(record)

    def hold_the_loop(self) -> None:
        """Block this thread until the watchdog has logged that. On a busy machine it may log that
        the loop was late before."""
        before, until = self.count("it runs Noticed.hold_the_loop"), time.monotonic() + 20
        while self.count("it runs Noticed.hold_the_loop") == before and time.monotonic() < until:
            time.sleep(0.005)

    def count(self, text: str) -> int:
        """Return the number of records with this text."""
        return sum(text in each.getMessage() for each in list(self.records))

    @property
    def steps(self) -> list[str | None]:
        """Return the steps that were blamed."""
        return [vars(each)["step"] for each in self.records if vars(each)["step"] is not None]


@contextmanager
def noticed() -> Iterator[Noticed]:
    """Collect what the watchdog logs in a block."""
    handler = Noticed()
    logger = logging.getLogger("keyrun.runtime")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
