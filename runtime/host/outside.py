"""Code outside of Trio: the application on another host, steps in threads, and steps on the asyncio
loop of the application.

Trio cannot see whether such code is at work. A runtime reports it to an `Outside`, if it has one.
Only `keyrun.testing` gives it one: virtual time must not pass while code outside of Trio is at
work. All methods are called in Trio's thread.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol

import trio


class Outside(Protocol):
    """Receives what code outside of Trio does. Such code is a step, named by its `CurrentStep`, or
    the application, named by None."""

    @property
    def clock(self) -> trio.abc.Clock:
        """Return the clock on which Trio runs."""

    def begin(self, code: object, *, in_thread: bool) -> None:
        """Record that code begins to run, in a thread or on the asyncio loop."""

    def end(self, code: object) -> None:
        """Record that code has returned."""

    def wait(self, call: object, code: object) -> None:
        """Record that code waits for a call of the runtime. Code may wait for several calls."""

    def resume(self, call: object) -> None:
        """Record that a call has ended. Does nothing if nothing waits for it."""


OUTSIDE: ContextVar[Outside | None] = ContextVar("keyrun_outside", default=None)
"""Where a runtime that is opened in this context reports."""

_UNWATCHED = nullcontext()


def at_work(
    outside: Outside | None, code: object, *, in_thread: bool
) -> AbstractContextManager[None]:
    """Return a block in which code outside of Trio runs."""
    return _UNWATCHED if outside is None else _watched(outside, code, in_thread)


@contextmanager
def _watched(outside: Outside, code: object, in_thread: bool) -> Iterator[None]:
    outside.begin(code, in_thread=in_thread)
    try:
        yield
    finally:
        outside.end(code)
