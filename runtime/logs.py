"""Logging: what happened, with the run, key, step, attempt and event as fields."""

import logging
from typing import TYPE_CHECKING, Any

from keyrun.actors.errors import logged
from keyrun.runtime.values import Failure

if TYPE_CHECKING:
    from keyrun.runtime.run import Run
    from keyrun.runtime.steps.current import CurrentStep


class _SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose handlers may raise anything. That is no reason to leave what is being done
    half done."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log as `logging.Logger` does, and drop what a handler raises."""
        try:
            # The caller's place in the code, not this one.
            super().log(level, msg, *args, stacklevel=2, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException:
            return

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Leave the fields of each line as they are."""
        return msg, kwargs


logger = _SafeLogger(logging.getLogger("keyrun.runtime"), {})


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
        _say(level, f"run {run.run_id} (key {run.key}): {message}", fields)


def log_key(
    key: str,
    event: str,
    message: str,
    *,
    run_id: str = "",
    error: BaseException | None = None,
    level: int = logging.ERROR,
) -> None:
    """Log something about a key, at a run of it if that is known."""
    fields = {"run": run_id, "key": key, "step": None, "attempt": None, "event": event}
    _say(level, message, fields, error)


def _say(
    level: int, message: str, fields: dict[str, Any], error: BaseException | None = None
) -> None:
    exc_info = None if error is None else logged(error)
    logger.log(level, "%s", message, extra=fields, exc_info=exc_info)
