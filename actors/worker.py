"""Workers: take ready cells and handle their messages.

This is the hot path of the system. It awaits everything directly. If a handler suspends, the pool
notices that and wakes another worker for the queue.
"""

from contextvars import copy_context
from operator import is_

import trio

from keyrun.actors.cell import BOUND, Cell, Envelope, Order
from keyrun.actors.directory import Directory
from keyrun.actors.errors import is_crash
from keyrun.actors.lifecycle import Lifecycle
from keyrun.actors.pool import Pool
from keyrun.actors.supervisor import Supervisor


class Worker:
    """The behaviour that all workers of a system share."""

    def __init__(
        self,
        pool: Pool,
        directory: Directory,
        lifecycle: Lifecycle,
        supervisor: Supervisor,
        fairness: int,
    ) -> None:
        self._pool = pool
        self._directory = directory
        self._lifecycle = lifecycle
        self._supervisor = supervisor
        self._fairness = fairness
        self.handled = 0

    async def serve(self, task: trio.lowlevel.Task, served: int) -> int | None:
        """Serve the queue until a handler changes the context or uses up the scope. Return the
        number of messages that were handled in this pass, or None if enough other workers wait.

        This is one long function, because a call per cell would cost as much as a short message.
        """
        ready = self._pool.ready
        serving, borrowed = self._pool.serving, self._pool.borrowed
        pass_size = self._pool.pass_size
        clean = copy_context()
        values = tuple(clean.values())
        while True:
            if not ready:
                # A waiting worker must not keep objects alive.
                cell = mailbox = item = actor = context = None
                if not await self._pool.rest(task):
                    return None
                served = 0
                continue
            if served >= pass_size:
                served = 0
                await self._pool.let_others_run()
                continue
            cell = serving[task] = ready.popleft()
            mailbox = cell.mailbox
            assert mailbox is not None
            cell.state = BOUND
            end = served + self._fairness
            is_clean = True
            while mailbox and served < end and is_clean:
                served += 1
                # Read it before it is removed, so that a Ctrl-C in between does not lose it.
                item = mailbox[0]
                try:
                    mailbox.popleft()
                    if cell.waiting is not None:
                        self._directory.admit(cell)
                    if isinstance(item, Envelope):
                        await self._open(cell, item)
                    else:
                        actor = cell.actor
                        if actor is None:
                            actor = await self._lifecycle.start(cell)
                        await actor.receive(item)
                        self.handled += 1
                except BaseException as error:
                    scope = self._pool.slots[task].scope
                    if scope.cancel_called and is_crash(error, trio.Cancelled):
                        # The handler has requested the scope and cancelled it.
                        borrowed.add(task)
                    elif not is_crash(error):
                        mailbox.appendleft(item)
                        raise
                    self._supervisor.crashed(cell, item, error)
                    end = served
                try:
                    context = copy_context()
                    # An equal value may still be another object.
                    is_clean = context == clean and (
                        not values or all(map(is_, context.values(), values))
                    )
                except BaseException as error:
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    # The comparison calls `__eq__` of the user's values, which may raise.
                    is_clean = False
                if task in borrowed and not self._pool.take_back(task):
                    is_clean = False
            if cell.state is BOUND:
                self._directory.settle(cell)
            if not is_clean:
                return served

    async def _open(self, cell: Cell, envelope: Envelope) -> None:
        """Handle a message whose sender waits for the answer, or an order."""
        message = envelope.message
        if isinstance(message, Order):
            await self._lifecycle.obey(cell, message)
            envelope.settle()
            return
        actor = cell.actor
        if actor is None:
            actor = await self._lifecycle.start(cell)
        envelope.settle(await actor.receive(message))
        self.handled += 1
