"""The watchdog: notices that an event loop does not answer, and which step holds it.

A thread asks each loop for an answer every `period` seconds. The time until the answer is the lag
of the loop. While an answer is missing, the thread looks at what the thread of the loop runs:

- A step that has held the loop for `limit` seconds is logged at once, and emitted when the loop
  answers. A step that gives the loop a pass in between is not meant.
- A step that has never suspended and has exceeded its timeout meanwhile counts as timed out.
- The timeouts of all other steps are extended by the time that it held the loop, before Trio looks
  at them. So a step that another one delayed keeps its result.

Steps pay nothing for this: the functions that call them are known by their code (`calls_a_step`),
and nothing is noted when they are called. Trio calls the watchdog in its passes only while the loop
is late. On a virtual clock there is no watchdog.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar

import attrs
import trio

from keyrun.runtime.events import emitter
from keyrun.runtime.events.logs import fields, log
from keyrun.runtime.logger import logger
from keyrun.runtime.tuning import Tuning

F = TypeVar("F", bound=Callable[..., Any])

Post: TypeAlias = Callable[[Callable[[], object]], object]
"""Calls a function in the thread of a loop soon. May be called in any thread."""


class WatchedStep(emitter.EventStep, Protocol):
    """The attempt of a step, in the thread of its loop."""

    over: bool

    def expire(self, now: float) -> None:
        """Let the attempt count as timed out, if it has not suspended and its time is up."""

    def extend(self, seconds: float) -> None:
        """Extend the timeout of the attempt."""


class Holder(NamedTuple):
    """A step that a loop runs."""

    run: emitter.EventRun
    current: WatchedStep


class Stretch(NamedTuple):
    """A time during which a loop ran one step, or something else, in one pass."""

    since: float
    until: float
    current: WatchedStep | None


@attrs.frozen(kw_only=True)
class LoopStatistics:
    """Hold how late the event loop is. `rt.statistics().loop` returns this.

    Keyrun measures the lag about five times per second. On a virtual clock it is always 0."""

    lag: float
    """Seconds that the loop took to answer the last time."""
    longest_lag: float
    """Seconds that the loop took to answer, at most, since the runtime was opened."""
    longest_pass: float | None
    """Seconds that Keyrun held the loop of an asyncio program without a pause, at most. None if
    Keyrun has a loop of its own."""


_codes: set[CodeType] = set()


def calls_a_step(function: F) -> F:
    """Register a coroutine function that calls the function of a step. Its variables `run` and
    `current` say which."""
    _codes.add(function.__code__)
    return function


class WatchedLoop:
    """One event loop. `log_lag` says whether to log when the loop is late."""

    def __init__(
        self,
        thread: int,
        post: Post,
        tuning: Tuning,
        *,
        log_lag: bool,
        follow: Callable[[bool], None] = lambda late: None,
    ) -> None:
        self._thread = thread
        self._post = post
        self._period, self._limit = tuning.watchdog_period, tuning.watchdog_limit
        self._log_lag = log_lag
        self._follow = follow
        self._clock = trio.lowlevel.current_clock()
        self._token = trio.lowlevel.current_trio_token()
        self.passes = 0
        """Passes of the loop, counted while it is late."""
        self.is_late = False
        """Whether the loop has not answered for one period."""
        self.lag = self.longest_lag = 0.0
        self._lock = threading.Lock()
        """Held while one of the two threads changes what follows."""
        self._answered_at: float | None = self._clock.current_time()
        """When the last answer came. None while one is missing."""
        self._asked_at = 0.0
        self._seen: list[Stretch] = []
        """The stretches that the loop has run since the last answer."""
        self._seen_pass = 0
        """The pass of the last stretch."""
        self._credited = 0.0
        """Up to when the timeouts of steps were extended."""
        self._reported: Holder | None = None
        self._is_logged = False

    def look(self, due: float, now: float) -> None:
        """Ask, or look at what keeps the loop from answering. `due` is when this should have been
        called. Called in the thread of the watchdog."""
        with self._lock:
            since = None
            if self._answered_at is not None:
                since, self._answered_at = self._answered_at, None
                # If this is late, the thread of the loop did not let this thread run.
                self._asked_at = due
                self._post(self._answer)
            frame = sys._current_frames().get(self._thread)
            holder = _holder_of(frame)
            held = self._note(since, holder, now)
            late = now - self._asked_at
            if late >= self._period and not self.is_late:
                self.is_late = True
                self._follow(True)
            if holder is not None and held + self._period >= holder.current.timeout:
                holder.current.expire(now)
            is_new = not self._is_logged
            if holder is not None and held >= self._limit:
                is_new = self._reported is None or self._reported.current is not holder.current
                self._reported = holder
            elif holder is not None or late < self._limit or not self._log_lag:
                is_new = False
            self._is_logged = self._is_logged or is_new
        if is_new and frame is not None:
            _log(frame, holder, late if holder is None else held)

    def _note(self, since: float | None, holder: Holder | None, now: float) -> float:
        """Note what the loop runs. Return for how many seconds it has certainly run that. `since`
        is given for a new question."""
        current = None if holder is None else holder.current
        if since is not None:
            self._seen = [Stretch(since, now, current)]
        elif self._seen[-1].current is current and self._seen_pass == self.passes:
            self._seen[-1] = self._seen[-1]._replace(until=now)
        else:
            self._seen.append(Stretch(self._seen[-1].until, now, current))
        self._seen_pass = self.passes
        return now - max(self._seen[-1].since, self._asked_at)

    def _answer(self) -> None:
        """Note how late the answer is. Called in the thread of the loop."""
        with self._lock:
            now = self._clock.current_time()
            self._answered_at = now
            if self.is_late:
                self.is_late = False
                self._follow(False)
            self.lag = lag = max(0.0, now - self._asked_at)
            self.longest_lag = max(self.longest_lag, lag)
            seen, self._seen = self._stretches(now), []
            reported, self._reported = self._reported, None
            self._is_logged = False
        if reported is not None:
            current = reported.current
            held = max(each.until - each.since for each in seen if each.current is current)
            self._token.run_sync_soon(_emit, reported, held)
        if lag >= self._limit and self._log_lag:
            said = "the event loop answered %.1f s late"
            logger.warning(said, lag, extra=fields("loop_lag", None, None, None))

    def late_by(self) -> float:
        """Return how late the last answer was, or is by now if it is missing for longer. May be
        called in any thread."""
        with self._lock:
            if self._answered_at is not None:
                return self.lag
            return max(self.lag, self._clock.current_time() - self._asked_at)

    def _stretches(self, now: float) -> list[Stretch]:
        """Return what was seen, up to now."""
        return [*self._seen[:-1], self._seen[-1]._replace(until=now)] if self._seen else []

    def credit(self, attempts: Iterable[WatchedStep]) -> None:
        """Extend the timeouts of attempts by the time that others have held this loop. Called in
        its thread."""
        with self._lock:
            now = self._clock.current_time()
            after, self._credited = self._credited, now
            seen = [each for each in self._stretches(now) if each.until > after]
        for current in attempts:
            if current.until is None:
                continue
            begun = max(after, current.until - current.timeout)
            others = [each for each in seen if each.current is not current]
            delay = sum(max(0.0, each.until - max(each.since, begun)) for each in others)
            if delay > 0:
                current.extend(delay)


def _holder_of(frame: FrameType | None) -> Holder | None:
    """Return the step that a thread runs."""
    while frame is not None:
        if frame.f_code in _codes:
            seen = frame.f_locals
            run, current = seen.get("run"), seen.get("current")
            return None if run is None or current is None or current.over else Holder(run, current)
        frame = frame.f_back
    return None


def _log(frame: FrameType, holder: Holder | None, seconds: float) -> None:
    """Log what keeps a loop from answering."""
    code = frame.f_code
    at = f"it runs {code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
    if holder is None:
        said = "the event loop has not answered for %.1f s; %s"
        logger.warning(said, seconds, at, extra=fields("loop_lag", None, None, None))
        return
    run, current = holder
    said = (
        f"step {current.step!r} has held the event loop for {seconds:.1f} s; {at}; declare a step "
        "that blocks as a plain function (def), which runs in a thread"
    )
    log(run, "step_blocked", said, current=current)


def _emit(reported: Holder, held: float) -> None:
    """Emit that a step held a loop."""
    run, current = reported
    if run.feed is not None:
        why = f"step {current.step!r} held the event loop for {held:.1f} s"
        emitter.blocked(run.feed, run, current, held, why)


class Watchdog(trio.abc.Instrument):
    """Watches the loop that a runtime runs on, and further loops of its steps."""

    attempts: Callable[[], Iterable[WatchedStep]] = staticmethod(tuple)
    """Returns the attempts that have suspended. The wiring sets it."""

    def __init__(self, tuning: Tuning, is_closed: Callable[[], bool] = lambda: False) -> None:
        self._is_closed = is_closed
        """Returns whether the application has closed the loop, which never answers then."""
        self._tuning = tuning
        self._clock = trio.lowlevel.current_clock()
        self.loop = WatchedLoop(
            threading.get_ident(),
            trio.lowlevel.current_trio_token().run_sync_soon,
            tuning,
            log_lag=True,
            follow=self._follow,
        )
        # Trio's own functions for this work only in its thread, which is held when they are needed.
        self._instruments = trio.lowlevel.current_task()._runner.instruments
        self._loops = [self.loop]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, thread: int, post: Post) -> None:
        """Watch the loop of an application as well, for the steps that it runs."""
        self._loops.append(WatchedLoop(thread, post, self._tuning, log_lag=False))

    def __enter__(self) -> None:
        second = self._clock.deadline_to_sleep_time(self._clock.current_time() + 1)
        if 0.5 < second < 1.5:  # the clock is not a virtual one
            self._thread = threading.Thread(target=self._run, name="keyrun watchdog", daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._follow(False)

    def _follow(self, late: bool) -> None:
        """Let Trio call `after_io_wait` while the loop is late. A call for each pass, also of a
        loop that is not late, takes 5 % of the time of a short run."""
        if late:
            self._instruments.add_instrument(self)
        elif self in self._instruments["_all"]:
            self._instruments.remove_instrument(self)

    def after_io_wait(self, timeout: float) -> None:
        """Extend timeouts, and count a pass. Trio calls this before it looks at timeouts."""
        self.loop.passes += 1
        self.credit()

    def credit(self) -> None:
        """Extend the timeouts of attempts if others hold the loop. Called in its thread."""
        if self.loop.is_late:
            self.loop.credit(self.attempts())

    def _report_closed(self) -> NoReturn:
        """Log that the application has closed the loop, and keep what Trio had in memory for the
        rest of the process: Python would execute its `finally` blocks outside of Trio."""
        logger.error(
            "the event loop was closed inside of a block of keyrun.asyncio.open_runtime, so Keyrun "
            "stopped as in a crash: nothing that was acknowledged is lost, and unfinished runs "
            "resume at the next open; leave the block before the loop closes",
            extra=fields("loop_closed", None, None, None),
        )
        while True:
            threading.Event().wait()

    def _run(self) -> None:
        period = self._tuning.watchdog_period
        due = self._clock.current_time() + period
        while not self._stop.wait(max(0.0, due - self._clock.current_time())):
            now = self._clock.current_time()
            if self._is_closed():
                self._report_closed()
            for loop in self._loops:
                try:
                    loop.look(due, now)
                except RuntimeError:
                    # The loop has ended, and so has the runtime or its block.
                    self._loops = [each for each in self._loops if each is not loop]
            due = now + period
