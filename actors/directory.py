"""The table of keys: every key that has an actor, messages or a past has a cell in it.

The only place where mailboxes come to life and go, and where waiting tellers are let in.
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
"""Mailboxes kept for reuse. An empty deque takes 600 bytes: idle cells must not own one."""


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
        """A cell for a key that has none."""
        if not self.is_open:
            raise SystemClosed
        cell = self.cells[key] = Cell(key)
        return cell

    def drop(self, cell: Cell) -> None:
        """Forget an idle cell."""
        self.cells.pop(cell.key, None)
        cell.actor = None

    def close(self) -> list[Cell]:
        """Take no more messages. Returns the cells there were."""
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
        """Wait in line until `item` is in the mailbox."""
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
        """Let waiting tellers in as far as there is room.

        The message is moved here, not by its teller once it runs again: no newcomer overtakes.
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
        """Send waiting tellers away because the system closes."""
        while cell.waiting:
            teller, _ = cell.waiting.popitem(last=False)
            trio.lowlevel.reschedule(teller.task)

    def tell_askers(self, cell: Cell, failure: Callable[[bool], KeyrunError]) -> None:
        """Let nobody wait for an answer: `failure` makes the error, for a message that is in the
        mailbox, where it stays, or one that has yet to get in, which is sent away."""
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
        """Empty the mailbox of what was meant for the present actor.

        What was told after a stop order belongs to the next one and stays.
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
        """Put a cell that nobody holds any more where it belongs."""
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
