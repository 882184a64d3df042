"""Operations on a quarantined run that meet while one of them is being committed."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import product
from math import inf
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import trio
import trio._core._run as trio_run
from trio.testing import MockClock

from keyrun import (
    Compensation,
    Context,
    RunEnded,
    Runtime,
    State,
    UnknownRun,
    current_step,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import RecordingHook, open_test_runtime, virtual_wall

LATENCY = 0.01
"""Seconds that a commit takes."""


class Scene:
    """A run that was quarantined after its first step, because its code had changed."""

    def __init__(self) -> None:
        self.mended = True
        self.ran: list[str] = []
        self.hook = RecordingHook()
        self.store = MemoryStore(latency=LATENCY)

        @step
        async def work(name: str) -> None:
            self.ran.append(name)
            await trio.sleep(1)

        @workflow
        async def job(ctx: Context) -> str:
            if self.mended:
                for part in "abc":
                    await ctx.step(work, f"{ctx.run_id}-{part}")
            return "done"

        self.job = job

    def open(self) -> Any:
        return open_test_runtime(
            self.store, workflows=[self.job], on_terminal=self.hook, drain_timeout=1
        )

    async def quarantine(self) -> None:
        async with open_test_runtime(self.store, workflows=[self.job]) as rt:
            await rt.submit(self.job, key="k", run_id="r")
            await trio.sleep(1.5)
            self.store.crash()
        self.mended = False

    async def opened(self, rt: Runtime) -> None:
        """Wait until the run is known to be quarantined, and mend the code."""
        await trio.sleep(1)
        status = await rt.status("r")
        assert status is not None
        assert status.state is State.QUARANTINED
        self.mended = True
        self.ran.clear()

    def own(self) -> list[str]:
        """The steps of the run that was quarantined."""
        return [name for name in self.ran if name.startswith("r-")]


Operation = Callable[[Runtime, Scene], Awaitable[object]]

OPERATIONS: dict[str, Operation] = {
    "redrive": lambda rt, scene: rt.redrive("r"),
    "release": lambda rt, scene: rt.release_key("k"),
    "cancel": lambda rt, scene: rt.cancel("r"),
    "forget": lambda rt, scene: rt.forget("r"),
    "pause": lambda rt, scene: rt.pause("r"),
    "resume": lambda rt, scene: rt.resume("r"),
    "pause key": lambda rt, scene: rt.pause_key("k"),
    "resume key": lambda rt, scene: rt.resume_key("k"),
    "signal": lambda rt, scene: rt.signal("r", "hello"),
    "submit": lambda rt, scene: rt.submit(scene.job, key="k", run_id="next"),
    "submit again": lambda rt, scene: rt.submit(scene.job, key="k", run_id="r"),
}


async def both(
    rt: Runtime, scene: Scene, names: tuple[str, str], offset: float
) -> list[tuple[str, object]]:
    """Ask for two operations, the second one `offset` seconds later. Returns their answers."""
    answers: list[tuple[str, object]] = []

    async def ask(name: str) -> None:
        try:
            answers.append((name, await OPERATIONS[name](rt, scene)))
        except (RunEnded, UnknownRun) as error:
            answers.append((name, type(error)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, names[0])
        await trio.sleep(offset)
        nursery.start_soon(ask, names[1])
    return answers


@pytest.mark.parametrize("first", OPERATIONS)
async def test_two_operations_on_a_quarantined_run_have_one_outcome(
    autojump_clock: MockClock, first: str
) -> None:
    """Every second operation, at every moment of the first one's commit and after it."""
    for second, offset in product(OPERATIONS, (0, LATENCY / 2, LATENCY * 1.5)):
        scene = Scene()
        case = f"{first}, {second} after {offset} s"
        await scene.quarantine()
        async with scene.open() as rt:
            await scene.opened(rt)
            answers = await both(rt, scene, (first, second), offset)
            cancelled = ("cancel", True) in answers
            again = ("forget", None) in answers and "submit again" in (first, second)
            steps = len(scene.own())
            await rt.resume_key("k")
            await rt.resume("r")
            await trio.sleep(30)
            status = await rt.status("r")
            left_at = trio.current_time()
        assert trio.current_time() - left_at < 6.1, case
        own, ended = scene.own(), [outcome.state for outcome in scene.hook.of("r")]
        if status is None or status.state is State.QUARANTINED:
            assert ended == [State.CANCELLED] * cancelled, case
            assert own == [], case
        else:
            assert status.state.terminal, case
            assert ended == [status.state], case
            assert (status.state is State.CANCELLED) == cancelled, case
        if cancelled:
            assert own[steps:] == [], case
        else:
            assert own in ([], ["r-b", "r-c"], ["r-a", "r-b", "r-c"] if again else []), case


