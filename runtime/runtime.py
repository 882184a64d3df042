"""The runtime: submit runs, see how they stand, hold, cancel and wait for them."""

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import trio

from keyrun.actors import Supervision, checks
from keyrun.runtime import deadletters, drawings, recovery
from keyrun.runtime.admission import check_key
from keyrun.runtime.calling import Calling
from keyrun.runtime.engine import Engine, Hook
from keyrun.runtime.grouping import Grouping
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.ledger import sealed
from keyrun.runtime.limits import Limits
from keyrun.runtime.messaging import Messaging
from keyrun.runtime.records import Standing, Submission
from keyrun.runtime.resources import Resources
from keyrun.runtime.retention import Retention
from keyrun.runtime.run import Unwind
from keyrun.runtime.scheduling import Scheduling
from keyrun.runtime.statistics import RuntimeStatistics, statistics_of
from keyrun.runtime.values import Priority, RunStatus
from keyrun.runtime.window import Window
from keyrun.runtime.workflow import Registry, Workflow
from keyrun.storage import LmdbStore, Store, StoreError
from keyrun.storage.payload import PayloadCodec, Transform

I = TypeVar("I")  # noqa: E741 (the input)
T = TypeVar("T")


class Runtime(Calling, Grouping, Messaging, Scheduling, Window):
    """An open runtime; `open_runtime` makes it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._admission = engine.admission
        self.decode_result = engine.reading.decode_result
        self._control = engine.control

    async def submit(
        self,
        workflow: Workflow[I, T],
        input: I = None,  # type: ignore[assignment]  # noqa: A002
        *,
        key: str,
        run_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Iterable[str] = (),
        priority: Priority = Priority.NORMAL,
        limits: Limits | None = None,
        delay: float = 0,
    ) -> RunHandle[T]:
        """Start a run, and return when it is durable. Under backpressure this waits; a repeat of
        what was submitted before gives the run that is there."""
        described = self._admission.describe(
            workflow, input, key, run_id, headers, tags, priority, limits, delay
        )
        if run_id is not None or self._crowded(key):
            return await self._enter(described, wait=True)
        await self._admission.admit(described).wait()
        return RunHandle(self, described, True)

    async def submit_nowait(
        self,
        workflow: Workflow[I, T],
        input: I = None,  # type: ignore[assignment]  # noqa: A002
        *,
        key: str,
        run_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Iterable[str] = (),
        priority: Priority = Priority.NORMAL,
        limits: Limits | None = None,
        delay: float = 0,
    ) -> RunHandle[T]:
        """Like `submit`, but raises `Backpressure` at once instead of waiting for room."""
        described = self._admission.describe(
            workflow, input, key, run_id, headers, tags, priority, limits, delay
        )
        if run_id is not None or self._crowded(key):
            return await self._enter(described, wait=False)
        await self._admission.admit(described).wait()
        return RunHandle(self, described, True)

    def _crowded(self, key: str) -> bool:
        """Whether it takes more than a look to know that one more run of a key has room."""
        engine = self._engine
        full = engine.backlog.full(key) or engine.instances is not None
        return full or not engine.recovered

    async def _enter(self, described: Submission, *, wait: bool) -> RunHandle[Any]:
        """Take a run in when there is room, or find the one that is there."""
        engine, admission, key = self._engine, self._admission, described.key
        if not engine.recovered:
            await engine.counted.wait()
        # Nothing may be awaited between this and the admission that yields to another submit.
        known = await admission.known(described)
        while known is None and engine.backlog.full(key):
            if not wait:
                raise engine.backlog.refuse(key)
            await engine.backlog.wait_for_room(described)
            known = await admission.known(described)
        if known is None:
            if engine.instances is not None:
                engine.instances.check(described)
            await admission.admit(described).wait()
            return RunHandle(self, described, True)
        if known.group is not None:
            await known.group.wait()
        return RunHandle(self, known.submission, False)

    async def status(self, run_id: str, *, result: bool = True) -> RunStatus | None:
        """How a run stands, also after its end; None if there is no such run."""
        engine = self._engine
        number = await engine.ledger.find(run_id)
        run = None if number is None else engine.live.get(number)
        if run is not None and run.standing.state.terminal:
            # An end that is only staged has not happened yet.
            await run.gate()
        return None if number is None else await engine.reading.status(number, result=result)

    def wait_for_end(self, submission: Submission) -> Awaitable[Standing | None]:
        """To be awaited at once: how a run ended, once it has; None if it was forgotten."""
        engine = self._engine
        if submission.at_hand:
            if engine.closed:
                engine.check_open()
            return engine.awaited.wait(submission.number)
        return self._look_up_end(submission.number)

    async def _look_up_end(self, number: int) -> Standing | None:
        engine = self._engine
        if number not in engine.live:
            standing = await engine.ledger.standing(number)
            if standing is not None and standing.state.terminal:
                return standing
            if standing is None and await engine.ledger.submission(number) is None:
                return None
        return await engine.ended(number)

    async def cancel(self, run_id: str) -> bool:
        """Ask for a run to be cancelled. True while it has not ended, False when it has, or is
        unknown. With no step running it is settled when this returns."""
        return await self._control.cancel(run_id)

    async def pause(self, run_id: str) -> bool:
        """Let the running step finish, then hold the run until `resume`."""
        return await self._control.pause(run_id, True)

    async def resume(self, run_id: str) -> bool:
        """Let a paused run go on."""
        return await self._control.pause(run_id, False)

    async def pause_key(self, key: str) -> None:
        """Hold all runs of a key."""
        await self._control.pause_key(check_key(key), True)

    async def resume_key(self, key: str) -> None:
        """Let the runs of a key go on."""
        await self._control.pause_key(check_key(key), False)

    async def pause_all(self) -> None:
        """Hold everything."""
        await self._control.pause_key("", True)

    async def resume_all(self) -> None:
        """Let everything go on that is not paused by itself."""
        await self._control.pause_key("", False)

    async def redrive(self, run_id: str) -> int:
        """Give a failed or quarantined run another chance, from the step that failed and with
        today's code. Returns its generation."""
        return await deadletters.redrive(self._engine, run_id)

    async def forget(self, run_id: str) -> None:
        """Remove all that is stored of a run that has ended."""
        await deadletters.forget(self._engine, run_id)

    async def release_key(self, key: str) -> bool:
        """Lift the quarantine of a key, or of its first run, which is redriven then. Says whether
        there was anything to lift."""
        return await deadletters.release(self._engine, check_key(key))

    def _queues(self) -> dict[str, int]:
        return {each.step: each.waiting for each in self._engine.turnstiles.statuses()}

    def statistics(self) -> RuntimeStatistics:
        """A snapshot."""
        return statistics_of(self._engine)


