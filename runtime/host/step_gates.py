"""Step gates: the policies that every call of one function passes before it starts, over all runs.

The circuit breaker, the concurrency limit, the resources and the rate are one small module each. A
gate applies them one after the other. A call that waits at a gate holds no slot, and its attempt
has not started.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import attrs
import trio

from keyrun.runtime.errors import CircuitOpen
from keyrun.runtime.events import emitter
from keyrun.runtime.events.logs import log
from keyrun.runtime.host.slots import Slots
from keyrun.runtime.policies.circuit_breaker import Circuit
from keyrun.runtime.policies.rate_limit import Bucket
from keyrun.runtime.policies.resources import Quota, Resources
from keyrun.runtime.records.journal_entry import CallRecord, EntryKind
from keyrun.runtime.saturation import Saturation
from keyrun.runtime.values import CircuitState, CircuitStatus, FailureKind, Obstacle, Priority

if TYPE_CHECKING:
    from keyrun.runtime.definitions.step import StepFunction


A = TypeVar("A")
B = TypeVar("B")

Place = tuple[int, str]
"""The number of a run, and the name of its step."""


class GatedRun(emitter.EventRun, Protocol):
    """The run of a step that passes a gate."""

    @property
    def number(self) -> int: ...

    @property
    def run_id(self) -> str: ...

    @property
    def key(self) -> str: ...

    def leave_if_asked(self) -> None:
        """Stop waiting if the run was cancelled or the runtime drains."""

    def block(self, ident: str, obstacle: Obstacle) -> None:
        """Record what a call waits for."""

    def unblock(self, ident: str) -> None:
        """Record that a call does not wait any more."""


class HeldNode(NamedTuple):
    """A node that is held back: its run and name, and the node that has no room for more calls."""

    run: GatedRun
    node: str
    full: str


@attrs.frozen(kw_only=True)
class StepGateStatus:
    """Count the calls of a step that has policies."""

    step: str
    """The name of the step."""
    running: int
    """The number of calls that run."""
    waiting: int
    """The number of calls that wait for a policy."""
    held: int = 0
    """The number of nodes that the `max_waiting` of the step holds back now."""
    saturations: int = 0
    """The number of times that `max_waiting` began to hold back nodes."""
    seconds_saturated: float = 0.0
    """Seconds in which `max_waiting` held back nodes, in all."""


class GatePass:
    """The pass that a call holds while it runs. All calls in one era of their circuit share one."""

    __slots__ = ("_gate", "era")

    def __init__(self, gate: "StepGate", era: int) -> None:
        self._gate = gate
        self.era = era

    def end(self, memory: CallRecord, attempts: int) -> None:
        """Record that the call has ended. `attempts` is the number of attempts before it: if it has
        not grown, no attempt was made, or the attempt was cancelled."""
        succeeded: bool | None = None
        if memory.outcome is EntryKind.DONE:
            succeeded = True
        elif memory.attempts > attempts and memory.failure is not None:
            permanent = memory.failure.kind is FailureKind.PERMANENT_ERROR
            succeeded = None if permanent else False
        self._gate.leave(self.era, succeeded)

    def succeeded(self) -> None:
        """Record that the attempt succeeded without suspending, so it ended when it began."""
        gate = self._gate
        gate.leave(self.era, True, gate.looked_at)


class StepGate:
    """The policies of one function."""

    def __init__(
        self,
        step: "StepFunction[..., Any]",
        *,
        circuit: Circuit | None,
        slots: Slots | None,
        bucket: Bucket | None,
        quota: Quota | None,
        owner: str | None,
    ) -> None:
        options = step.set
        self.step = options.name
        self.need: Resources | None = options.resources
        self._fails = options.breaker is not None and options.breaker.when_open == "fail"
        self.circuit = circuit
        self.slots = slots
        self.bucket = bucket
        self.quota = quota if self.need is not None else None
        self.owner = owner
        """The graph whose nodes share the quota. None if all steps share it."""
        self.lacks = "; ".join(self.need.excess(quota.total)) if self.need and quota else ""
        """A description of the resources that it needs and the quota does not have, or ""."""
        self._most = options.max_waiting
        self._places: set[Place] = set()
        self._left = trio.Event()
        self.saturation: Saturation[HeldNode] = Saturation(self._report_saturation)
        """The periods in which `max_waiting` holds nodes back."""
        self.waiting = 0
        self.running = 0
        self.looked_at: float | None = None
        """The time at which the last call passed at once, if the rate limit needed it."""
        self._pass = GatePass(self, 0)

    def has_room(self, count: int) -> bool:
        """Return whether `count` more calls may wait. If none waits, any number may: otherwise a
        node with many calls could never start."""
        return self._most is None or not self._places or len(self._places) + count <= self._most

    def keep(self, place: Place) -> None:
        """Reserve a place for a call that is about to come."""
        self._places.add(place)

    def keeps(self, place: Place) -> bool:
        """Return whether a place is reserved for a call that has not passed yet."""
        return place in self._places

    def vacate(self, place: Place) -> None:
        """Give up a place, because the call has passed or will not come."""
        if place in self._places:
            self._places.remove(place)
            self.recheck()

    def recheck(self) -> None:
        """Let all nodes that wait for a place ask again."""
        self._left.set()
        self._left = trio.Event()

    def _report_saturation(self, held: HeldNode, waited: float, over: float | None) -> None:
        feed = held.run.feed
        if feed is not None:
            emitter.backpressure(
                feed,
                held.run.submission.about,
                depth=len(self._places),
                waited=waited,
                duration=over,
                step=held.full,
                held=held.node,
            )

    async def wait_for_place(self) -> None:
        """Return when a place may be free."""
        await self._left.wait()

    def enter_nowait(self, place: Place) -> GatePass | None:
        """Pass if no policy delays the call. Return None otherwise."""
        circuit, slots, quota, bucket = self.circuit, self.slots, self.quota, self.bucket
        # `_wait` asks a circuit that is not closed, because the call may have to wait.
        if self.waiting or (circuit is not None and circuit.state is not CircuitState.CLOSED):
            return None
        if slots is not None and not slots.free:
            return None
        if quota is not None and self.need is not None and not quota.ready(self.need):
            return None
        if bucket is not None:
            now = self.looked_at = trio.current_time()
            if not bucket.take_nowait(now):
                return None
        if slots is not None:
            slots.free -= 1
        if quota is not None:
            assert self.need is not None
            quota.take_nowait(self.need)
        if self._places:
            self.vacate(place)
        self.running += 1
        passed = self._pass
        if circuit is not None and circuit.era != passed.era:
            passed = self._pass = GatePass(self, circuit.era)
        return passed

    async def enter(self, run: GatedRun, priority: Priority, name: str, ident: str) -> GatePass:
        """Pass as soon as no policy delays the call `ident`. Raise `CircuitOpen` if the circuit is
        open and its policy is to fail."""
        place = (run.number, name)
        try:
            return self.enter_nowait(place) or await self._enter(run, priority, ident)
        finally:
            if self._places:
                self.vacate(place)

    async def _enter(self, run: GatedRun, priority: Priority, ident: str) -> GatePass:
        self.waiting += 1
        run.leave_if_asked()
        try:
            era = await self._wait(run, priority, ident)
        finally:
            self.waiting -= 1
            run.unblock(ident)
        self.running += 1
        return GatePass(self, era)

    async def _wait(self, run: GatedRun, priority: Priority, ident: str) -> int:
        slots, quota, bucket = self.slots, self.quota, self.bucket
        while True:
            run.block(ident, Obstacle.CIRCUIT)
            await self._circuit_lets_through(run)
            has_slot = has_need = False
            try:
                if slots is not None:
                    run.block(ident, Obstacle.MAX_CONCURRENT)
                    if not slots.take_nowait():
                        await slots.take(priority)
                    has_slot = True
                if quota is not None:
                    assert self.need is not None
                    run.block(ident, Obstacle.RESOURCES)
                    await quota.take(self.need, priority, lambda waited: self._warn(run, waited))
                    has_need = True
                if bucket is not None:
                    run.block(ident, Obstacle.RATE_LIMIT)
                    await bucket.take()
                era = 0 if self.circuit is None else self.circuit.admit()
                if era is not None:
                    has_slot = has_need = False
                    return era
            finally:
                if has_slot and slots is not None:
                    slots.give()
                if has_need and quota is not None and self.need is not None:
                    quota.give(self.need)

    def set_back(self) -> None:
        """Return the token of a call that passed and has to wait again: for a slot of the runtime,
        or for another suspect."""
        if self.bucket is not None:
            self.bucket.give_back()

    def begins_late(self) -> bool:
        """Return whether a call that passed and then waited may begin now. Calls that passed one by
        one must not begin together, and none may begin after the circuit was opened."""
        if self.circuit is not None and self.circuit.state is CircuitState.OPEN:
            return False
        return self.bucket is None or self.bucket.take_late(trio.current_time())

    async def _circuit_lets_through(self, run: GatedRun) -> None:
        circuit = self.circuit
        while circuit is not None and not circuit.lets_through:
            if self._fails:
                raise self.refusal(run)
            await circuit.wait()

    def refusal(self, run: GatedRun) -> CircuitOpen:
        """Return the error of a step that does not wait for its breaker."""
        assert self.circuit is not None
        status = self.circuit.status()
        return CircuitOpen(
            f"the circuit of step {self.step!r} is {status.state}: {status.failures} of its last "
            f"{status.calls} calls failed",
            status=status,
            run_id=run.run_id,
            key=run.key,
            step=self.step,
        )

    def _warn(self, run: GatedRun, waited: float) -> None:
        said = (
            f"step {self.step!r} has waited for {waited:g} s for {self.need!r}; "
            f"{self.quota.free if self.quota else {}} is free"
        )
        log(run, "starving", said)
        if run.feed is not None:
            emitter.starving(run.feed, run, self.step, waited, said)

    def leave(self, era: int, succeeded: bool | None, now: float | None = None) -> None:
        """Record that a call that passed has ended."""
        self.running -= 1
        if self.slots is not None:
            self.slots.give()
        if self.quota is not None and self.need is not None:
            self.quota.give(self.need)
        if self.circuit is not None:
            self.circuit.ended(era, succeeded, now)

    def status(self) -> StepGateStatus:
        """Return the numbers of calls that run and wait."""
        saturation = self.saturation
        return StepGateStatus(
            step=self.step,
            running=self.running,
            waiting=self.waiting,
            held=saturation.waiting,
            saturations=saturation.count,
            seconds_saturated=saturation.seconds,
        )


class StepGates:
    """The gates of a runtime. Steps of the same function and the same policies share one gate."""

    def __init__(
        self, resources: Resources | None, circuit_changed: Callable[[CircuitStatus], None]
    ) -> None:
        self._circuit_changed = circuit_changed
        self._parts: dict[tuple[Any, ...], Any] = {}
        self._quota = None if resources is None else Quota(resources)
        self.known: dict[tuple[Any, ...], StepGate] = {}

    def of(self, step: "StepFunction[..., Any]") -> StepGate:
        """Return the gate of a step."""
        cached = step.gate
        if cached is not None and cached[0] is self:
            found: StepGate = cached[1]
            return found
        options, origin = step.set, step.origin
        identity = (
            *(origin, options.breaker, options.rate, options.max_concurrent, options.max_waiting),
            *(options.resources, step.quota),
        )
        gate = self.known.get(identity)
        if gate is None:
            gate = self.known[identity] = self._make(step)
        step.gate = (self, gate)
        return gate

    def _make(self, step: "StepFunction[..., Any]") -> StepGate:
        options, origin = step.set, step.origin
        breaker, rate, most = options.breaker, options.rate, options.max_concurrent
        quota, owner = self._quota, None
        if step.quota is not None:
            owner, total = step.quota
            quota = self._part(total, owner, Quota)
        return StepGate(
            step,
            circuit=self._part(
                breaker, origin, lambda given: Circuit(options.name, given, self._circuit_changed)
            ),
            slots=self._part(most, origin, Slots),
            bucket=self._part(rate, origin, Bucket),
            quota=quota,
            owner=owner,
        )

    def _part(self, policy: A | None, origin: Any, make: Callable[[A], B]) -> B | None:
        """Return the object that applies a policy. It is the same for all steps with this policy
        and origin."""
        if policy is None:
            return None
        identity = (origin, type(policy), policy)
        if identity not in self._parts:
            self._parts[identity] = make(policy)
        part: B = self._parts[identity]
        return part

    def circuits(self) -> tuple[CircuitStatus, ...]:
        """Return the statuses of all circuits."""
        found = (part for part in self._parts.values() if isinstance(part, Circuit))
        return tuple(circuit.status() for circuit in found)

    def statuses(self) -> tuple[StepGateStatus, ...]:
        """Return the statuses of all gates."""
        return tuple(gate.status() for gate in self.known.values())