async def test_a_forget_that_its_caller_gave_up_frees_the_key(autojump_clock: MockClock) -> None:
    scene = Scene()
    await scene.quarantine()
    async with scene.open() as rt:
        await scene.opened(rt)
        with trio.move_on_after(LATENCY / 2):
            await rt.forget("r")
        run = await rt.submit(scene.job, key="k", run_id="next")
        with trio.fail_after(60):
            assert await run.result() == "done"
        assert await rt.status("r") is None


async def test_no_later_run_begins_before_the_removal_of_the_head_is_durable(
    autojump_clock: MockClock,
) -> None:
    scene = Scene()
    await scene.quarantine()
    async with scene.open() as rt:
        await scene.opened(rt)
        run = await rt.submit(scene.job, key="k", run_id="next")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rt.forget, "r")
            await trio.sleep(LATENCY / 2)
            assert scene.ran == []
        assert await run.result() == "done"


@pytest.mark.parametrize("behind", [False, True])
async def test_a_key_is_released_while_its_head_is_forgotten(
    autojump_clock: MockClock, behind: bool
) -> None:
    scene = Scene()
    await scene.quarantine()
    released: list[bool] = []

    async def release(rt: Runtime) -> None:
        released.append(await rt.release_key("k"))

    async with scene.open() as rt:
        await scene.opened(rt)
        if behind:
            await rt.submit(scene.job, key="k", run_id="next")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rt.forget, "r")
            await trio.sleep(LATENCY / 2)
            nursery.start_soon(release, rt)
        assert released == [False]
        assert await rt.status("r") is None


async def test_a_key_that_is_released_twice_at_once_tries_its_head_once(
    autojump_clock: MockClock,
) -> None:
    """The second call must not redrive the run that the first one has let go on."""
    scene = Scene()
    await scene.quarantine()
    released: list[bool] = []

    async def release(rt: Runtime) -> None:
        released.append(await rt.release_key("k"))

    async with scene.open() as rt:
        await scene.opened(rt)
        async with trio.open_nursery() as nursery:
            # Both calls find the run quarantined and wait until the signal is durable.
            nursery.start_soon(rt.signal, "r", "hello")
            await trio.sleep(LATENCY / 2)
            for _ in range(2):
                nursery.start_soon(release, rt)
        assert sorted(released) == [False, True]
        await trio.sleep(10)
        status = await rt.status("r")
        assert status is not None
        assert (status.state, status.generation) == (State.SUCCEEDED, 1)


@pytest.mark.parametrize("signal_id", [None, "s-1"])
async def test_forget_removes_a_signal_that_is_being_committed(
    autojump_clock: MockClock, signal_id: str | None
) -> None:
    scene = Scene()
    await scene.quarantine()
    async with scene.open() as rt:
        await scene.opened(rt)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(rt.signal, "r", "hello", signal_id=signal_id))
            await trio.sleep(LATENCY / 2)
            nursery.start_soon(rt.forget, "r")
        for table in ("signals", "sent", "journal", "status", "runs", "queue"):
            assert await rt._partition.state.store.scan(table) == [], table


async def test_a_redrive_that_its_caller_gave_up_happens(autojump_clock: MockClock) -> None:
    scene = Scene()
    await scene.quarantine()
    async with scene.open() as rt:
        await scene.opened(rt)
        with trio.move_on_after(LATENCY / 2):
            await rt.redrive("r")
        await trio.sleep(30)
        status = await rt.status("r")
        assert status is not None
        assert status.state is State.SUCCEEDED
    assert scene.ran == ["r-b", "r-c"]


async def test_a_run_that_is_paused_while_quarantined_is_redriven_and_resumed(
    autojump_clock: MockClock,
) -> None:
    scene = Scene()
    await scene.quarantine()
    async with scene.open() as rt:
        await scene.opened(rt)
        await rt.pause("r")
        await rt.redrive("r")
        await trio.sleep(0.1)
        assert scene.ran == []
        await rt.resume("r")
        await trio.sleep(30)
        status = await rt.status("r")
        assert status is not None
        assert status.state is State.SUCCEEDED
    assert scene.ran == ["r-b", "r-c"]


