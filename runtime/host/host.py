"""The host: everything that a process has once, shared by all partitions in it."""

import threading
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import trio

from keyrun.runtime.events import emitter
from keyrun.runtime.events.feed import Subscribers
from keyrun.runtime.events.transition_log import TransitionLog
from keyrun.runtime.host.asyncio_loop import AsyncioLoop
from keyrun.runtime.host.outside import OUTSIDE
from keyrun.runtime.host.overruns import Overruns
from keyrun.runtime.host.slots import Slots
from keyrun.runtime.host.wall_clock import SteadyClock
from keyrun.runtime.host.watchdog import LoopStatistics, Watchdog
from keyrun.runtime.logger import logger
from keyrun.runtime.redaction import Redaction
from keyrun.runtime.tuning import Tuning
from keyrun.runtime.values import UNSET

if TYPE_CHECKING:
    from keyrun.runtime.host.host_loop import HostLoop
    from keyrun.runtime.host.step_gates import StepGates
    from keyrun.runtime.host.tracing import TracerSource
    from keyrun.runtime.policies.resources import Resources
    from keyrun.runtime.redaction import Redact
    from keyrun.runtime.values import CircuitStatus


SHARED_PASS = 24
"""Runs that are driven before the loop of the host gets its turn, about a millisecond."""


class Host:
    """The slots, threads, clock, asyncio loop and shared limits of a process."""

    def __init__(
        self,
        *,
        wall: Callable[[], float],
        max_concurrent_steps: int,
        resources: "Resources | None" = None,
        host_loop: "HostLoop | None" = None,
        tracing: "TracerSource | None" = None,
        redact: "Redact | None" = None,
        tuning: Tuning = Tuning(),  # noqa: B008 (frozen)
    ) -> None:
        self.outside = OUTSIDE.get()
        """Receives what code outside of Trio does; None if there is no listener."""
        self.wall = wall
        self.steady = SteadyClock(wall)
        self.redaction = Redaction(redact)
        """What log lines, traces, the audit log and the HTTP API show."""
        self.slots = Slots(max_concurrent_steps)
        self.threads = trio.CapacityLimiter(max_concurrent_steps)
        self.overruns = Overruns()
        self.asyncio: AsyncioLoop | HostLoop = (
            AsyncioLoop(self.redaction) if host_loop is None else host_loop
        )
        """Runs the steps with `asyncio=True`."""
        shares_loop = host_loop is not None and not host_loop.in_thread
        self.pass_size = SHARED_PASS if shares_loop else None
        """How many runs may be driven before the loop of the host gets its turn; None if the loop
        is Trio's own."""
        self.lifespan_value: Any = UNSET
        """The value that the `lifespan` of the runtime yielded."""
        self.face: Callable[[], Any]
        """Returns the runtime for the code that asks: on Trio, on asyncio or in a thread. The
        wiring sets it."""
        if host_loop is None or host_loop.in_thread:
            self.watchdog = Watchdog(tuning)
        else:
            self.watchdog = Watchdog(tuning, host_loop.is_closed)
        if host_loop is not None and host_loop.in_thread:
            self.watchdog.watch(host_loop.thread, host_loop.loop.call_soon_threadsafe)
        self._longest_pass = None if host_loop is None else host_loop.longest_pass
        self.suspects = trio.Lock()
        """Held by the one suspect step that may run; see `max_interruptions`."""
        self.token = trio.lowlevel.current_trio_token()
        self.thread = threading.get_ident()
        """The thread that Trio runs in."""
        self.subscribers = Subscribers()
        """The listeners to events of all partitions."""
        self.transitions = TransitionLog(self.subscribers)
        self._resources = resources
        self.tracer = None if tracing is None else tracing.start(wall)
        """Makes spans of runs and attempts; None if tracing is off."""

    @property
    def background(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that have to run while a partition uses the host."""
        return self.asyncio.run, self.overruns.run

    def loop_statistics(self) -> LoopStatistics:
        """Return how late the event loop is."""
        loop, longest = self.watchdog.loop, self._longest_pass
        return LoopStatistics(
            lag=loop.lag,
            longest_lag=loop.longest_lag,
            longest_pass=None if longest is None else longest(),
        )

    @cached_property
    def gates(self) -> "StepGates":
        """Return the gates of steps with policies. They are imported for the first such step."""
        from keyrun.runtime.host.step_gates import StepGates

        return StepGates(self._resources, self._circuit_changed)

    def _circuit_changed(self, status: "CircuitStatus") -> None:
        said = (
            f"the circuit of step {status.step!r} is {status.state}: {status.failures} of its last "
            f"{status.calls} calls failed"
        )
        logger.warning("%s", said, extra={"event": f"circuit_{status.state}", "step": status.step})
        self.subscribers.publish([emitter.circuit_changed(self.wall(), status, said)])
