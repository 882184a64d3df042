"""Logging: what happened, with the run, key, step, attempt and event as fields."""

import logging
from typing import TYPE_CHECKING

from keyrun.runtime.values import Failure

if TYPE_CHECKING:
    from keyrun.runtime.run import Run

logger = logging.getLogger("keyrun.runtime")


def log(
    run: "Run",
    event: str,
    message: str,
    failure: Failure | None = None,
    *,
    level: int = logging.WARNING,
) -> None:
    """Log something about a run."""
    if logger.isEnabledFor(level):
        fields = {
            "run": run.run_id,
            "key": run.key,
            "step": failure and failure.step,
            "attempt": failure and failure.attempt,
            "event": event,
        }
        logger.log(level, "run %s (key %s): %s", run.run_id, run.key, message, extra=fields)
