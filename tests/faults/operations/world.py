"""The world: performs a script on a store in memory and on virtual time, and keeps evidence."""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from random import Random
from random import seed as seed_all
from typing import Any
from unittest.mock import patch

import trio
import trio._core._run as trio_run
from trio.testing import MockClock

from keyrun import RunHandle, RunOutcome, RunStatus, Runtime, State
from keyrun.storage import MemoryStore, StoreCrashed, StoreError
from keyrun.storage.batch import Tables
from keyrun.testing import open_test_runtime
from tests.faults.operations.evidence import Call, End, Evidence, current
from tests.faults.operations.script import Action, Script, Session
from tests.faults.operations.workflows import BRITTLE, WORKFLOWS, workflow_of

SLACK = 5.0
"""Seconds that leaving may take beyond `drain_timeout`."""
LONG = 500.0
"""Seconds after which something that has not happened never will."""
OF_RUNS = (
    *("runs", "status", "journal", "ids", "queue", "timers", "signals", "sent", "begun", "memo"),
    *("dead", "ended", "delayed", "children"),
)
"""Tables in which nothing is left when all runs are forgotten."""


class Store(MemoryStore):
    """Commits take as long as a script says, and the process is killed at one of them."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.commits = 0
        self.crash_at = 0
        self.applied = False
        self.bugs: set[str] = set()
        """Keys whose actors crash, as if Keyrun had a bug."""

    async def _get(self, table: str, key: bytes) -> bytes | None:
        if self.bugs and table == "state" and any(bug.encode() in key for bug in self.bugs):
            raise RuntimeError("a bug")
        return await super()._get(table, key)

    async def _commit(self, tables: Tables) -> None:
        self.commits += 1
        self.crash_at -= 1
        dies = self.crash_at == 0
        latencies = self.script.latencies
        self.latency = latencies[self.commits % len(latencies)]
        if dies and not self.applied:
            await trio.sleep(self.latency)
            raise StoreCrashed("killed before a commit")
        await super()._commit(tables)
        if dies:
            raise StoreCrashed("killed after a commit")


class World(Evidence):
    """Performs a script."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.store = Store(script)
        self.clients: trio.Nursery

    async def hook(self, outcome: RunOutcome) -> None:
        await trio.sleep(self.script.hook_takes)
        self.ends.append(End(self.next(), outcome))

    # Calls.

    async def call(self, op: str, about: str, value: Any, act: Callable[[], Awaitable[Any]]) -> Any:
        call = Call(op, about, value, self.next())
        self.calls.append(call)
        try:
            call.answer = await act()
        except Exception as error:
            call.error = error
        call.answered = self.next()
        call.at = trio.current_time()
        return call.answer

    async def perform(self, rt: Runtime, action: Action) -> None:
        op, about, value = action.op, action.about, action.value
        match op:
            case "submit":
                await self.submit(rt, about)
                return
            case "mend" | "break":
                self.broken = op == "break"
                return
            case "heal" | "sicken":
                self.sick = op == "sicken"
                return
            case "bug" | "fix":
                self.store.bugs.discard(about)
                if op == "bug":
                    self.store.bugs.add(about)
                return
            case "signal":
                act: Callable[[], Awaitable[Any]] = partial(rt.signal, about, "go", value)
            case "approve":
                act = partial(rt.approve, about, "gate", by=str(value))
            case "status" | "cancel" | "pause" | "resume" | "redrive" | "forget":
                act = partial(getattr(rt, op), about)
            case _:
                act = partial(getattr(rt, op), about) if about else getattr(rt, op)
        await self.call(op, about, value, act)

    async def submit(self, rt: Runtime, run_id: str) -> None:
        handle = await self.call("submit", run_id, None, self.submission(rt, run_id))
        if handle is not None:
            self.clients.start_soon(self.wait, handle)

    def submission(self, rt: Runtime, run_id: str) -> Callable[[], Awaitable[RunHandle[Any]]]:
        run = self.script.runs[run_id]
        flow = workflow_of(run)
        return partial(rt.submit, flow, run_id, key=run.key, run_id=run_id, delay=run.delay)

    async def wait(self, handle: RunHandle[Any]) -> None:
        since, run_id = self.position, handle.run_id
        try:
            result: Any = await handle.result()
        except Exception as error:
            result = error
        self.results.append((self.next(), run_id, result))
        ended = [end for end in self.ends if end.outcome.run_id == run_id and end.position > since]
        if isinstance(result, StoreError) and ended:
            self.wrong.append(f"result: {run_id} had ended, but result() raised {result!r}")

    # Sessions.

    async def play(self) -> None:
        for session in self.script.sessions:
            await self.sit(session)
        await self.finish()

    async def sit(self, session: Session) -> None:
        self.broken = session.broken
        self.store.bugs.clear()
        self.store.crash_at, self.store.applied = session.crash_at, session.applied
        names = [name for name in WORKFLOWS if not (session.unregistered and BRITTLE in name)]
        async with trio.open_nursery() as self.clients:
            left = trio.Event()
            self.clients.start_soon(self.watch, left)
            leaving = inf
            with suppress(StoreError):  # if it is killed while it opens
                async with open_test_runtime(
                    self.store,
                    workflows=[WORKFLOWS[name] for name in names],
                    on_terminal=self.hook,
                    evict_after=self.script.evict_after,
                    drain_timeout=self.script.drain_timeout,
                    max_restarts=1,
                ) as rt:
                    for action in session.actions:
                        await trio.sleep(action.after)
                        self.clients.start_soon(self.perform, rt, action)
                    await trio.sleep(session.lasts)
                    leaving = trio.current_time()
            self.check_left(leaving, self.script.drain_timeout)
            left.set()
            await trio.sleep(1)
            self.check_answered()
            self.clients.cancel_scope.cancel()
        self.sessions.append(self.next())

    def check_left(self, since: float, drain_timeout: float) -> None:
        took = trio.current_time() - since
        if took > drain_timeout + SLACK:
            self.wrong.append(f"leaving: took {took:.1f} s")

    async def watch(self, left: trio.Event) -> None:
        """A session that does not end is a finding, not a hang: its store crashes."""
        with trio.move_on_after(10 * LONG) as scope:
            await left.wait()
        if scope.cancelled_caught:
            self.wrong.append("leaving: never ends")
            self.store.crash()

    def check_answered(self) -> None:
        """No client waits for an answer of a runtime that is gone."""
        since = self.sessions[-1] if self.sessions else 0
        for call in self.calls:
            if call.answered == inf and call.called > since:
                self.wrong.append(f"hangs: {call} was not answered when its runtime was gone")

    async def finish(self) -> None:
        """Bring every run to its end, as an operator would."""
        self.broken = self.sick = False
        self.store.crash_at = 0
        self.store.bugs.clear()
        async with trio.open_nursery() as self.clients:
            self.clients.start_soon(self.watch, trio.Event())
            async with open_test_runtime(
                self.store,
                workflows=WORKFLOWS.values(),
                on_terminal=self.hook,
                evict_after=self.script.evict_after,
                drain_timeout=self.script.drain_timeout,
            ) as rt:
                await self.end_all(rt)
                await trio.sleep(100)
                for run_id in self.script.runs:
                    self.statuses[run_id] = await rt.status(run_id)
                await self.check_results(rt)
                await trio.sleep(100)
                figures = rt.statistics()
                kept = figures.live, figures.keys, figures.backlog.pending
                if kept != (0, 0, 0):
                    self.wrong.append(f"left over: live, keys, pending are {kept}")
                leaving = trio.current_time()
            self.check_left(leaving, self.script.drain_timeout)
            self.clients.cancel_scope.cancel()
        await self.check_store()

    async def end_all(self, rt: Runtime) -> None:
        """Resume what is paused, and give runs what they wait for."""
        await rt.resume_all()
        for key in sorted({call.about for call in self.calls if call.op == "pause_key"}):
            await rt.resume_key(key)
        with trio.move_on_after(LONG):
            while True:
                busy = False
                for run_id in self.script.runs:
                    status = await rt.status(run_id)
                    if status is None or status.state.terminal:
                        continue
                    busy = True
                    await self.help(rt, status)
                if not busy:
                    return
                await trio.sleep(3)
        for run_id in self.script.runs:
            status = await rt.status(run_id)
            if status is not None and not status.state.terminal:
                about = status.state.value, status.waiting_on, status.reason
                self.wrong.append(f"stuck: {run_id} never ends: {about}")

    async def help(self, rt: Runtime, status: RunStatus) -> None:
        run_id, on = status.run_id, status.waiting_on or ""
        if status.state is State.QUARANTINED or status.reason is not None:
            await self.perform(rt, Action(0, "redrive", run_id))
        await self.perform(rt, Action(0, "resume", run_id))
        if "signal go" in on and status.state is State.WAITING:
            await self.perform(rt, Action(0, "signal", run_id, f"last-{self.position}"))
        if "approval gate" in on and status.state is State.WAITING:
            await self.perform(rt, Action(0, "approve", run_id, "last"))

    async def check_results(self, rt: Runtime) -> None:
        """Everybody who asks for the result now gets it."""
        for run_id, status in self.statuses.items():
            if status is None or not status.state.terminal:
                continue
            with trio.move_on_after(LONG) as scope:
                handle = await self.submission(rt, run_id)()
                if handle.newly_submitted:
                    self.wrong.append(f"submitted twice: {run_id}")
                await self.wait(handle)
            if scope.cancelled_caught:
                self.wrong.append(f"result: {run_id} has ended, but result() waits")

    async def check_store(self) -> None:
        """When all runs are forgotten, nothing is left of them."""
        async with open_test_runtime(self.store, workflows=WORKFLOWS.values()) as rt:
            for run_id, status in self.statuses.items():
                if status is not None and status.state.terminal:
                    await rt.forget(run_id)
        tables = self.store._tables
        kept = {name: len(tables[name].keys) for name in OF_RUNS if name in tables}
        if any(kept.values()) and not any(one.startswith("stuck") for one in self.wrong):
            self.wrong.append(f"left over: records {kept}")


class _Crashes(logging.Handler):
    """Notices bugs of Keyrun that it survived."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.__dict__.get("event") == "key_crashed" and not self.world.store.bugs:
            self.world.wrong.append(f"bug: {record.getMessage()}")


@contextmanager
def _quiet(world: World) -> Iterator[None]:
    logger = logging.getLogger("keyrun")
    handler, level, propagate = _Crashes(world), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def performed(script: Script) -> World:
    """The world in which a script was performed."""
    world = current.evidence = World(script)
    seed_all(script.seed)
    with patch.object(trio_run, "_r", Random(script.seed)), _quiet(world):
        try:
            trio.run(world.play, clock=MockClock(autojump_threshold=0))
        except Exception as error:
            world.wrong.append(f"crash: {_leaf(error)!r}")
    return world


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
