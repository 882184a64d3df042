"""Keyrun on asyncio: as a guest of the loop, and in a thread of its own."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio

import keyrun
import keyrun.asyncio
from keyrun import Context, RunFailed, RunOutcome, StoreClosed, UnknownRun, step, workflow
from keyrun.asyncio import Runtime, open_runtime
from keyrun.events import EventKind
from keyrun.groups import Member
from keyrun.hosting.trio_side import Guest
from keyrun.runtime.faces.direct import WaitForEnd
from keyrun.storage import MemoryStore
from keyrun.storage.errors import StoreCrashed
from keyrun.testing import CrashingMemoryStore
from tests.hosting.hosts import GUEST, Host
from tests.hosting.workflows import (
    ALL,
    Counter,
    adding,
    fails,
    keyrun_threads,
    one,
    submits,
    tells_loop,
    uses_resources,
    waits,
)


def test_a_run_has_steps_on_trio_on_the_loop_and_in_a_thread(host: Host) -> None:
    async def body(rt: Runtime) -> int:
        run = await rt.submit(adding, 1, key="k", run_id="r")
        assert (run.run_id, run.key, run.newly_submitted) == ("r", "k", True)
        assert not (await rt.submit(adding, 1, key="k", run_id="r")).newly_submitted
        return await run.result()

    assert host.run_with_runtime(body) == 112


def test_steps_with_asyncio_run_on_the_loop_of_the_host(host: Host) -> None:
    async def body(rt: Runtime) -> bool:
        run = await rt.submit(tells_loop, key="k")
        return await run.result() == id(asyncio.get_running_loop())

    assert host.run_with_runtime(body)


def test_a_failed_run_raises_in_the_task_that_waits_for_it(host: Host) -> None:
    async def body(rt: Runtime) -> None:
        run = await rt.submit(fails, key="k")
        with pytest.raises(RunFailed, match="ValueError: no"):
            await run.result()
        with pytest.raises(UnknownRun):
            await rt.signal("nothing", "go")

    host.run_with_runtime(body)


def test_wrong_arguments_raise_in_the_caller(host: Host) -> None:
    async def body(rt: Runtime) -> None:
        with pytest.raises(ValueError, match="key must have"):
            await rt.submit(one, 1, key="")
        with pytest.raises(keyrun.UnknownWorkflow):
            await rt.submit(_unregistered, key="k")

    host.run_with_runtime(body)


@workflow
async def _unregistered(ctx: Context) -> None: ...


def test_a_signal_reaches_a_run_and_status_history_and_progress_show_it(host: Host) -> None:
    async def body(rt: Runtime) -> None:
        run = await rt.submit(waits, key="k", run_id="r")
        while (await rt.status("r")).waiting_on is None:  # type: ignore[union-attr]
            await asyncio.sleep(0.001)
        await rt.signal("r", "go", "now")
        assert await run.result() == "now"
        assert [entry.event for entry in await rt.history("r")][-1] == "succeeded"
        assert [progress.state async for progress in rt.watch("r")] == ["succeeded"]
        assert rt.statistics().backlog.pending == 0

    host.run_with_runtime(body)


def test_events_arrive_and_a_cancelled_wait_loses_none(host: Host) -> None:
    async def body(rt: Runtime) -> list[str]:
        seen: list[str] = []
        async with rt.events(run_id="r") as events:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(events), 0.01)
            await rt.submit(one, 1, key="k", run_id="r")
            async for event in events:
                seen.append(event.kind)
                if event.kind is EventKind.RUN_SUCCEEDED:
                    return seen
        raise AssertionError

    kinds = host.run_with_runtime(body)
    assert kinds[0] == "run_submitted"
    assert kinds[-1] == "run_succeeded"


def test_entities_and_groups_work(host: Host) -> None:
    async def body(rt: Runtime) -> None:
        counter = rt.entity(Counter, "c")
        assert await counter.add(2) == 2
        assert await rt.call(Counter, "c", "add", 3) == 5
        members = [Member(one, n, key=f"k{n}", member_id=f"m{n}") for n in range(3)]
        group = await rt.submit_group("g", members)
        assert sorted([outcome.result or 0 async for outcome in group]) == [1, 2, 3]
        found = await rt.group("g")
        assert found is not None
        assert len(await found.results()) == 3

    host.run_with_runtime(body, entities=[Counter])


def test_a_lifespan_is_entered_on_the_loop_and_its_value_is_in_every_kind_of_step(
    host: Host,
) -> None:
    entered: list[object] = []

    @asynccontextmanager
    async def pools() -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        entered.append(loop)
        yield "pool"
        assert asyncio.get_running_loop() is loop
        entered.append("left")

    async def body(rt: Runtime) -> list[str]:
        return await (await rt.submit(uses_resources, key="k")).result()

    assert host.run_with_runtime(body, lifespan=pools) == ["pool", "pool", "pool"]
    assert entered[1] == "left"


def test_every_kind_of_step_can_submit_a_run_and_wait_for_it(host: Host) -> None:
    async def body(rt: Runtime) -> list[int]:
        return await (await rt.submit(submits, key="k")).result()

    assert host.run_with_runtime(body) == [2, 3, 4]


def test_an_async_hook_runs_on_the_loop(host: Host) -> None:
    seen: list[tuple[str, int]] = []

    async def hook(outcome: RunOutcome) -> None:
        seen.append((outcome.run_id, id(asyncio.get_running_loop())))

    async def body(rt: Runtime) -> int:
        await (await rt.submit(one, 1, key="k", run_id="r")).result()
        while not seen:
            await asyncio.sleep(0.001)
        return id(asyncio.get_running_loop())

    assert seen == [("r", host.run_with_runtime(body, on_terminal=hook))]


def test_cancelling_a_task_that_waits_for_a_result_leaves_the_run_alone(host: Host) -> None:
    async def body(rt: Runtime) -> str:
        run = await rt.submit(waits, key="k", run_id="r")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(run.result(), 0.01)
        await rt.signal("r", "go", "late")
        return await run.result()

    assert host.run_with_runtime(body) == "late"


def test_waits_for_a_result_that_are_cancelled_leave_nothing_in_memory(host: Host) -> None:
    async def body(rt: Runtime) -> None:
        run = await rt.submit(waits, key="k", run_id="r")
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(run.result(), 0.001)
        while any(type(each) is WaitForEnd for each in gc.get_objects()):
            await asyncio.sleep(0.01)

    host.run_with_runtime(lambda rt: asyncio.wait_for(body(rt), 30))


def test_cancelling_a_run_cancels_its_asyncio_step(host: Host) -> None:
    ended: list[str] = []
    begun = threading.Event()

    @step(asyncio=True)
    async def sleeps() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @workflow
    async def sleeping(ctx: Context) -> None:
        await ctx.step(sleeps)

    async def body(rt: Runtime) -> None:
        run = await rt.submit(sleeping, key="k")
        while not begun.is_set():
            await asyncio.sleep(0.001)
        assert await run.cancel()
        with pytest.raises(keyrun.RunCancelled):
            await run.result()

    host.run_with_runtime(body, workflows=[sleeping])
    assert ended == ["cancelled"]


def test_sys_exit_in_an_asyncio_step_fails_the_attempt_and_not_the_loop(host: Host) -> None:
    @step(asyncio=True, retry=keyrun.Retry.none())
    async def exits() -> None:
        raise SystemExit(3)

    @workflow
    async def exiting(ctx: Context) -> None:
        await ctx.step(exits)

    async def body(rt: Runtime) -> None:
        with pytest.raises(RunFailed, match=r"the step called sys\.exit\(3\)"):
            await (await rt.submit(exiting, key="k")).result()

    host.run_with_runtime(body, workflows=[exiting])


def test_leaving_by_an_exception_or_a_cancellation_drains(host: Host, tmp_path: Path) -> None:
    submitted = threading.Event()

    async def main(how: str) -> None:
        submitted.clear()
        async with open_runtime(tmp_path / how, workflows=ALL, thread=host.thread) as rt:
            await rt.submit(waits, key="k", run_id="r")
            submitted.set()
            if how == "exception":
                raise LookupError("out")
            await asyncio.sleep(3600)

    with pytest.raises(LookupError, match="out"):
        host.run(main("exception"))

    async def cancelled() -> None:
        task = asyncio.create_task(main("cancellation"))
        await asyncio.sleep(0)
        while not submitted.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    host.run(cancelled())

    async def again(how: str) -> str:
        async with open_runtime(tmp_path / how, workflows=ALL, thread=host.thread) as rt:
            await rt.signal("r", "go", how)
            return await (await rt.submit(waits, key="k", run_id="r")).result()

    assert [host.run(again(how)) for how in ("exception", "cancellation")] == [
        "exception",
        "cancellation",
    ]
    assert not keyrun_threads()


def test_a_block_that_is_cancelled_while_it_drains_drains_and_raises_the_cancellation(
    host: Host,
) -> None:
    begun, ended = threading.Event(), threading.Event()

    @step
    def takes_long() -> None:
        begun.set()
        ended.wait()

    @workflow
    async def long(ctx: Context) -> None:
        await ctx.step(takes_long)

    async def leaves() -> None:
        async with open_runtime(MemoryStore(), workflows=[long], thread=host.thread) as rt:
            await rt.submit(long, key="k")
            while not begun.is_set():
                await asyncio.sleep(0.001)

    async def main() -> None:
        task = asyncio.create_task(leaves())
        while not begun.is_set():
            await asyncio.sleep(0.001)
        for _ in range(3):
            await asyncio.sleep(0.01)
            task.cancel()
        assert not task.done()
        ended.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    host.run(main())
    assert not keyrun_threads()


def test_a_cancelled_open_does_not_wait_for_the_lock(host: Host, tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "state"
        async with open_runtime(path, thread=host.thread):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    async with open_runtime(
                        path, thread=host.thread, when_locked="wait", lock_timeout=3600
                    ):
                        pass

    host.run(main())
    assert not keyrun_threads()


def test_a_block_that_is_cancelled_while_it_opens_leaves_nothing(host: Host) -> None:
    complaints: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        is_open = False

        async def opens() -> None:
            nonlocal is_open
            async with open_runtime(MemoryStore(), thread=host.thread):
                is_open = True

        for turns in range(100):
            task = loop.create_task(opens())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task], timeout=30)
            assert task.done()
            if is_open:
                break
        while keyrun_threads() or Guest._of.get(loop) is not None:
            await asyncio.sleep(0.01)
        gc.collect()

    host.run(asyncio.wait_for(main(), 60))
    assert not complaints


def test_an_iteration_that_is_cancelled_and_given_up_is_not_reported(host: Host) -> None:
    complaints: list[object] = []

    async def body(rt: Runtime) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        await rt.submit(waits, key="k", run_id="r")
        progress = rt.watch("r")
        await anext(progress)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(progress), 0.01)

    async def main() -> None:
        async with open_runtime(MemoryStore(), workflows=ALL, thread=host.thread) as rt:
            await body(rt)
        gc.collect()
        await asyncio.sleep(0)

    host.run(main())
    assert not complaints


def test_a_store_that_fails_cancels_the_block_and_raises_its_error(host: Host) -> None:
    async def body(rt: Runtime) -> None:
        await rt.submit(waits, key="k")
        store.crash_at(1, applied=False)
        with pytest.raises(StoreCrashed):
            await rt.submit(one, 1, key="k2")
        await asyncio.sleep(3600)

    store = CrashingMemoryStore()
    with pytest.raises(StoreCrashed):
        host.run_with_runtime(body, store=store)


def test_the_error_of_a_store_leaves_the_task_without_a_cancellation(host: Host) -> None:
    async def main() -> None:
        store = CrashingMemoryStore()
        with pytest.raises(StoreCrashed):
            async with open_runtime(store, workflows=ALL, thread=host.thread) as rt:
                store.crash_at(1, applied=False)
                with suppress(StoreCrashed):
                    await rt.submit(one, 1, key="k")
                await asyncio.sleep(3600)
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

    host.run(main())


def test_a_store_whose_open_was_cancelled_can_be_opened_at_once(host: Host) -> None:
    async def main() -> None:
        store, is_open = MemoryStore(), False

        async def opens() -> None:
            nonlocal is_open
            async with open_runtime(store, thread=host.thread):
                is_open = True

        async with open_runtime(MemoryStore(), thread=host.thread):
            for turns in range(100):
                task = asyncio.create_task(opens())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                async with open_runtime(store, workflows=ALL, thread=host.thread) as rt:
                    assert await (await rt.submit(one, 1, key="k")).result() == 2
                if is_open:
                    break

    host.run(asyncio.wait_for(main(), 60))


def children() -> list[int]:
    """Return the ids of the child processes of this process."""
    found = Path("/proc/self/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_disk_that_does_not_answer_does_not_stop_the_loop(host: Host, tmp_path: Path) -> None:
    async def main() -> None:
        before = children()
        async with open_runtime(tmp_path / "s", workflows=ALL, thread=host.thread) as rt:
            assert await (await rt.submit(one, 1, key="k")).result() == 2
            [committer] = [child for child in children() if child not in before]
            os.kill(committer, signal.SIGSTOP)
            try:
                submitting = asyncio.create_task(rt.submit(one, 1, key="k"))
                for _ in range(20):
                    await asyncio.sleep(0.005)
                assert not submitting.done()
            finally:
                os.kill(committer, signal.SIGCONT)
            assert await (await submitting).result() == 2

    host.run(main())


def test_calls_after_the_block_say_that_the_runtime_is_closed(host: Host) -> None:
    async def main() -> None:
        async with open_runtime(MemoryStore(), workflows=ALL, thread=host.thread) as rt:
            run = await rt.submit(waits, key="k")
            waiting = [asyncio.create_task(run.result(timeout=wait)) for wait in (None, 3600)]
            await asyncio.sleep(0.01)
        for task in waiting:
            with pytest.raises(StoreClosed):
                await asyncio.wait_for(task, 30)
        for call in (rt.submit(one, 1, key="k"), rt.status("r"), run.result()):
            with pytest.raises(StoreClosed):
                await call

    host.run(main())


def test_several_runtimes_share_a_loop_and_end_in_any_order() -> None:
    async def main() -> list[int]:
        first = open_runtime(MemoryStore(), workflows=ALL)
        second = open_runtime(MemoryStore(), workflows=ALL)
        one_rt = await first.__aenter__()
        two_rt = await second.__aenter__()
        values = [await (await rt.submit(one, 1, key="k")).result() for rt in (one_rt, two_rt)]
        await first.__aexit__(None, None, None)
        values.append(await (await two_rt.submit(one, 2, key="k")).result())
        await second.__aexit__(None, None, None)
        async with open_runtime(MemoryStore(), workflows=ALL) as rt:
            values.append(await (await rt.submit(one, 3, key="k")).result())
        return values

    assert GUEST.run(main()) == [2, 2, 3, 4]


def test_a_runtime_can_be_opened_at_any_moment_while_another_one_closes(host: Host) -> None:
    async def main() -> None:
        leaving = asyncio.Event()
        is_closed = False

        async def closes() -> None:
            nonlocal is_closed
            async with open_runtime(MemoryStore(), thread=host.thread):
                leaving.set()
            is_closed = True

        for turns in range(200):
            leaving.clear()
            is_closed = False
            task = asyncio.create_task(closes())
            await leaving.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            was_closed = is_closed
            async with open_runtime(MemoryStore(), workflows=ALL, thread=host.thread) as rt:
                assert await (await rt.submit(one, 1, key="k")).result() == 2
            await task
            if was_closed:
                break

    host.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize(
    "wrong",
    [
        *("sleep", "sleep_0", "gather", "wait_for", "timeout", "future", "create_task"),
        *("to_thread", "event", "queue"),
    ],
)
# From Python 3.12 on, asyncio.gather leaves it behind.
@pytest.mark.filterwarnings("ignore:coroutine 'ensure_future.*never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*ensure_future.*:pytest.PytestUnraisableExceptionWarning")
def test_workflow_code_that_awaits_asyncio_fails_with_a_hint(wrong: str, host: Host) -> None:
    @step
    async def nothing() -> None: ...

    @workflow
    async def mistaken(ctx: Context) -> None:
        match wrong:
            case "sleep":
                await asyncio.sleep(1)
            case "sleep_0":
                await asyncio.sleep(0)
            case "gather":
                await asyncio.gather(ctx.step(nothing), ctx.step(nothing))
            case "wait_for":
                await asyncio.wait_for(ctx.step(nothing), 1)
            case "timeout":
                async with asyncio.timeout(1):
                    await ctx.step(nothing)
            case "event":
                await asyncio.Event().wait()
            case "queue":
                await asyncio.Queue[int]().get()
            case "future":
                await asyncio.Future()
            case "create_task":
                coroutine = asyncio.sleep(1)
                try:
                    await asyncio.create_task(coroutine)
                finally:
                    coroutine.close()
            case "to_thread":
                await asyncio.to_thread(print)

    async def body(rt: Runtime) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        run = await rt.submit(mistaken, key="k")
        with pytest.raises(RunFailed, match=r"ctx\.sleep, ctx\.gather, ctx\.fail_after"):
            await asyncio.wait_for(run.result(), 5)
        assert await (await rt.submit(one, 1, key="k")).result() == 2

    host.run_with_runtime(body, workflows=[mistaken, one])


def test_a_step_that_needs_asyncio_and_does_not_say_so_fails_with_a_hint(host: Host) -> None:
    @step(retry=keyrun.Retry.none())
    async def sleeps() -> None:
        await asyncio.sleep(1)

    @workflow
    async def sleeping(ctx: Context) -> None:
        await ctx.step(sleeps)

    async def body(rt: Runtime) -> None:
        with pytest.raises(RunFailed, match=r"declare it with @step\(asyncio=True\)"):
            await (await rt.submit(sleeping, key="k")).result()

    host.run_with_runtime(body, workflows=[sleeping])


async def test_the_asyncio_runtime_names_the_right_import_on_trio() -> None:
    with pytest.raises(RuntimeError, match=r"use keyrun\.open_runtime"):
        async with open_runtime(MemoryStore()):
            pass


def test_the_trio_runtime_names_the_right_import_on_asyncio() -> None:
    async def main() -> None:
        async with keyrun.open_runtime(MemoryStore()):
            pass

    with pytest.raises(RuntimeError, match=r"use keyrun\.asyncio\.open_runtime"):
        GUEST.run(main())


async def test_a_trio_host_runs_a_marked_lifespan_on_the_loop_of_its_asyncio_steps() -> None:
    loops: list[object] = []

    @keyrun.asyncio.lifespan
    @asynccontextmanager
    async def pools() -> AsyncIterator[str]:
        loops.append(asyncio.get_running_loop())
        yield "pool"
        loops.append(asyncio.get_running_loop())

    @step(asyncio=True)
    async def uses() -> str:
        loops.append(asyncio.get_running_loop())
        return str(keyrun.current_step().resources)

    @workflow
    async def using(ctx: Context) -> str:
        return await ctx.step(uses)

    async with keyrun.open_runtime(
        MemoryStore(), workflows=[using, submits, *ALL], lifespan=pools
    ) as rt:
        assert await (await rt.submit(using, key="k")).result() == "pool"
        # The other kinds of steps see no loop, so they get the runtime that fits them.
        assert await (await rt.submit(submits, key="k")).result() == [2, 3, 4]
    assert len(loops) == 3
    assert len(set(map(id, loops))) == 1


async def test_sys_exit_as_the_first_thing_on_the_loop_of_asyncio_does_not_stop_the_loop() -> None:
    @step(asyncio=True, retry=keyrun.Retry.none())
    async def exits() -> None:
        raise SystemExit(3)

    @workflow
    async def exiting(ctx: Context) -> None:
        await ctx.step(exits)

    @keyrun.asyncio.lifespan
    @asynccontextmanager
    async def pools(code: int = 4) -> AsyncIterator[None]:
        if code:
            raise SystemExit(code)
        yield

    async with keyrun.open_runtime(MemoryStore(), workflows=[exiting]) as rt:
        with pytest.raises(RunFailed, match=r"the step called sys\.exit\(3\)"):
            await (await rt.submit(exiting, key="k")).result()
    with pytest.raises(SystemExit, match="4"):
        async with keyrun.open_runtime(MemoryStore(), lifespan=pools):
            pass


async def test_errors_leave_a_marked_lifespan_as_they_are() -> None:
    @keyrun.asyncio.lifespan
    @asynccontextmanager
    async def pools(where: str = "the block") -> AsyncIterator[None]:
        if where == "the start":
            raise LookupError(where)
        yield
        if where == "the end":
            raise LookupError(where)

    for where in ("the start", "the block", "the end"):
        marked = keyrun.asyncio.lifespan(partial(pools, where))
        with pytest.raises(LookupError, match=where):
            async with keyrun.open_runtime(MemoryStore(), lifespan=marked):
                if where == "the block":
                    raise LookupError(where)


LOOPS = """
import asyncio
import threading

import keyrun.sync
from keyrun import Context, step, workflow
from keyrun.storage import MemoryStore

@step(asyncio=True)
async def on_asyncio() -> str:
    await asyncio.sleep(0)
    return "ran on asyncio"

@workflow
async def job(ctx: Context) -> str:
    return await ctx.step(on_asyncio)

with keyrun.sync.open_runtime(MemoryStore(), workflows=[job]) as rt:
    print(rt.submit(job, key="k").result())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    print(asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "another loop works"), loop).result(20))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
with asyncio.Runner() as runner:
    print(type(runner.get_loop()).__module__.partition(".")[0])
"""


def test_an_asyncio_step_leaves_the_other_loops_of_the_process_as_they_are() -> None:
    # trio-asyncio leaves a process alone that has imported pytest, so this needs one of its own.
    done = subprocess.run(
        [sys.executable, "-c", LOOPS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["ran on asyncio", "another loop works", "asyncio"], done


async def test_every_kind_of_step_can_submit_on_a_trio_host() -> None:
    async with keyrun.open_runtime(MemoryStore(), workflows=ALL) as rt:
        assert await (await rt.submit(submits, key="k")).result() == [2, 3, 4]
    assert trio.lowlevel.in_trio_task()
