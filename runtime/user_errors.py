"""Errors of user code: which exceptions are a failure of the code that Keyrun called.

Every exception is one, also an exception that is not an `Exception`. There are two special cases:

1. `KeyboardInterrupt` ends the runtime.
2. `trio.Cancelled` that comes from a scope around the caller cancels the caller, too. The same
   exception from anywhere else (a result of another task, a raise by hand) is a failure.

In a group, one `KeyboardInterrupt` or one such cancellation decides.
"""

from collections.abc import Iterator
from contextlib import suppress
from math import inf

import trio

Types = type[BaseException] | tuple[type[BaseException], ...]


def is_user_error(error: BaseException) -> bool:
    """Return whether `error` is a failure of the code that raised it. Call this in the task that
    called the code, outside of the scopes that were opened for the call."""
    return not is_fatal(error) and not is_cancellation(error)


def is_fatal(error: BaseException) -> bool:
    """Return whether `error` has to end the runtime."""
    if issubclass(type(error), Exception):
        return False
    if issubclass(type(error), GeneratorExit) and not trio.lowlevel.in_trio_task():
        # Trio has stopped, and Python closes the coroutine of a task that never ended.
        return True
    return has(error, KeyboardInterrupt)


def is_cancellation(error: BaseException) -> bool:
    """Return whether `error` is, or contains, the cancellation of a scope around the current
    task."""
    return has(error, trio.Cancelled) and trio.current_effective_deadline() == -inf


def has(error: BaseException, types: Types) -> bool:
    """Return whether `error` is one of `types`, or a group that contains one."""
    return any(issubclass(type(leaf), types) for leaf in leaves(error))


def without(error: BaseException, types: Types) -> BaseException | None:
    """Return `error` without the exceptions of these types. None if nothing is left."""
    if all(issubclass(type(leaf), types) for leaf in leaves(error)):
        return None
    if issubclass(type(error), BaseExceptionGroup):
        assert isinstance(error, BaseExceptionGroup)
        # A group of the user's own class runs the user's code when it is split.
        with suppress(BaseException):
            return error.split(types)[1]
    return error


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group and in the groups inside it. An error that is not a group is
    its only leaf.

    It uses `issubclass(type(...))`, because the `__class__` of an error may raise.
    """
    if not issubclass(type(error), BaseExceptionGroup):
        yield error
        return
    for inner in inside(error):
        yield from leaves(inner)


def inside(group: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions in a group. The attribute of a class of users may raise."""
    found: tuple[BaseException, ...] = _EXCEPTIONS(group)
    return found


_EXCEPTIONS = BaseExceptionGroup.__dict__["exceptions"].__get__
