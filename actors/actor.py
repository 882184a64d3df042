"""The base class of every actor.

An actor owns the state of one key. It is made by the system's factory when the first message
arrives, handles one message at a time, and may be dropped and made again between messages.
"""

import inspect
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

M = TypeVar("M")
A = TypeVar("A")


class Actor(ABC, Generic[M, A]):
    """Handles the messages of one key, in order, one at a time.

    Every handler runs inside a real Trio task, so cancel scopes and nurseries work as usual,
    and in a fresh copy of the context that the system was opened in: a context variable that
    one message sets is not seen by the next.

    The base class has no instance dictionary. Declare `__slots__` in the subclass as well and
    an idle key stays at a few hundred bytes.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("receive", "on_start", "on_restart", "on_stop", "on_passivate"):
            method = cls.__dict__.get(name)
            if inspect.isfunction(method) and not inspect.iscoroutinefunction(
                inspect.unwrap(method)
            ):
                raise TypeError(f"{cls.__qualname__}.{name} must be an async function")

    @abstractmethod
    async def receive(self, message: M) -> A:
        """Handle one message. What it returns is the answer to `ask`."""
        raise NotImplementedError

    async def on_start(self) -> None:
        """Runs before the first message of a fresh actor. An error counts as a crash."""

    async def on_restart(self, error: BaseException) -> None:
        """Runs instead of `on_start` on the actor that replaces one that crashed with `error`."""
        await self.on_start()

    async def on_stop(self) -> None:
        """Runs when the actor is stopped or its system drained, not after a crash.

        An error is logged, and the actor is dropped all the same.
        """

    async def on_passivate(self) -> None:
        """Runs before an actor that was idle for the idle timeout is dropped.

        An error is logged, and the actor stays for another idle timeout. The default is what
        happens on a stop.
        """
        await self.on_stop()


def overrides(actor: Actor[Any, Any], hook: str) -> bool:
    """Whether the class of `actor` has its own version of `hook`.

    Asked before a hook is run, because a hook that does nothing is not worth a worker's turn.
    """
    return getattr(type(actor), hook) is not getattr(Actor, hook)
