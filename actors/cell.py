"""What the system keeps per key: the cell, and what may lie in its mailbox besides messages.

A cell is in exactly one state. Whoever takes it out of `READY` owns it until it is settled:

    IDLE ──tell──► READY ──worker──► BOUND ──mailbox empty──► IDLE
                     ▲                 │ └──budget used up──► READY
                     │                 ├──crash──► BACKOFF ──time──► READY or IDLE
                     └──release──QUARANTINED◄──too many crashes

Invariants: the mailbox exists if and only if the cell is not idle; a cell stands in the ready
queue exactly while it is `READY`; tellers wait only while the mailbox is full.
"""

import enum
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Any, Final

import attrs
import trio

from keyrun._errors import KeyrunError
from keyrun.actors.actor import Actor


class State(enum.Enum):
    """Where a key stands."""

    IDLE = "idle"
    READY = "ready"
    BOUND = "bound"
    BACKOFF = "backoff"
    QUARANTINED = "quarantined"


# Looking a member up in its enum takes as long as a tenth of a message.
IDLE: Final = State.IDLE
READY: Final = State.READY
BOUND: Final = State.BOUND
BACKOFF: Final = State.BACKOFF
QUARANTINED: Final = State.QUARANTINED


class Order(enum.Enum):
    """What the system itself puts into a mailbox, so that it happens in its turn."""

    STOP = "stop"
    PASSIVATE = "passivate"


@attrs.define(eq=False)
class Envelope:
    """A message that somebody waits for, or an order. At most one task waits."""

    message: Any
    _task: trio.lowlevel.Task | None = None
    accepted: bool = attrs.field(default=False, init=False)
    _settled: bool = False
    _answer: Any = None
    _failure: KeyrunError | None = None

    @property
    def is_stop(self) -> bool:
        """Whether this is the order that ends the present actor."""
        return self.message is Order.STOP

    @property
    def is_awaited(self) -> bool:
        """Whether its sender waits for the answer, or for room."""
        return not self._settled and (self._task is not None or not self.accepted)

    def settle(self, answer: Any = None, failure: KeyrunError | None = None) -> None:
        """Pass the outcome on. The first one counts; without a waiting task it is dropped."""
        if self._settled:
            return
        self._settled = True
        self._answer = answer
        self._failure = failure
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def outcome(self) -> Any:
        """Wait for the answer, or raise the failure. Cancelling it leaves the message queued."""
        if not self._settled:

            def abandon(_: object) -> trio.lowlevel.Abort:
                self._task = None
                return trio.lowlevel.Abort.SUCCEEDED

            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abandon)
        if self._failure is not None:
            raise self._failure
        return self._answer


@attrs.define(eq=False)
class Teller:
    """A task that waits for room in a mailbox, with the message it brings."""

    task: trio.lowlevel.Task
    message: Any
    accepted: bool = False
    refusal: KeyrunError | None = None


@attrs.define
class Crashes:
    """The restarts of a key that still count, and the error that its next actor is told."""

    times: list[float] = attrs.Factory(list)
    error: BaseException | None = None

    def forget(self, before: float) -> None:
        """Drop the restarts that happened `before` the window."""
        self.times = [time for time in self.times if time > before]

    def add(self, now: float, delay: float) -> None:
        """Count a restart that comes after `delay` seconds.

        The wait must not push earlier restarts out of the window, or long delays would keep a
        message that always crashes from ever being quarantined: they all move along with it.
        """
        self.times = [time + delay for time in (*self.times, now)]


@attrs.define(eq=False, weakref_slot=False)
class Cell:
    """One key. The rare things are `None` until they happen: an idle key must stay small."""

    key: Hashable
    actor: Actor[Any, Any] | None = None
    mailbox: deque[Any] | None = None
    state: State = IDLE
    waiting: OrderedDict[Teller, None] | None = None
    crashes: Crashes | None = None
    idle_since: float | None = None
