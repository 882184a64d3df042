"""Virtual time that stands still while code outside of Trio is at work.

Trio's `MockClock` jumps as soon as all tasks wait. It would also jump while a step runs in a thread
or on the loop of the application, and the step would run out of time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import ClassVar, Literal, TypeAlias, get_args
from weakref import WeakKeyDictionary

import trio
from trio.testing import MockClock

from keyrun.runtime.host.outside import OUTSIDE

Threads: TypeAlias = Literal["inline", "real"]
"""Whether virtual time stands still while a sync step or a sync hook runs in its thread."""


class VirtualTime:
    """Lets a `MockClock` jump only while no code outside of Trio is at work: no step in a thread or
    on the loop of the application, and not the application itself, if it is not on Trio. Code that
    waits for a call of the runtime is not at work."""

    _of: ClassVar["WeakKeyDictionary[MockClock, VirtualTime]"] = WeakKeyDictionary()

    def __init__(self, clock: MockClock) -> None:
        self._threshold = clock.autojump_threshold
        self._calls_of: dict[int, int] = {}
        """For all code that has begun, by identity, the number of calls that it waits for."""
        self._callers: dict[int, int] = {}
        """For each of these calls, by identity, the code that waits."""

    @classmethod
    def of(cls, clock: MockClock) -> "VirtualTime":
        """Return the virtual time of a clock. Runtimes on the same clock share it."""
        if clock not in cls._of:
            cls._of[clock] = cls(clock)
        return cls._of[clock]

    def begin(self, clock: MockClock, code: object) -> None:
        """Record that code is at work."""
        self._calls_of[id(code)] = 0
        self._apply(clock)

    def end(self, clock: MockClock, code: object) -> None:
        """Record that code has returned."""
        self._calls_of.pop(id(code), None)
        self._apply(clock)

    def wait(self, clock: MockClock, call: object, code: object) -> None:
        """Record that code waits for a call. Code that has not begun is ignored."""
        if id(code) in self._calls_of:
            self._callers[id(call)] = id(code)
            self._calls_of[id(code)] += 1
            self._apply(clock)

    def resume(self, clock: MockClock, call: object) -> None:
        """Record that a call has ended."""
        caller = self._callers.pop(id(call), None)
        if caller in self._calls_of:
            self._calls_of[caller] -= 1
            self._apply(clock)

    def _apply(self, clock: MockClock) -> None:
        threshold = inf if 0 in self._calls_of.values() else self._threshold
        if clock.autojump_threshold != threshold:
            clock.autojump_threshold = threshold


class TimeWatch:
    """Reports to virtual time what happens outside of one runtime."""

    def __init__(self, clock: MockClock, threads: Threads = "inline") -> None:
        if threads not in get_args(Threads):
            raise ValueError(f"threads must be 'inline' or 'real', got {threads!r}")
        self._clock = clock
        self._time = VirtualTime.of(clock)
        self._inline = threads == "inline"

    @property
    def clock(self) -> trio.abc.Clock:
        """Return the clock on which Trio runs."""
        return self._clock

    def begin(self, code: object, *, in_thread: bool = False) -> None:
        """Record that code begins to run."""
        if self._inline or not in_thread:
            self._time.begin(self._clock, code)

    def end(self, code: object) -> None:
        """Record that code has returned."""
        self._time.end(self._clock, code)

    def wait(self, call: object, code: object) -> None:
        """Record that code waits for a call of the runtime."""
        self._time.wait(self._clock, call, code)

    def resume(self, call: object) -> None:
        """Record that a call has ended."""
        self._time.resume(self._clock, call)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the runtime that is opened in the block."""
        token = OUTSIDE.set(self)
        try:
            yield
        finally:
            OUTSIDE.reset(token)