@pytest.mark.parametrize("seed", range(20))
def test_a_redrive_meets_the_actor_that_tries_the_run_again(seed: int) -> None:
    """The key is woken, and its actor loads the run while the redrive is being committed."""

    async def scene() -> None:
        store = MemoryStore()
        async with open_test_runtime(store, workflows=[waiting], evict_after=inf) as rt:
            await rt.submit(waiting, key="k", run_id="r")
            await trio.sleep(1)
        async with open_test_runtime(store, workflows=[], evict_after=inf) as rt:
            await trio.sleep(1)
            await rt.pause_all()
        async with open_test_runtime(store, workflows=[waiting], evict_after=inf) as rt:
            await rt.resume_all()
            with suppress(RunEnded):
                await rt.redrive("r")
            await trio.sleep(5)
            await rt.signal("r", "go", 1)
            await trio.sleep(50)
            status, left = await rt.status("r"), rt.statistics()
            assert status is not None
            assert status.state is State.SUCCEEDED
            assert (left.live, left.keys, left.backlog.pending) == (0, 0, 0)

    # The order in which Trio runs tasks that are ready at the same time.
    with patch.object(trio_run, "_r", Random(seed)):
        trio.run(scene, clock=MockClock(autojump_threshold=0))


@step
async def noting() -> None: ...


@workflow
async def waiting(ctx: Context) -> Any:
    await ctx.step(noting)
    return await ctx.wait_signal("go")


async def test_a_run_whose_pause_is_being_committed_is_loaded_after_the_commit(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store, go = MemoryStore(latency=1), trio.Event()

    @step
    async def wait() -> None:
        await go.wait()

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(wait)

    async with open_test_runtime(store, workflows=[job]) as rt, trio.open_nursery() as nursery:
        first = await rt.submit(job, key="k")
        second = await rt.submit(job, key="k")
        await trio.sleep(10)
        nursery.start_soon(rt.pause, second.run_id)
        await trio.sleep(0.5)
        go.set()
        await first.result()
        await trio.sleep(10)
        status = await second.status()
        assert status is not None
        assert status.state is State.PAUSED
        await rt.resume(second.run_id)
        await second.result()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_timer_that_is_due_while_its_run_is_being_cancelled_wakes_nothing(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def napping(ctx: Context) -> None:
        await ctx.sleep(100)

    store = MemoryStore(latency=1)
    async with open_test_runtime(store, workflows=[napping], evict_after=1) as rt:
        run = await rt.submit(napping, key="k")
        await trio.sleep(50)
        status = await run.status()
        assert status is not None
        assert status.waiting_until is not None
        # The timer is due while the end is being committed.
        await trio.sleep(status.waiting_until - virtual_wall() - 0.5)
        await run.cancel()
        await trio.sleep(20)
        status = await run.status()
        assert status is not None
        assert status.state is State.CANCELLED


class Buggy(MemoryStore):
    """Raises an internal error at the next read of a key's state, if it is told to."""

    bug = False

    async def _get(self, table: str, key: bytes) -> bytes | None:
        if self.bug and table == "state":
            self.bug = False
            raise RuntimeError("a bug")
        return await super()._get(table, key)


async def test_a_cancelled_run_is_compensated_after_its_actor_crashed(
    autojump_clock: MockClock,
) -> None:
    undone: list[str] = []

    async def unbook(given: Compensation) -> None:
        undone.append(given.output)

    @step(compensate=unbook)
    async def book(what: str) -> str:
        current_step().state["booked"] = what
        return what

    @workflow
    async def trip(ctx: Context) -> None:
        await ctx.step(book, "hotel")
        await ctx.wait_signal("go")

    store, hook = Buggy(), RecordingHook()
    async with open_test_runtime(store, workflows=[trip]) as rt:
        await rt.submit(trip, key="k", run_id="r")
        await trio.sleep(10)
    async with open_test_runtime(store, workflows=[trip], on_terminal=hook) as rt:
        await trio.sleep(5)
        store.bug = True
        assert await rt.cancel("r")
        await trio.sleep(50)
        status = await rt.status("r")
        assert status is not None
        assert status.state is State.CANCELLED
        assert not store.bug
    assert undone == ["hotel"]
    assert [outcome.state for outcome in hook.outcomes] == [State.CANCELLED]
