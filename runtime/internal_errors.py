"""Internal errors: exceptions that Keyrun's own code raised while it served a workflow.

An internal error never fails a run. The key is restarted from the store, and quarantined after too
many restarts. Two rules tell internal errors from errors of user code:

1. Where Keyrun calls user code, `from_user` marks each exception that comes out.
2. Where user code calls Keyrun (a method of `Context` or of the current step), a guard looks at
   each exception that leaves. An exception is internal unless it is marked, is an error that Keyrun
   documents (a `KeyrunError`), or only unwinds the task. The guard replaces an internal error with
   `InternalError`, which passes through user code and ends the pass.

Checks of arguments stay outside of the guard: a wrong argument is an error of user code.
"""

from types import TracebackType
from typing import TypeVar

import trio

from keyrun._errors import KeyrunError
from keyrun.runtime.pass_end import Halt
from keyrun.runtime.user_errors import leaves
from keyrun.storage.errors import StoreCorrupt, StoreError

E = TypeVar("E", bound=BaseException)

_MARK = "__keyrun_user_error__"
_UNWINDS = (Halt, trio.Cancelled, KeyboardInterrupt, GeneratorExit)
"""Exceptions that end a task and are not an error."""
_REPLACED = (StopIteration, StopAsyncIteration)
"""Exceptions that Python turns into a `RuntimeError` where they leave a coroutine."""


class InternalError(Halt):
    """End the pass, because Keyrun's own code raised `error`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("Keyrun itself failed")
        self.error = error


class InternalGuard:
    """A block of Keyrun's own code that user code calls: `with INTERNAL_CODE: ...`."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            check_internal(error)


INTERNAL_CODE = InternalGuard()


def from_user(error: E) -> E:
    """Mark `error`, and each exception in it if it is a group, as raised by user code."""
    for leaf in leaves(error):
        # Not `setattr`: the class of the error may refuse it.
        BaseException.__setattr__(leaf, _MARK, True)
    return error


def is_internal(error: BaseException) -> bool:
    """Return whether `error`, or an exception in it if it is a group, is Keyrun's own."""
    return any(map(_is_internal, leaves(error)))


def check_internal(error: BaseException) -> None:
    """Raise `InternalError` if `error` is Keyrun's own."""
    if is_internal(error):
        raise as_internal(error)


def as_internal(error: BaseException) -> InternalError:
    """Return the `InternalError` for an error of Keyrun's own."""
    for leaf in leaves(error):
        if issubclass(type(leaf), InternalError):
            assert isinstance(leaf, InternalError)
            return leaf
    internal = InternalError(error)
    internal.__cause__ = error
    return internal


def store_failure(error: BaseException) -> StoreError | None:
    """Return the error, or the one in a group, that says that the store as a whole failed. None if
    there is none, or if only a record cannot be read."""
    for leaf in leaves(error):
        if issubclass(type(leaf), StoreError):
            assert isinstance(leaf, StoreError)
            if not isinstance(leaf, StoreCorrupt) or leaf.key is None:
                return leaf
    return None


def _is_internal(error: BaseException) -> bool:
    kind = type(error)
    if issubclass(kind, InternalError):
        return True
    if issubclass(kind, _UNWINDS) or _is_marked(error):
        return False
    return not issubclass(kind, KeyrunError) or store_failure(error) is not None


def _is_marked(error: BaseException) -> bool:
    try:
        # Not `getattr`: the class of the error may answer for any name.
        return BaseException.__getattribute__(error, _MARK) is True
    except AttributeError:
        cause = error.__cause__ if type(error) is RuntimeError else None
        return isinstance(cause, _REPLACED) and _is_marked(cause)
