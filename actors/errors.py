"""The errors of actors.

Every error derives from `KeyrunError` and from the matching builtin exception, has the key that it
is about, and says what to do.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import trio

from keyrun._errors import KeyrunError, class_name

ENDINGS = (trio.Cancelled, KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that end the task in which the actor runs. They are not crashes of the actor."""


def is_crash(error: BaseException, own: type[BaseException] | tuple[()] = ()) -> bool:
    """Return whether an error is a crash of the actor: any error but `ENDINGS`, also in a group.
    `own` is a type of `ENDINGS` that counts as a crash nevertheless."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_crash(inner, own) for inner in error.exceptions)
    return isinstance(error, own) or not isinstance(error, ENDINGS)


def shown(value: object, form: Callable[[object], str] = repr) -> str:
    """Return `repr(value)`, also if that raises: reporting an error must not raise another one."""
    try:
        return form(value)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"<{class_name(value)} whose {form.__name__} raised {class_name(error)}>"


def logged(error: BaseException) -> tuple[type[BaseException], BaseException, Any]:
    """Return an error as `exc_info`. Passed an exception, the logging module would test its truth
    value, which may raise."""
    return type(error), error, error.__traceback__


class MailboxFull(KeyrunError, RuntimeError):
    """Raised by `ActorSystem.tell_nowait` if the mailbox of the key is full."""

    def __init__(self, key: Hashable, capacity: int) -> None:
        super().__init__(
            f"the mailbox of key {shown(key)} is full ({capacity} messages): "
            "use `await tell(...)` to wait for room"
        )
        self.key = key
        """The key of the actor."""
        self.capacity = capacity
        """The number of messages that the mailbox holds."""


class AskTimeout(KeyrunError, TimeoutError):
    """Raised by `ActorSystem.ask` if no answer arrived within the timeout."""

    def __init__(self, key: Hashable, timeout: float, *, accepted: bool) -> None:
        super().__init__(
            f"key {shown(key)} did not answer within {timeout} s: "
            "the message stays queued and will still be handled"
            if accepted
            else f"the mailbox of key {shown(key)} had no room within {timeout} s: "
            "the message was not sent"
        )
        self.key = key
        """The key of the actor."""
        self.timeout = timeout
        """The timeout in seconds."""
        self.accepted = accepted
        """Whether the message stays queued and will still be handled. If False, the mailbox was
        full all the time and the message was not sent."""


class ActorFailed(KeyrunError, RuntimeError):
    """Raised by `ActorSystem.ask` if the actor raised while it handled the message. `__cause__` is
    the exception of the actor."""

    def __init__(self, key: Hashable, cause: BaseException) -> None:
        super().__init__(f"the actor of key {shown(key)} failed: {shown(cause)}")
        self.key = key
        """The key of the actor."""
        self.__cause__ = cause


class ActorStopped(KeyrunError, RuntimeError):
    """Raised by `ActorSystem.ask` if the actor was stopped before it handled the message."""

    def __init__(self, key: Hashable, cause: BaseException | None = None) -> None:
        why = "" if cause is None else f" after {shown(cause)}"
        super().__init__(
            f"the actor of key {shown(key)} was stopped{why}: the message was not handled"
        )
        self.key = key
        """The key of the actor."""
        self.__cause__ = cause


class KeyQuarantined(KeyrunError, RuntimeError):
    """Raised by `ActorSystem.ask` if the key is or becomes quarantined. `__cause__` is its last
    crash."""

    def __init__(self, key: Hashable, cause: BaseException | None, *, accepted: bool) -> None:
        what = "the message stays in its mailbox" if accepted else "the message was not sent"
        super().__init__(
            f"key {shown(key)} is quarantined: {what}, and release({shown(key)}) lets it continue"
        )
        self.key = key
        """The key of the actor."""
        self.accepted = accepted
        """Whether the message stays in the mailbox, and is handled after a release of the key. If
        False, the message was not sent."""
        self.__cause__ = cause


class SystemClosed(KeyrunError, RuntimeError):
    """Raised if an actor system is used outside of its `async with` block."""

    def __init__(self) -> None:
        super().__init__("the actor system is not open: use it inside its `async with` block")


class WouldDeadlock(KeyrunError, RuntimeError):
    """Raised if a handler waits for something that can only happen after the handler has
    returned."""

    def __init__(self, call: str, key: Hashable, cycle: Sequence[Hashable] = ()) -> None:
        self.key = key
        """The key that the handler called."""
        self.cycle = tuple(cycle) or (key,)
        """The keys that would wait for each other. The first one was called, and the handler of the
        last one called it."""
        if len(self.cycle) == 1:
            super().__init__(
                f"{call} on key {shown(key)} from its own handler would wait for itself forever: "
                "return first, or start it in a task that the handler does not wait for"
            )
            return
        caller = shown(self.cycle[-1])
        chain = ", which waits for ".join(map(shown, self.cycle))
        super().__init__(
            f"{call} on key {shown(key)} from the handler of key {caller} would wait forever: "
            f"{caller} would wait for {chain}; use tell instead of ask in one of them, or "
            "wait with a timeout"
        )
