"""What a worker does: it takes ready cells and handles their messages.

The hot path of the system. Everything in it is awaited directly; the pool notices when something
suspends and lets another worker go on with the queue.
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
        """Serve the queue until a handler changed the context or used up the scope, and say how
        many messages of this pass were handled; None when enough others wait for something to do.

        One long function, because a call per cell would cost as much as a short message.
        """
        ready = self._pool.ready
        serving, borrowed = self._pool.serving, self._pool.borrowed
        pass_size = self._pool.pass_size
        clean = copy_context()
        values = tuple(clean.values())
        while True:
            if not ready:
                # Who rests keeps nothing alive.
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
                # Known before it is taken: a Ctrl-C that comes right after must not lose it.
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
                        # By whoever has borrowed the scope: the handler's own doing.
                        borrowed.add(task)
                    elif not is_crash(error):
                        mailbox.appendleft(item)
                        raise
                    self._supervisor.crashed(cell, item, error)
                    end = served
                try:
                    context = copy_context()
                    # Equal is not enough: an equal value may still be another object.
                    is_clean = context == clean and (
                        not values or all(map(is_, context.values(), values))
                    )
                except BaseException as error:
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    # Only values that were replaced are compared; the user's may refuse it.
                    is_clean = False
                if task in borrowed and not self._pool.take_back(task):
                    is_clean = False
            if cell.state is BOUND:
                self._directory.settle(cell)
            if not is_clean:
                return served

    async def _open(self, cell: Cell, envelope: Envelope) -> None:
        """Handle what somebody waits for."""
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
