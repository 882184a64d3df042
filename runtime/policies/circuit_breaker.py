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
from typing import Literal

import attrs
import trio

from keyrun.runtime.validators import at_least, positive
from keyrun.runtime.values import CircuitState, CircuitStatus


@attrs.frozen(kw_only=True)
class CircuitBreaker:
    """Stop the calls of a function for a while after too many of them failed.

    The circuit opens when at least `failure_rate` of the calls in the window failed. After
    `open_for` seconds it is half-open and lets `half_open_successes` probes through. If all of them
    succeed, it closes. If one fails, it opens again. All runs of a runtime share the circuit. It is
    in memory only, and closed after a restart.
    """

    failure_rate: float = attrs.field(default=0.5, validator=positive)
    """The share of failed calls that opens the circuit, at most 1."""
    minimum_calls: int = attrs.field(default=10, validator=at_least(1))
    """The number of calls in the window before the circuit can open."""
    open_for: float = attrs.field(default=30.0, validator=positive)
    """Seconds that an open circuit makes no calls."""
    half_open_successes: int = attrs.field(default=3, validator=at_least(1))
    """The number of probes that have to succeed to close the circuit."""
    window_calls: int = attrs.field(default=100, validator=at_least(1))
    """The window has at most this number of calls, the latest ones."""
    window_seconds: float = attrs.field(default=60.0, validator=positive)
    """The window has the calls of this number of seconds."""
    when_open: Literal["wait", "fail"] = "wait"
    """With `"wait"`, a step waits while the circuit is open, which uses up no attempt. With
    `"fail"` it fails with the kind `circuit_open`."""

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
    """The state of a breaker. `on_change` is called with the status after every change of it."""

    def __init__(
        self,
        step: str,
        breaker: CircuitBreaker,
        on_change: Callable[[CircuitStatus], None] = lambda status: None,
    ) -> None:
        self.step = step
        self.breaker = breaker
        self._on_change = on_change
        self.state = CircuitState.CLOSED
        self._calls: deque[tuple[float, bool]] = deque()
        self._failures = 0
        self._until = 0.0
        self._opened = 0
        self.era = 0
        """The number of changes. A call that was admitted in an earlier era no longer counts."""
        self._probes = 0
        self._successes = 0
        self._changed = trio.Event()

    def admit(self) -> int | None:
        """Admit a call. Return the era to pass to `ended`, or None if the call must not be made."""
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
        """Return whether a call may be made."""
        if self.state is CircuitState.CLOSED:
            return True
        if self.state is CircuitState.OPEN:
            return trio.current_time() >= self._until
        return self._probes + self._successes < self.breaker.half_open_successes

    async def wait(self) -> None:
        """Return when the circuit may let a call through."""
        changed = self._changed
        if self.state is CircuitState.OPEN:
            with trio.move_on_at(self._until):
                await changed.wait()
        else:
            await changed.wait()

    def ended(self, era: int, succeeded: bool | None, now: float | None = None) -> None:
        """Record that an admitted call has ended, at `now` if the time is known. `succeeded` is
        None if the call does not count."""
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
        self._on_change(self.status())

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    @property
    def opened_at(self) -> float | None:
        """Return when the circuit opened, on Trio's clock. None unless it is open."""
        return self._until - self.breaker.open_for if self.state is CircuitState.OPEN else None

    def status(self) -> CircuitStatus:
        """Return the state and the numbers of the circuit."""
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