def _check(name: str, value: float, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")


@asynccontextmanager
async def open_runtime(
    store: "str | os.PathLike[str] | Store",
    *,
    workflows: Iterable[Workflow[Any, Any]] = (),
    entities: Iterable[type] = (),
    namespace: str = "default",
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    max_concurrent_steps: int = 256,
    max_pending: int = 100_000,
    max_pending_per_key: int = 10_000,
    backpressure_timeout: float = 30.0,
    drain_timeout: float = 10.0,
    on_terminal: Hook | None = None,
    hook_timeout: float = 60.0,
    retention: Retention = Retention(),  # noqa: B008 (frozen)
    transform: Transform | None = None,
    wall: Callable[[], float] = time.time,
    max_restarts: int = 5,
    restart_window: float = 60.0,
    resources: Resources | None = None,
    evict_after: float = 1.0,
) -> AsyncIterator[Runtime]:
    """Open a runtime on a store: a path, or a `Store`. What an earlier process left unfinished goes
    on by itself. Leaving the block drains: no step is started any more, running ones have
    `drain_timeout` seconds, and what is unfinished goes on at the next open. An `on_terminal` that
    does not return within `hook_timeout` seconds is cancelled and called again later. A key that
    fails to be served, again after `max_restarts` restarts within `restart_window` seconds, is
    quarantined. A run that waits for `evict_after` seconds leaves memory until there is something
    to do."""
    _check("max_concurrent_steps", max_concurrent_steps, 1)
    _check("max_pending", max_pending, 1)
    _check("max_pending_per_key", max_pending_per_key, 1)
    _check("backpressure_timeout", backpressure_timeout, 0)
    _check("drain_timeout", drain_timeout, 0)
    _check("evict_after", evict_after, 0)
    checks.count("max_restarts", max_restarts, 0)
    checks.positive("restart_window", restart_window)
    checks.positive("hook_timeout", hook_timeout)
    if not isinstance(store, Store):
        store = LmdbStore(store)
    registry = Registry(workflows)
    async with store, store.claim(namespace):
        engine = Engine(
            store,
            registry=registry,
            namespace=namespace,
            limits=limits,
            max_concurrent_steps=max_concurrent_steps,
            max_pending=max_pending,
            max_pending_per_key=max_pending_per_key,
            backpressure_timeout=backpressure_timeout,
            hook=on_terminal,
            hook_timeout=hook_timeout,
            retention=retention,
            codec=PayloadCodec(transform),
            wall=wall,
            supervision=Supervision(max_restarts=max_restarts, window=restart_window),
            resources=resources,
            evict_after=evict_after,
            entities=entities,
        )
        store.when_failed(engine.fail)
        await _begin(engine)
        left: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                try:
                    await nursery.start(_work, engine)
                    with engine.block:
                        yield Runtime(engine)
                except trio.Cancelled:
                    raise
                except BaseException as error:
                    # Raised outside of the nursery, so that it is itself and not in a group.
                    left = error
                finally:
                    with trio.CancelScope(shield=True) as engine.block, suppress(StoreError):
                        if engine.failure is None:
                            await _drain(engine, drain_timeout)
                    engine.scope.cancel()
                    engine.close()
        finally:
            if engine.failure is None:
                mark = engine.ledger.name("open")
                engine.store.open_group().delete("counter", mark)
        if engine.failure is not None:
            raise engine.failure
        if left is not None:
            raise left


async def _work(engine: Engine, task_status: "trio.TaskStatus[None]") -> None:
    """All that goes on by itself, until the engine's scope is cancelled."""

    async def guard(task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except Exception as error:
            engine.fail(error)

    with engine.scope:
        async with engine.actors, trio.open_nursery() as nursery:
            nursery.start_soon(guard, lambda: recovery.wake_lines(engine))
            nursery.start_soon(guard, engine.delays.run)
            nursery.start_soon(guard, engine.timers.run)
            nursery.start_soon(guard, engine.parking.run)
            nursery.start_soon(guard, engine.children.run)
            nursery.start_soon(guard, engine.schedules.run)
            nursery.start_soon(guard, engine.sweeper.run)
            nursery.start_soon(guard, engine.reception.requests.run)
            nursery.start_soon(guard, engine.entrance.run)
            nursery.start_soon(guard, engine.asyncio.run)
            nursery.start_soon(guard, engine.overruns.run)
            if engine.hook is not None:
                await engine.outbox.recover()
                nursery.start_soon(guard, engine.outbox.run)
            task_status.started()


async def _begin(engine: Engine) -> None:
    ledger = engine.ledger
    await engine.read_counter()
    mark = ledger.name("open")
    engine.unclean = await engine.store.get("counter", mark) is not None
    engine.store.open_group().put("counter", mark, sealed("counter", mark, os.getpid()))
    for key, _ in await engine.store.scan("held", prefix=ledger.prefix):
        name = key[len(ledger.prefix) :].decode()
        if name:
            engine.line(name).paused = True
        else:
            engine.paused = engine.stopped = True
    engine.stateless = not await engine.store.scan("state", prefix=ledger.prefix, limit=1)
    engine.memoless = not await engine.store.scan("memo", prefix=ledger.prefix, limit=1)
    await drawings.keep_plans(engine.ledger, engine.registry)
    if engine.instances is not None:
        await engine.instances.recover()
    await recovery.note_interruptions(engine)
    await engine.delays.recover()
    engine.timers.recover()
    await engine.signals.recover()
    await engine.children.recover()
    await engine.store.durable()


async def _drain(engine: Engine, timeout: float) -> None:
    """Start nothing more, let running steps finish, then cancel what still runs."""
    engine.draining = engine.stopped = True
    engine.actors.hasten()
    engine.reception.drain()
    for run in list(engine.live.values()):
        run.leave_if_asked()
        run.resume()
    patience = trio.current_time() + timeout
    with trio.move_on_at(patience):
        await engine.actors.drain()
    for run in list(engine.live.values()):
        run.unwind(Unwind.LEAVE)
    engine.reception.cut_off()
    await engine.actors.drain()
    await engine.store.durable()
    if engine.hook is not None:
        with trio.move_on_at(patience):
            await engine.outbox.tried()
