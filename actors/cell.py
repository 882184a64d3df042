"""The cell of a key: its actor, its mailbox and its state.

A cell is in exactly one state. The worker that takes it out of `READY` owns it until it is settled:

    IDLE ──tell──► READY ──worker──► BOUND ──mailbox empty──► IDLE
                     ▲                 │ └──budget used up──► READY
                     │                 ├──crash──► BACKOFF ──time──► READY or IDLE
                     └──release──QUARANTINED◄──too many crashes

Invariants: The mailbox exists if and only if the cell is not idle. A cell is in the ready queue if
and only if it is `READY`. Tellers wait only while the mailbox is full.
"""

import enum
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Any, Final

import attrs
import trio

from keyrun._errors import KeyrunError
from keyrun.actors.actor import Actor


class CellState(enum.Enum):
    """The state of a cell."""

    IDLE = "idle"
    READY = "ready"
    BOUND = "bound"
    BACKOFF = "backoff"
    QUARANTINED = "quarantined"


# Looking a member up in its enum takes as long as a tenth of a message.
IDLE: Final = CellState.IDLE
READY: Final = CellState.READY
BOUND: Final = CellState.BOUND
BACKOFF: Final = CellState.BACKOFF
QUARANTINED: Final = CellState.QUARANTINED


class Order(enum.Enum):
    """An order of the system, which waits in the mailbox for its turn."""

    STOP = "stop"
    PASSIVATE = "passivate"


@attrs.define(eq=False)
class Envelope:
    """A message whose sender waits for the answer, or an order. At most one task waits."""

    message: Any
    _task: trio.lowlevel.Task | None = None
    accepted: bool = attrs.field(default=False, init=False)
    _settled: bool = False
    _answer: Any = None
    _failure: KeyrunError | None = None

    @property
    def is_stop(self) -> bool:
        """Return whether this is the order to stop the actor."""
        return self.message is Order.STOP

    @property
    def is_awaited(self) -> bool:
        """Return whether its sender waits for the answer, or for room in the mailbox."""
        return not self._settled and (self._task is not None or not self.accepted)

    def settle(self, answer: Any = None, failure: KeyrunError | None = None) -> None:
        """Pass the outcome to the waiting task. Only the first outcome counts, and it is dropped if
        no task waits."""
        if self._settled:
            return
        self._settled = True
        self._answer = answer
        self._failure = failure
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def outcome(self) -> Any:
        """Wait for the answer, or raise the failure. If the wait is cancelled, the message stays in
        the mailbox."""
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
    """A task that waits for room in a mailbox, and its message."""

    task: trio.lowlevel.Task
    message: Any
    accepted: bool = False
    refusal: KeyrunError | None = None


@attrs.define
class RestartHistory:
    """The restarts of a key that still count, and the error that its next actor receives."""

    times: list[float] = attrs.Factory(list)
    error: BaseException | None = None

    def forget(self, before: float) -> None:
        """Drop the restarts that happened `before` the window."""
        self.times = [time for time in self.times if time > before]

    def add(self, now: float, delay: float) -> None:
        """Count a restart that comes after `delay` seconds.

        The delay is added to the times of all earlier restarts. Otherwise a long delay would push
        them out of the window, and the key of a message that always crashes would never be
        quarantined.
        """
        self.times = [time + delay for time in (*self.times, now)]


@attrs.define(eq=False, weakref_slot=False)
class Cell:
    """One key. Rare attributes are None until they are used, so that an idle key stays small."""

    key: Hashable
    actor: Actor[Any, Any] | None = None
    mailbox: deque[Any] | None = None
    state: CellState = IDLE
    waiting: OrderedDict[Teller, None] | None = None
    crashes: RestartHistory | None = None
    idle_since: float | None = None
