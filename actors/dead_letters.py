"""Dead letters: messages that were accepted and will not be handled.

The user's callback receives each of them exactly once, and the call of `ask` that waits for its
answer fails. Without a callback they are logged.
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
    """Counts the messages that will not be handled, and passes them to the callback."""

    def __init__(self, callback: Callable[[DeadLetter[Any, Any]], object] | None) -> None:
        self._callback = callback
        self.count = 0

    def deliver(self, key: Hashable, items: Iterable[Any], error: BaseException) -> None:
        """Turn `items` of a mailbox into dead letters because of `error`.

        Orders among them count as done, because there is no actor left.
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
    """Return the error for one call of `ask`. Each call needs its own, because raising it adds a
    traceback."""
    if isinstance(error, ActorStopped):
        return ActorStopped(key, error.__cause__)
    return ActorFailed(key, error)
