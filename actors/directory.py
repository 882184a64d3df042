"""The directory: the cells of all keys that have an actor, messages or crashes that count.

Only the directory makes and drops mailboxes, and admits waiting tellers.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any

import trio

from keyrun._errors import KeyrunError
from keyrun.actors.cell import IDLE, Cell, Envelope, Order, Teller
from keyrun.actors.errors import SystemClosed
from keyrun.actors.pool import Pool

MAX_SPARE = 256
"""Mailboxes that are kept for reuse. An empty deque takes 600 bytes, so idle cells have none."""


class Directory:
    """Finds, makes and drops cells, and puts things into their mailboxes."""

    def __init__(self, pool: Pool, capacity: int) -> None:
        self.cells: dict[Any, Cell] = {}
        self.capacity = capacity
        self.is_open = False
        self.on_idle: Callable[[Cell], None] | None = None
        self._pool = pool
        self.spare: list[deque[Any]] = []

    def create(self, key: Hashable) -> Cell:
        """Make the cell of a key that has none."""
        if not self.is_open:
            raise SystemClosed
        cell = self.cells[key] = Cell(key)
        return cell

    def drop(self, cell: Cell) -> None:
        """Drop an idle cell."""
        self.cells.pop(cell.key, None)
        cell.actor = None

    def close(self) -> list[Cell]:
        """Accept no more messages. Return all cells."""
        self.is_open = False
        cells = list(self.cells.values())
        self.cells.clear()
        return cells

    def post(self, cell: Cell, item: Any) -> None:
        """Put a message or an order into a mailbox, whether or not there is room."""
        if cell.mailbox is None:
            cell.mailbox = self.spare.pop() if self.spare else deque()
            cell.mailbox.append(item)
            self._pool.push(cell)
        else:
            cell.mailbox.append(item)

    async def wait_for_room(self, cell: Cell, item: Any) -> None:
        """Wait until `item` is in the mailbox. Tasks that wait are served in order."""
        waiting = cell.waiting
        if waiting is None:
            waiting = cell.waiting = OrderedDict()
        teller = Teller(trio.lowlevel.current_task(), item)
        waiting[teller] = None

        def leave(_: object) -> trio.lowlevel.Abort:
            del waiting[teller]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(leave)
        if not teller.accepted:
            raise teller.refusal or SystemClosed()

    def admit(self, cell: Cell) -> None:
        """Move the messages of waiting tellers into the mailbox while it has room.

        The message is moved here, and not by its teller when that resumes, so that no later message
        overtakes it.
        """
        assert cell.mailbox is not None
        while cell.waiting and len(cell.mailbox) < self.capacity:
            teller, _ = cell.waiting.popitem(last=False)
            cell.mailbox.append(teller.message)
            teller.accepted = True
            trio.lowlevel.reschedule(teller.task)
        if not cell.waiting:
            cell.waiting = None

    def refuse(self, cell: Cell) -> None:
        """Let waiting tellers fail because the system closes."""
        while cell.waiting:
            teller, _ = cell.waiting.popitem(last=False)
            trio.lowlevel.reschedule(teller.task)

    def fail_asks(self, cell: Cell, failure: Callable[[bool], KeyrunError]) -> None:
        """Let all waiting `ask` calls fail. `failure(accepted)` makes the error. An accepted
        message stays in the mailbox, and a message that waits for room is not sent."""
        for item in cell.mailbox or ():
            if isinstance(item, Envelope) and not isinstance(item.message, Order):
                item.settle(failure=failure(True))
        for teller in list(cell.waiting or ()):
            if isinstance(teller.message, Envelope):
                assert cell.waiting is not None
                del cell.waiting[teller]
                teller.refusal = failure(False)
                trio.lowlevel.reschedule(teller.task)

    def take(self, cell: Cell) -> list[Any]:
        """Remove and return the messages for the present actor.

        Messages behind a stop order stay, because they are for the next actor.
        """
        assert cell.mailbox is not None
        items = []
        while cell.mailbox:
            item = cell.mailbox.popleft()
            items.append(item)
            if isinstance(item, Envelope) and item.is_stop:
                break
        self.admit(cell)
        return items

    def settle(self, cell: Cell) -> None:
        """Put a cell that no worker holds into the ready queue, or record that it is idle."""
        mailbox = cell.mailbox
        assert mailbox is not None
        if mailbox:
            self._pool.push(cell)
            return
        if len(self.spare) < MAX_SPARE:
            self.spare.append(mailbox)
        cell.mailbox = None
        cell.state = IDLE
        if cell.actor is None and cell.crashes is None:
            self.drop(cell)
        elif self.on_idle is not None:
            self.on_idle(cell)
