"""Log lines of the engine. Each names the run and its workflow, and its record has the run, key,
workflow, step, attempt and event as attributes."""

import logging
from typing import TYPE_CHECKING, Any, Protocol

from keyrun.actors.errors import logged
from keyrun.runtime.values import Failure

if TYPE_CHECKING:
    from keyrun.runtime.records.submission import Submission


_FIELDS = dict.fromkeys(("run", "key", "workflow", "step", "attempt", "event"))


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
        """Give each line all fields, None where they do not apply. Formatters rely on them."""
        kwargs["extra"] = {**_FIELDS, **(kwargs.get("extra") or {})}
        return msg, kwargs


class LoggedRun(Protocol):
    """The run that a log line is about."""

    @property
    def submission(self) -> "Submission": ...


class LoggedStep(Protocol):
    """The attempt that a log line is about."""

    step: str
    attempt: int


logger = _SafeLogger(logging.getLogger("keyrun.runtime"), {})


def title(run_id: str, key: str, workflow: str) -> str:
    """How a log line names a run."""
    return f"{workflow} run {run_id} (key {key})"


def fields(
    event: str,
    run_id: str | None,
    key: str | None,
    workflow: str | None,
    step: str | None = None,
    attempt: int | None = None,
) -> dict[str, Any]:
    """The fields that every line has as attributes of its record."""
    return {
        "run": run_id,
        "key": key,
        "workflow": workflow,
        "step": step,
        "attempt": attempt,
        "event": event,
    }


def log(
    run: LoggedRun,
    event: str,
    message: str,
    failure: Failure | None = None,
    *,
    current: LoggedStep | None = None,
    level: int = logging.WARNING,
) -> None:
    """Log something about a run, and of its step that `failure` or `current` is about."""
    if logger.isEnabledFor(level):
        about = failure or current
        step, attempt = (None, None) if about is None else (about.step, about.attempt)
        named = run.submission.about
        extra = fields(event, *named, step, attempt)
        logger.log(level, "%s: %s", title(*named), message, extra=extra)


def log_key(
    key: str,
    event: str,
    message: str,
    *,
    run_id: str = "",
    workflow: str | None = None,
    error: BaseException | None = None,
    level: int = logging.ERROR,
) -> None:
    """Log something about a key, at a run of it if that is known."""
    exc_info = None if error is None else logged(error)
    logger.log(
        level, "%s", message, extra=fields(event, run_id or None, key, workflow), exc_info=exc_info
    )
