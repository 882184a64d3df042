"""The transition log: logs when runs start, wait, resume and end, at INFO.

It is a listener of the feed, so a line is logged after the commit that makes it true. While the
logger drops INFO it does not listen, and costs one check of the level per commit. Other modules log
failures, at their own level.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keyrun.runtime.events.logs import fields, title
from keyrun.runtime.events.types import Brief, Event, EventKind, RunEvent, WaitEvent, in_full
from keyrun.runtime.logger import logger

if TYPE_CHECKING:
    from keyrun.runtime.events.feed import Subscribers

_MESSAGES = {
    EventKind.RUN_STARTED: "started",
    EventKind.RUN_RESUMED: "resumed",
    EventKind.RUN_RECOVERED: "resumed after a restart",
    EventKind.RUN_CONTINUED: "continued with another input",
    EventKind.RUN_PAUSED: "paused",
    EventKind.RUN_CANCELLING: "is being cancelled",
    EventKind.RUN_COMPENSATING: "is being compensated",
    EventKind.RUN_REDRIVEN: "redriven",
    EventKind.RUN_SUCCEEDED: "succeeded",
    EventKind.RUN_CANCELLED: "cancelled",
}


class TransitionLog:
    """Logs the transitions of all runs while the logger wants INFO."""

    run_id: str | None = None

    def __init__(self, subscribers: "Subscribers") -> None:
        self._subscribers = subscribers
        self._wanted = logging.getLogger(logger.name).isEnabledFor
        self._listens = False
        self.look_at_level()

    def look_at_level(self, group: Any = None) -> None:
        """Begin to listen, or stop, if the level of the logger was changed."""
        if self._wanted(logging.INFO) is not self._listens:
            self._listens = not self._listens
            if self._listens:
                self._subscribers.add(self)
            else:
                self._subscribers.remove(self)

    def take(self, events: Sequence[Event | Brief]) -> None:
        """Log the transitions among these events."""
        for event in events:
            kind: Any = event[0]
            if kind is EventKind.RUN_WAITING:
                assert isinstance(event, WaitEvent)
                _log(event, _waits(event))
            elif kind in _MESSAGES:
                full = in_full(event)[0] if type(event) is tuple else event
                if isinstance(full, RunEvent):
                    _log(full, _message(full))

    def end(self) -> None:
        """Do nothing: the last transitions are logged."""


def _log(event: RunEvent | WaitEvent, message: str) -> None:
    about = event.run_id, event.key, event.workflow
    extra = fields(str(event.kind), *about)
    logger.log(logging.INFO, "%s: %s", title(*about), message, extra=extra)


_TIMES = {"backoff": "the next attempt", "timer": "a timer"}
"""The waits that last until a time, in words."""


def _waits(event: WaitEvent) -> str:
    if event.waiting_on in _TIMES:
        length = "" if event.delay is None else f", for {event.delay:.3f} s"
        return f"waits for {_TIMES[event.waiting_on]}{length}"
    limit = "" if event.delay is None else f", for at most {event.delay:.3f} s"
    return f"waits for {event.waiting_on}{limit}"


def _message(event: RunEvent) -> str:
    message = _MESSAGES[event.kind]
    if event.generation > 1:
        message += f" in generation {event.generation}"
    if event.elapsed is not None:
        steps = "1 step" if event.steps_done == 1 else f"{event.steps_done} steps"
        message += f" after {event.elapsed:.3f} s and {steps}"
    return message if event.reason is None else f"{message}: {event.reason}"
