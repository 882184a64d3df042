"""Errors of user code: which exceptions are a failure of the code that Keyrun called.

Every exception is one, also an exception that is no `Exception`, with two exceptions:

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
    """Whether `error` is a failure of the code that raised it. Ask in the task that called the
    code, outside of the scopes that were opened for the call."""
    return not is_fatal(error) and not is_cancellation(error)


def is_fatal(error: BaseException) -> bool:
    """Whether `error` has to end the runtime."""
    if issubclass(type(error), Exception):
        return False
    if issubclass(type(error), GeneratorExit) and not trio.lowlevel.in_trio_task():
        # Trio is gone, and Python closes the coroutine of a task that never ended.
        return True
    return has(error, KeyboardInterrupt)


def is_cancellation(error: BaseException) -> bool:
    """Whether `error` is, or contains, the cancellation of a scope around the current task."""
    return has(error, trio.Cancelled) and trio.current_effective_deadline() == -inf


def has(error: BaseException, types: Types) -> bool:
    """Whether `error` is one of `types`, or a group that contains one."""
    return any(issubclass(type(leaf), types) for leaf in leaves(error))


def without(error: BaseException, types: Types) -> BaseException | None:
    """`error` without what is one of `types`; None if nothing is left."""
    if all(issubclass(type(leaf), types) for leaf in leaves(error)):
        return None
    if issubclass(type(error), BaseExceptionGroup):
        assert isinstance(error, BaseExceptionGroup)
        # A group of the user's own class runs the user's code when it is split.
        with suppress(BaseException):
            return error.split(types)[1]
    return error


def leaves(error: BaseException) -> Iterator[BaseException]:
    """What is in a group, and in the groups in it; an error that is no group is its only leaf.

    `issubclass(type(...))`, because an error may refuse to tell its `__class__`.
    """
    if not issubclass(type(error), BaseExceptionGroup):
        yield error
        return
    assert isinstance(error, BaseExceptionGroup)
    for inner in error.exceptions:
        yield from leaves(inner)
