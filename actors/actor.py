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
    """Handle the messages of one key, in order, one at a time. Derive your actors from this class.

    Every handler runs in a Trio task, so cancel scopes and nurseries work as usual. It runs in a
    fresh copy of the context that the system was opened in: the next message does not see the
    context variables that a message sets.

    The base class has no instance dictionary. If the subclass declares `__slots__`, too, an idle
    key takes a few hundred bytes.
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
        """Handle one message, and return the answer to `ActorSystem.ask`."""
        raise NotImplementedError

    async def on_start(self) -> None:
        """Run before the first message of a new actor. An error counts as a crash."""

    async def on_restart(self, error: BaseException) -> None:
        """Run instead of `on_start` on the actor that replaces an actor that crashed with
        `error`."""
        await self.on_start()

    async def on_stop(self) -> None:
        """Run when the actor is stopped or its system is closed, but not after a crash.

        An error is logged, and the actor is dropped anyway.
        """

    async def on_passivate(self) -> None:
        """Run before an actor that was idle for the idle timeout is dropped. By default this calls
        `on_stop`.

        An error is logged, and the actor stays for another idle timeout.
        """
        await self.on_stop()


def overrides(actor: Actor[Any, Any], hook: str) -> bool:
    """Return whether the class of `actor` has its own version of `hook`.

    The system does not call a hook that does nothing.
    """
    return getattr(type(actor), hook) is not getattr(Actor, hook)
