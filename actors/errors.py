"""What can go wrong between a sender and an actor.

Every error derives from `KeyrunError` and from the builtin that matches, carries the key it is
about, and says what to do.
"""

from collections.abc import Hashable

from keyrun.errors import KeyrunError


class MailboxFull(KeyrunError, RuntimeError):
    """The key has as many waiting messages as its mailbox holds."""

    def __init__(self, key: Hashable, capacity: int) -> None:
        super().__init__(
            f"the mailbox of key {key!r} is full ({capacity} messages): "
            "use `await tell(...)` to wait for room"
        )
        self.key = key
        self.capacity = capacity


class AskTimeout(KeyrunError, TimeoutError):
    """No answer came in time. The message stays queued and will still be handled."""

    def __init__(self, key: Hashable, timeout: float) -> None:
        super().__init__(f"key {key!r} did not answer within {timeout} s")
        self.key = key
        self.timeout = timeout


class ActorFailed(KeyrunError, RuntimeError):
    """The actor raised while it handled the message; `__cause__` is what it raised."""

    def __init__(self, key: Hashable, cause: BaseException) -> None:
        super().__init__(f"the actor of key {key!r} failed: {cause!r}")
        self.key = key
        self.__cause__ = cause


class ActorStopped(KeyrunError, RuntimeError):
    """The message was accepted, but its actor was stopped before it was handled."""

    def __init__(self, key: Hashable, cause: BaseException | None = None) -> None:
        why = "" if cause is None else f" after {cause!r}"
        super().__init__(f"the actor of key {key!r} was stopped{why}: the message was not handled")
        self.key = key
        self.__cause__ = cause


class SystemClosed(KeyrunError, RuntimeError):
    """The system takes messages only inside its `async with` block."""

    def __init__(self) -> None:
        super().__init__("the actor system is not open: use it inside its `async with` block")


class WouldDeadlock(KeyrunError, RuntimeError):
    """A handler asked for something that can only happen after it has returned."""

    def __init__(self, call: str, key: Hashable) -> None:
        super().__init__(
            f"{call} on key {key!r} from its own handler would wait for itself for ever: "
            "return first, or start it in a task that the handler does not wait for"
        )
        self.key = key
