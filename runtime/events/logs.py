"""Log lines: name the run and its workflow in each line.

Each log record has the run, key, workflow, step, attempt and event as attributes.
"""

import logging
from typing import TYPE_CHECKING, Any, Protocol

from keyrun.actors.errors import logged
from keyrun.runtime.logger import logger
from keyrun.runtime.redaction import SHOW_ALL, Redaction
from keyrun.runtime.texts import traceback_of
from keyrun.runtime.values import Failure

if TYPE_CHECKING:
    from keyrun.runtime.records.submission import Submission


class LoggedRun(Protocol):
    """The run that a log line is about."""

    @property
    def submission(self) -> "Submission": ...


class LoggedStep(Protocol):
    """The attempt that a log line is about."""

    step: str
    attempt: int


def title(run_id: str, key: str, workflow: str) -> str:
    """Return the name of a run in log lines."""
    return f"{workflow} run {run_id} (key {key})"


def fields(
    event: str | None,
    run_id: str | None,
    key: str | None,
    workflow: str | None,
    step: str | None = None,
    attempt: int | None = None,
) -> dict[str, Any]:
    """Return the attributes that every log record has."""
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
    """Log a message about a run, and about its step if `failure` or `current` names one."""
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
    redaction: Redaction = SHOW_ALL,
    level: int = logging.ERROR,
) -> None:
    """Log a message about a key, and about one of its runs if that is known. `redaction` says what
    may be shown of `error`."""
    extra = fields(event, run_id or None, key, workflow)
    log_error(message, error, redaction, level=level, extra=extra)


def log_error(
    message: str,
    error: BaseException | None,
    redaction: Redaction,
    *,
    level: int = logging.ERROR,
    extra: dict[str, Any],
) -> None:
    """Log a message with what may be shown of an exception and its traceback."""
    exc_info = None if error is None else logged(error)
    if error is not None and redaction.hides:
        # A handler would format the exception as it is.
        message, exc_info = f"{message}\n{traceback_of(error, redaction)}", None
    logger.log(level, "%s", message, extra=extra, exc_info=exc_info)
