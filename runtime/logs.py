"""Logging: what happened, with the run, key, step, attempt and event as fields."""

import logging
from typing import TYPE_CHECKING

from keyrun.runtime.values import Failure

if TYPE_CHECKING:
    from keyrun.runtime.current import CurrentStep
    from keyrun.runtime.run import Run

logger = logging.getLogger("keyrun.runtime")


def log(
    run: "Run",
    event: str,
    message: str,
    failure: Failure | None = None,
    *,
    current: "CurrentStep | None" = None,
    level: int = logging.WARNING,
) -> None:
    """Log something about a run, and of its step that `failure` or `current` is about."""
    if logger.isEnabledFor(level):
        about = failure or current
        fields = {
            "run": run.run_id,
            "key": run.key,
            "step": about and about.step,
            "attempt": about and about.attempt,
            "event": event,
        }
        logger.log(level, "run %s (key %s): %s", run.run_id, run.key, message, extra=fields)
