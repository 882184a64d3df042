"""Dead letters: messages that were accepted and will not be handled.

Each is handed to the user's callback exactly once, and whoever waits for its answer is told.
Without a callback they are logged.
"""

import logging
from collections.abc import Callable, Hashable, Iterable
from contextvars import copy_context
from typing import Any, Generic, TypeVar

import attrs

from keyrun.actors.cell import Envelope, Order
from keyrun.actors.errors import ActorFailed, ActorStopped, shown

logger = logging.getLogger("keyrun.actors")

K = TypeVar("K", bound=Hashable)
M = TypeVar("M")


@attrs.frozen(kw_only=True)
class DeadLetter(Generic[K, M]):
    """Describe a message that will not be handled. `on_dead_letter` receives this."""

    key: K
    """The key of the actor."""
    message: M
    """The message."""
    error: BaseException
    """Why the message is not handled."""


class DeadLetters:
    """Where messages go that are given up."""

    def __init__(self, callback: Callable[[DeadLetter[Any, Any]], object] | None) -> None:
        self._callback = callback
        self.count = 0

    def deliver(self, key: Hashable, items: Iterable[Any], error: BaseException) -> None:
        """Give up `items` of a mailbox because of `error`.

        Orders among them count as carried out: nothing is left that they could apply to.
        """
        messages = []
        for item in items:
            if not isinstance(item, Envelope):
                messages.append(item)
            elif isinstance(item.message, Order):
                item.settle()
            else:
                item.settle(failure=_failure(key, error))
                messages.append(item.message)
        self.count += len(messages)
        if self._callback is None:
            if messages:
                logger.warning(
                    "%d message(s) of key %s given up: %s",
                    len(messages),
                    shown(key),
                    shown(error, str),
                )
            return
        for message in messages:
            letter = DeadLetter(key=key, message=message, error=error)
            try:
                copy_context().run(self._callback, letter)
            except Exception:
                logger.exception("on_dead_letter failed for a message of key %s", shown(key))


def _failure(key: Hashable, error: BaseException) -> ActorFailed | ActorStopped:
    """An error for one asker, who gets one of its own since raising it adds a traceback."""
    if isinstance(error, ActorStopped):
        return ActorStopped(key, error.__cause__)
    return ActorFailed(key, error)
