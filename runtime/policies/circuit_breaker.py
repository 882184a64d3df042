"""Circuit breakers: stop calling a function for a while when its calls are likely to fail.

    closed ── too many of the last calls failed ──► open ── its time is up ──► half-open
       ▲                                             ▲                            │
       │                                             └───── a probe failed ◄──────┤
       └───────────────────── enough probes succeeded ◄───────────────────────────┘

All runs of a runtime that call the same function share one circuit. It is in memory only and closed
after a restart. Every attempt is a call. Permanent errors and cancelled attempts do not count,
because they do not show whether the called service works.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import attrs
import trio

from keyrun.runtime.values import CircuitState, CircuitStatus


def _positive(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{attribute.name} must be positive, got {value!r}")


def _count(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{attribute.name} must be a whole number of at least 1, got {value!r}")


@attrs.frozen(kw_only=True)
class CircuitBreaker:
    """When to stop calling: as soon as `failure_rate` of the last calls failed, once there were
    `minimum_calls`. Counted are the last `window_calls` of the last `window_seconds`. After
    `open_for` seconds so many probes are let through as have to succeed, `half_open_successes`.

    While it is open a step waits, at no cost in attempts; with `when_open="fail"` it fails with
    `CircuitOpen` instead.
    """

    failure_rate: float = attrs.field(default=0.5, validator=_positive)
    minimum_calls: int = attrs.field(default=10, validator=_count)
    open_for: float = attrs.field(default=30.0, validator=_positive)
    half_open_successes: int = attrs.field(default=3, validator=_count)
    window_calls: int = attrs.field(default=100, validator=_count)
    window_seconds: float = attrs.field(default=60.0, validator=_positive)
    when_open: Literal["wait", "fail"] = "wait"

    def __attrs_post_init__(self) -> None:
        if self.failure_rate > 1:
            raise ValueError(f"failure_rate must be at most 1, got {self.failure_rate!r}")
        if self.minimum_calls > self.window_calls:
            raise ValueError(
                f"minimum_calls must be at most window_calls, which is {self.window_calls}, got "
                f"{self.minimum_calls!r}"
            )
        if self.when_open not in ("wait", "fail"):
            raise ValueError(f"when_open must be 'wait' or 'fail', got {self.when_open!r}")


class Circuit:
    """The state of a breaker. `tell` hears of every change."""

    def __init__(
        self,
        step: str,
        breaker: CircuitBreaker,
        tell: Callable[[CircuitStatus], None] = lambda status: None,
    ) -> None:
        self.step = step
        self.breaker = breaker
        self._tell = tell
        self.state = CircuitState.CLOSED
        self._calls: deque[tuple[float, bool]] = deque()
        self._failures = 0
        self._until = 0.0
        self._opened = 0
        self.era = 0
        """Goes up with every change: calls of an earlier one say nothing any more."""
        self._probes = 0
        self._successes = 0
        self._changed = trio.Event()

    def admit(self) -> int | None:
        """Let a call through: what to say when it is over, or None if it may not be made."""
        if self.state is CircuitState.CLOSED:
            return self.era
        if self.state is CircuitState.OPEN:
            if trio.current_time() < self._until:
                return None
            self._become(CircuitState.HALF_OPEN)
        if self._probes + self._successes >= self.breaker.half_open_successes:
            return None
        self._probes += 1
        return self.era

    @property
    def lets_through(self) -> bool:
        """Whether a call may be made."""
        if self.state is CircuitState.CLOSED:
            return True
        if self.state is CircuitState.OPEN:
            return trio.current_time() >= self._until
        return self._probes + self._successes < self.breaker.half_open_successes

    async def wait(self) -> None:
        """Return when it is worth asking again."""
        changed = self._changed
        if self.state is CircuitState.OPEN:
            with trio.move_on_at(self._until):
                await changed.wait()
        else:
            await changed.wait()

    def ended(self, era: int, succeeded: bool | None, now: float | None = None) -> None:
        """A call that was let through is over, `now` if the time is known; None if it says
        nothing."""
        if era != self.era:
            return
        if self.state is CircuitState.HALF_OPEN:
            self._probed(succeeded)
        elif succeeded is not None:
            calls, breaker = self._calls, self.breaker
            if now is None:
                now = trio.current_time()
            calls.append((now, succeeded))
            if not succeeded:
                self._failures += 1
            oldest = now - breaker.window_seconds
            while calls[0][0] < oldest or len(calls) > breaker.window_calls:
                self._failures -= not calls.popleft()[1]
            failures, made = self._failures, len(calls)
            enough = failures and made >= breaker.minimum_calls
            if enough and failures >= breaker.failure_rate * made:
                self._open()

    def _probed(self, succeeded: bool | None) -> None:
        self._probes -= 1
        if succeeded is None:
            self._change()
        elif not succeeded:
            self._open()
        else:
            self._successes += 1
            if self._successes >= self.breaker.half_open_successes:
                self._clear()
                self._become(CircuitState.CLOSED)

    def _open(self) -> None:
        self._opened += 1
        self._until = trio.current_time() + self.breaker.open_for
        self._become(CircuitState.OPEN)

    def _clear(self) -> None:
        self._calls.clear()
        self._failures = 0

    def _become(self, state: CircuitState) -> None:
        self.state = state
        self.era += 1
        self._probes = self._successes = 0
        self._change()
        self._tell(self.status())

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def status(self) -> CircuitStatus:
        """How it stands."""
        calls = len(self._calls)
        is_open = self.state is CircuitState.OPEN
        return CircuitStatus(
            step=self.step,
            state=self.state,
            calls=calls,
            failures=self._failures,
            failure_rate=self._failures / calls if calls else 0.0,
            opened=self._opened,
            retry_in=max(0.0, self._until - trio.current_time()) if is_open else 0.0,
        )
