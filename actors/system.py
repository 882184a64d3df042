"""The actor system: the public class that connects the parts.

It has none of their logic, except for the fast path of `tell_nowait`.
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
from keyrun.actors.dead_letters import DeadLetter, DeadLetters
from keyrun.actors.directory import Directory
from keyrun.actors.errors import ActorStopped, AskTimeout, MailboxFull, WouldDeadlock
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
    """Run one actor per key, created on demand. Each actor handles its messages in order.

        async with ActorSystem(Account) as accounts:
            await accounts.tell("alice", Deposit(5))
            balance = await accounts.ask("alice", GetBalance())

    Leaving the block drains the system: every accepted message is handled, then `on_stop` runs for
    every actor. If an exception or a cancellation leaves the block, handlers are cancelled, and
    messages that are not finished become dead letters. In both cases each accepted message ends
    exactly once, handled or as a dead letter. Use a system only from the Trio thread that it was
    opened in.

    - `factory`: `factory(key)` returns the actor of a key.
    - `mailbox_capacity`: the number of messages that may wait per key.
    - `fairness`: the number of messages of one key that are handled before other keys run.
    - `supervision`: what happens after a crash.
    - `idle_timeout`: seconds without a message after which an actor is dropped. By default actors
      stay.
    - `max_workers`: the number of handlers that may wait at once, also for answers of each other,
      so a small number can deadlock. By default there is no limit.
    - `pass_size`: the number of messages that are handled, and of handlers that are woken, before
      other tasks run. By default Keyrun favours throughput. A small number keeps the event loop
      responsive.
    - `on_dead_letter`: called with each message that will not be handled. It must not block.
    - `on_quarantine`: called with each key that is quarantined and its last error. It must not
      block.
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
        pass_size: int | None = None,
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
        if pass_size is not None:
            checks.count("pass_size", pass_size, 1)
        if on_dead_letter is not None:
            checks.function("on_dead_letter", on_dead_letter)
        if on_quarantine is not None:
            checks.function("on_quarantine", on_quarantine)
        pool = self._pool = Pool(max_workers, pass_size)
        directory = self._directory = Directory(pool, mailbox_capacity)
        dead_letters = self._dead_letters = DeadLetters(on_dead_letter)
        lifecycle = self._lifecycle = Lifecycle(factory)
        supervisor = self._supervisor = Supervisor(
            supervision, pool, directory, dead_letters, on_quarantine
        )
        self._waits = Waits(pool)
        self._worker = Worker(pool, directory, lifecycle, supervisor, fairness)
        if idle_timeout is not None:
            directory.on_idle = Passivation(
                idle_timeout, supervision.window, pool, directory, lifecycle
            ).watch
        self.wait_slot = pool.wait_slot
        """Return the wait slot of the calling handler's task, which makes frequent waits cheap. Its
        `scope` is the cancel scope of the handler, which must be left unchanged."""
        self._cells = directory.cells
        self._spare = directory.spare
        self._ready = pool.ready
        self._capacity = mailbox_capacity
        self._running: AbstractAsyncContextManager[None] | None = None

    async def __aenter__(self) -> Self:
        if self._running is not None:
            raise RuntimeError("an ActorSystem can be opened only once; create a new one")
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
            # The nursery is an implementation detail, so its group is unwrapped.
            if error is None or group.exceptions != (error,):
                raise
            return False

    def tell_nowait(self, key: K, message: M) -> None:
        """Put a message into the mailbox of `key`, or raise `MailboxFull`."""
        # The body of `Directory.post` and `Pool.push`. Two calls take a tenth of a message's time.
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
        """Put a message into the mailbox of `key`. Wait for room if the mailbox is full.

        Calls that wait for the same key continue in their order. A call that is cancelled while it
        waits has not sent the message. The call is not a Trio checkpoint unless it has to wait.
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
        """Send a message, and return the answer of the handler.

        Raises `AskTimeout` after `timeout` seconds, `ActorFailed` if the handler raised and the
        message is not handled again, `ActorStopped` if the actor was stopped before, and
        `KeyQuarantined` if the key is or becomes quarantined. If the caller is cancelled, the
        message stays: it is handled in its turn, and the answer is dropped.

        Raises `WouldDeadlock` if the handlers of two or more keys would wait for each other without
        a timeout.
        """
        envelope = Envelope(message)
        if timeout is None:
            return await self._ask(key, envelope)
        checks.at_least("timeout", timeout, 0)
        with trio.move_on_after(timeout):
            return await self._ask(key, envelope)
        raise AskTimeout(key, timeout, accepted=envelope.accepted)

    def scope(self, *, kept: bool = False) -> trio.CancelScope:
        """Return the cancel scope of the calling handler. The handler may cancel it, or set its
        deadline, as if it had opened the scope.

        The scope belongs to the worker, which uses it for one handler after the other. So call this
        again in each handler, and do not keep the scope. A handler that was cancelled through the
        scope has to catch the cancellation and to return without waiting again. Otherwise it counts
        as a crash. The next handler has no deadline, and has a new scope if this one is cancelled.

        With `kept`, the system does not check the scope after the handler. The handler itself
        removes the deadline, and calls `renew_scope()` if the scope was cancelled.
        """
        return self._pool.scope(kept=kept)

    @property
    def suspension(self) -> Suspension:
        """Return the object through which the calling handler notices that the code which it awaits
        suspends."""
        return self._pool.suspension

    def renew_scope(self) -> None:
        """Give the next handler a new scope, even if this one is not cancelled. Call this if other
        code may still cancel this one."""
        self._pool.renew_scope()

    async def stop(self, key: K) -> None:
        """Stop the actor of `key` after the messages in its mailbox, and wait until it has stopped.

        A new actor handles later messages. A quarantined key is dropped at once, and its messages
        become dead letters. If the caller is cancelled, the actor still stops.
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
        """Let a quarantined key handle its mailbox again. Return whether it was quarantined."""
        cell = self._cells.get(key)
        if cell is None or cell.state is not QUARANTINED:
            return False
        self._supervisor.release(cell)
        return True

    def quarantined(self) -> list[K]:
        """Return the keys that wait for `release`."""
        return [cast(K, cell.key) for cell in self._supervisor.quarantined]

    def hasten(self) -> None:
        """Restart at once all actors that wait for their restart after a crash."""
        self._supervisor.hasten()

    async def drain(self) -> None:
        """Wait until every accepted message is handled, except those of quarantined keys."""
        for cell in self._pool.cells_above():
            raise WouldDeadlock("drain", cell.key)
        await self._pool.wait_quiet()

    def statistics(self) -> Statistics:
        """Return a snapshot of the system."""
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
            dead_letters=self._dead_letters.count,
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
        """Wait for the outcome of an envelope in the mailbox of `cell`."""
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
        """Turn the messages that a cell still has into dead letters when the system ends."""
        self._directory.refuse(cell)
        if cell.mailbox:
            items = list(cell.mailbox)
            cell.mailbox.clear()
            self._dead_letters.deliver(cell.key, items, ActorStopped(cell.key))
