"""The front of the actors: a system of keyed actors that an application talks to.

Composes the parts and holds none of their logic, except for the fast path of `tell_nowait`.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

import trio

from keyrun.actors import checks
from keyrun.actors.actor import Actor
from keyrun.actors.cell import IDLE, QUARANTINED, READY, Cell, Envelope, Order
from keyrun.actors.directory import Directory
from keyrun.actors.errors import ActorStopped, AskTimeout, MailboxFull, WouldDeadlock
from keyrun.actors.letters import DeadLetter, DeadLetters
from keyrun.actors.lifecycle import Lifecycle, stops_silently
from keyrun.actors.passivation import Passivation
from keyrun.actors.pool import Pool, Suspension
from keyrun.actors.statistics import Statistics
from keyrun.actors.supervision import Supervision
from keyrun.actors.supervisor import Supervisor
from keyrun.actors.waits import Waits
from keyrun.actors.worker import Worker

K = TypeVar("K", bound=Hashable)
M = TypeVar("M")
A = TypeVar("A")


class ActorSystem(Generic[K, M, A]):
    """Keyed actors: one per key, made on demand, each handling its messages in order.

        async with ActorSystem(Account) as accounts:
            await accounts.tell("alice", Deposit(5))
            balance = await accounts.ask("alice", GetBalance())

    `factory(key)` makes the actor of a key. Leaving the block drains: every accepted message is
    handled, then `on_stop` runs for every actor. If the block is left by an exception or a
    cancellation, handlers are cancelled and what was accepted and not finished goes to the dead
    letters. Either way each accepted message ends exactly once, handled or as a dead letter.

    `mailbox_capacity` is how many messages may wait per key. `fairness` is how many messages of
    one key are handled before other keys have their turn. `idle_timeout` drops actors that got
    no message for so many seconds; without it they stay. `max_workers` bounds how many handlers
    may wait at the same time, also for each other's answers, so too few can wait for ever;
    without it a handler may wait for days and disturbs nobody.
    `on_dead_letter` is called with each message that is given up, `on_quarantine` with each key
    that is quarantined and its last error; they must not wait. If in doubt, set none of them.

    Use it from the Trio thread it was opened in.
    """

    def __init__(
        self,
        factory: Callable[[K], Actor[M, A]],
        *,
        mailbox_capacity: int = 1024,
        fairness: int = 64,
        supervision: Supervision = Supervision(),  # noqa: B008 (a frozen value)
        idle_timeout: float | None = None,
        max_workers: int | None = None,
        on_dead_letter: Callable[[DeadLetter[K, M]], object] | None = None,
        on_quarantine: Callable[[K, BaseException], object] | None = None,
    ) -> None:
        checks.function("factory", factory)
        checks.count("mailbox_capacity", mailbox_capacity, 1)
        checks.count("fairness", fairness, 1)
        if not isinstance(supervision, Supervision):
            raise TypeError(f"supervision must be a Supervision, got {supervision!r}")
        if idle_timeout is not None:
            checks.positive("idle_timeout", idle_timeout)
        if max_workers is not None:
            checks.count("max_workers", max_workers, 1)
        if on_dead_letter is not None:
            checks.function("on_dead_letter", on_dead_letter)
        if on_quarantine is not None:
            checks.function("on_quarantine", on_quarantine)
        pool = self._pool = Pool(max_workers)
        directory = self._directory = Directory(pool, mailbox_capacity)
        letters = self._letters = DeadLetters(on_dead_letter)
        lifecycle = self._lifecycle = Lifecycle(factory)
        supervisor = self._supervisor = Supervisor(
            supervision, pool, directory, letters, on_quarantine
        )
        self._waits = Waits(pool)
        self._worker = Worker(pool, directory, lifecycle, supervisor, fairness)
        if idle_timeout is not None:
            directory.on_idle = Passivation(
                idle_timeout, supervision.window, pool, directory, lifecycle
            ).watch
        self.seat = pool.seat
        """How the task of the calling handler waits, if it often has to, and the scope that it is
        in, to be kept as it was."""
        self._cells = directory.cells
        self._spare = directory.spare
        self._ready = pool.ready
        self._capacity = mailbox_capacity
        self._running: AbstractAsyncContextManager[None] | None = None

    async def __aenter__(self) -> Self:
        if self._running is not None:
            raise RuntimeError("an ActorSystem can be opened only once: make another one")
        self._running = self._run()
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._running is not None
        try:
            return await self._running.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            # That there is a nursery inside is not the user's concern.
            if error is None or group.exceptions != (error,):
                raise
            return False

    def tell_nowait(self, key: K, message: M) -> None:
        """Put a message into the mailbox of `key`, or raise `MailboxFull`."""
        # The body of `Directory.post` and `Pool.push`: two calls less are a tenth of a message.
        try:
            cell = self._cells[key]
        except KeyError:
            cell = self._directory.create(key)
        mailbox = cell.mailbox
        if mailbox is None:
            mailbox = cell.mailbox = self._spare.pop() if self._spare else deque()
            mailbox.append(message)
            cell.state = READY
            self._ready.append(cell)
            if not self._pool.seeking:
                self._pool.wake()
        elif len(mailbox) < self._capacity:
            mailbox.append(message)
        else:
            raise MailboxFull(key, self._capacity)

    async def tell(self, key: K, message: M) -> None:
        """Put a message into the mailbox of `key`, waiting for room while it is full.

        Waiting tellers of a key are served first come, first served. One that is cancelled
        while it waits has not sent anything. Not a checkpoint unless it has to wait.
        """
        try:
            cell = self._cells[key]
        except KeyError:
            cell = self._directory.create(key)
        if self._is_full(cell):
            self._waits.refuse_cycle("tell", cell)
            await self._directory.wait_for_room(cell, message)
        else:
            self._directory.post(cell, message)

    async def ask(self, key: K, message: M, timeout: float | None = None) -> A:
        """Send a message and wait for what the handler returns.

        Raises `AskTimeout` after `timeout` seconds, `ActorFailed` if the handler raised and the
        message was given up, `ActorStopped` if the actor was stopped before, `KeyQuarantined` if
        the key is or gets quarantined. A caller that goes away does not take the message back: it
        is handled in its turn and the answer dropped.

        A handler that asks a key whose handler waits, without a deadline, for its own answer gets
        `WouldDeadlock`, also if there are more in the cycle.
        """
        envelope = Envelope(message)
        if timeout is None:
            return await self._ask(key, envelope)
        checks.at_least("timeout", timeout, 0)
        with trio.move_on_after(timeout):
            return await self._ask(key, envelope)
        raise AskTimeout(key, timeout, accepted=envelope.accepted)

    def scope(self, *, kept: bool = False) -> trio.CancelScope:
        """The cancel scope that the calling handler is in, at no cost: to be cancelled, or given a
        deadline, as if the handler had opened it.

        It is the worker's, and used for one handler after the other: ask for it again in each, and
        keep it no longer. A handler that was cancelled through it catches that and returns without
        waiting for anything any more; to let the cancellation out is a crash like any other. The
        next handler has no deadline, and another scope if this one is cancelled.

        A handler that keeps it as it was needs nobody to look after it: with `kept` it takes the
        deadline away itself, and says `renew_scope()` where somebody has cancelled it.
        """
        return self._pool.scope(kept=kept)

    @property
    def suspension(self) -> Suspension:
        """How the calling handler learns that what it awaits has to wait."""
        return self._pool.suspension

    def renew_scope(self) -> None:
        """Have the next handler get another scope, also where this one is not cancelled: say it
        where somebody else may still cancel it."""
        self._pool.renew_scope()

    async def stop(self, key: K) -> None:
        """Stop the actor of `key` after the messages that it has by now, and wait for that.

        Messages told later are for its successor. A quarantined key is dropped at once, with
        its messages as dead letters. Giving up the wait does not take the order back.
        """
        cell = self._cells.get(key)
        if cell is not None and not self._stop_at_once(cell):
            above = self._waits.refuse_cycle("stop", cell)
            order = Envelope(Order.STOP)
            self._directory.post(cell, order)
            await self._settled(cell, order, above)
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()

    def release(self, key: K) -> bool:
        """Let a quarantined key go on with its mailbox. Says whether it was quarantined."""
        cell = self._cells.get(key)
        if cell is None or cell.state is not QUARANTINED:
            return False
        self._supervisor.release(cell)
        return True

    def quarantined(self) -> list[K]:
        """The keys that wait for `release`."""
        return [cast(K, cell.key) for cell in self._supervisor.quarantined]

    def hasten(self) -> None:
        """Restart at once what waits to be restarted after a crash."""
        self._supervisor.hasten()

    async def drain(self) -> None:
        """Wait for a moment when every accepted message is handled, quarantined keys aside."""
        for cell in self._pool.cells_above():
            raise WouldDeadlock("drain", cell.key)
        await self._pool.wait_quiet()

    def statistics(self) -> Statistics:
        """What the system is doing and has done."""
        pool, bound, held = self._pool, self._pool.bound(), self._supervisor.quarantined
        active = [*pool.ready, *bound, *pool.delayed, *held]
        return Statistics(
            keys=len(self._cells),
            ready=len(pool.ready),
            running=len(bound),
            backoff=len(pool.delayed),
            quarantined=len(held),
            queued=sum(len(cell.mailbox or ()) for cell in active),
            waiting_tellers=sum(len(cell.waiting or ()) for cell in active),
            workers=pool.workers,
            idle_workers=pool.idle,
            handled=self._worker.handled,
            restarts=self._lifecycle.restarts,
            passivations=self._lifecycle.passivations,
            dead_letters=self._letters.count,
        )

    async def _ask(self, key: K, envelope: Envelope) -> A:
        try:
            cell = self._cells[key]
        except KeyError:
            cell = self._directory.create(key)
        if cell.state is QUARANTINED:
            raise self._supervisor.refusal(cell)
        above = self._waits.refuse_cycle("ask", cell)
        if self._is_full(cell):
            self._waits.enter(above, envelope, cell)
            try:
                await self._directory.wait_for_room(cell, envelope)
            finally:
                self._waits.leave(above, envelope)
        else:
            self._directory.post(cell, envelope)
        return cast(A, await self._settled(cell, envelope, above))

    async def _settled(self, cell: Cell, envelope: Envelope, above: list[Cell]) -> Any:
        """Wait for what becomes of an envelope in the mailbox of `cell`."""
        envelope.accepted = True
        if not above:
            return await envelope.outcome()
        self._waits.enter(above, envelope, cell)
        try:
            return await envelope.outcome()
        finally:
            self._waits.leave(above, envelope)

    def _is_full(self, cell: Cell) -> bool:
        return cell.mailbox is not None and len(cell.mailbox) >= self._capacity

    def _stop_at_once(self, cell: Cell) -> bool:
        if cell.state is QUARANTINED:
            self._supervisor.stop(cell)
            return True
        if cell.state is IDLE and stops_silently(cell):
            self._directory.drop(cell)
            return True
        return False

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        cells: list[Cell] = []
        try:
            async with trio.open_nursery() as nursery:
                self._pool.open(nursery, self._worker.serve)
                self._directory.is_open = True
                try:
                    yield
                    await self._pool.wait_quiet()
                    cells = self._directory.close()
                    self._stop_all(cells)
                    await self._pool.wait_quiet()
                finally:
                    # Before the nursery closes, so that no `tell` can want a worker from it.
                    cells += self._directory.close()
                    nursery.cancel_scope.cancel()
        finally:
            self._pool.close()
            self._supervisor.quarantined.clear()
            for cell in cells:
                self._abandon(cell)

    def _stop_all(self, cells: list[Cell]) -> None:
        for cell in cells:
            if cell.state is QUARANTINED:
                self._abandon(cell)
            elif not stops_silently(cell):
                self._directory.post(cell, Envelope(Order.STOP))

    def _abandon(self, cell: Cell) -> None:
        """Give up what a cell still has when the system ends."""
        self._directory.refuse(cell)
        if cell.mailbox:
            items = list(cell.mailbox)
            cell.mailbox.clear()
            self._letters.deliver(cell.key, items, ActorStopped(cell.key))
