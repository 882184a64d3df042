"""What is told about runs and keys, by the runtime and by a reader in another process."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    PermanentError,
    Retry,
    RunFailed,
    State,
    UnknownRun,
    Workflow,
    open_reader,
    open_runtime,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime
from tests.storage.processes import run_python

failing = {"left": 2}


@step(retry=Retry.fixed(max_attempts=5, delay=10, jitter=0))
async def flaky() -> str:
    if failing["left"]:
        failing["left"] -= 1
        raise ValueError("not yet")
    return "ok"


@workflow
async def patient(ctx: Context) -> str:
    answer = await ctx.step(flaky)
    await ctx.sleep(100)
    return answer


@step
async def broken() -> None:
    raise PermanentError("broken for good")


@workflow
async def doomed(ctx: Context) -> None:
    await ctx.step(broken)


async def test_the_history_tells_every_attempt_with_its_error_and_delay(
    autojump_clock: MockClock,
) -> None:
    failing["left"] = 2
    async with open_test_runtime(workflows=[patient]) as runtime:
        run = await runtime.submit(patient, key="k", run_id="r")
        await run.result()
        story = await runtime.history("r")
    told = [(h.event, h.step, h.attempt, h.delay) for h in story]
    assert told == [
        ("submitted", None, None, None),
        ("started", None, None, None),
        ("attempt_failed", "flaky", 1, 10),
        ("attempt_failed", "flaky", 2, 10),
        ("step_completed", "flaky", 3, None),
        ("timer_set", "sleep()", None, 100),
        ("timer_fired", "sleep()", 1, None),
        ("succeeded", None, None, None),
    ]
    assert story[2].failure is not None
    assert "not yet" in story[2].failure.reason
    assert story[2].failure.error_type == "builtins.ValueError"
    assert story[-1].at - story[0].at == pytest.approx(120, abs=0.1)


async def test_the_history_of_a_failure_names_it(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[doomed]) as runtime:
        run = await runtime.submit(doomed, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        story = await runtime.history("r")
    assert [h.event for h in story] == ["submitted", "started", "step_failed", "failed"]
    assert story[2].failure is not None
    assert "broken for good" in (story[2].failure.traceback or "")
    assert "broken for good" in (story[3].detail or "")


async def test_unknown_runs_have_no_history_and_no_status(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[doomed]) as runtime:
        assert list(await runtime.history("nobody")) == []
        assert await runtime.status("nobody") is None
        with pytest.raises(UnknownRun):
            await runtime.runs(after="nobody")


async def test_runs_are_listed_in_order_by_filter_and_page(autojump_clock: MockClock) -> None:
    failing["left"] = 0
    async with open_test_runtime(workflows=[patient, doomed]) as runtime:
        for number in range(6):
            kind: Workflow[None, Any] = doomed if number % 2 else patient
            await runtime.submit(
                kind, key=f"k{number % 3}", run_id=f"r{number}", tags=[f"t{number}"]
            )
        await trio.sleep(1)

        async def ids(**filters: object) -> list[str]:
            return [status.run_id for status in await runtime.runs(**filters)]  # type: ignore[arg-type]

        assert await ids() == [f"r{n}" for n in range(6)]
        assert await ids(limit=2) == ["r0", "r1"]
        assert await ids(limit=2, after="r1") == ["r2", "r3"]
        assert await ids(workflow="doomed") == ["r1", "r3", "r5"]
        assert await ids(key="k1") == ["r1", "r4"]
        assert await ids(tag="t4") == ["r4"]
        assert await ids(state=State.FAILED) == ["r1"]
        keys = await runtime.keys()
        assert [(k.key, k.runs, k.head, k.state) for k in keys] == [
            ("k0", 2, "r0", State.WAITING),
            ("k1", 1, "r4", State.WAITING),
            ("k2", 2, "r2", State.WAITING),
        ]
        assert [k.key for k in await runtime.keys(limit=1, after="k0")] == ["k1"]


async def test_a_reader_on_a_store_in_memory_sees_what_is_durable(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[doomed]) as runtime:
        run = await runtime.submit(doomed, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        async with open_reader(store) as reader:
            (letter,) = await reader.dead_letters()
            assert letter.run_id == "r"


READER = """
    import sys, trio
    from keyrun import open_reader

    async def main():
        async with open_reader(sys.argv[1]) as reader:
            status = await reader.status("waiting")
            print(status.state, status.waiting_on)
            status = await reader.status("done")
            print(status.state, status.result)
            print([h.event for h in await reader.history("done")])
            print([(r.run_id, r.state.value) for r in await reader.runs()])
            print([(k.key, k.runs) for k in await reader.keys()])
            print(await reader.dead_letters())

    trio.run(main)
"""


async def test_another_process_reads_a_live_store(tmp_path: Path) -> None:
    @step
    async def double(number: int) -> int:
        return 2 * number

    @workflow
    async def sum_up(ctx: Context, seconds: float) -> int:
        doubled = await ctx.step(double, 21)
        if seconds:
            await ctx.sleep(seconds)
        return doubled

    async with open_runtime(tmp_path, workflows=[sum_up]) as runtime:
        done = await runtime.submit(sum_up, 0, key="a", run_id="done")
        await done.result()
        waiting = await runtime.submit(sum_up, 1000, key="b", run_id="waiting")
        while (status := await waiting.status()) and status.state is not State.WAITING:
            await trio.sleep(0.01)
        await runtime._partition.state.store.durable()
        child = await trio.to_thread.run_sync(run_python, READER, tmp_path)
    assert child.stdout.splitlines() == [
        "waiting timer",
        "succeeded 42",
        "['submitted', 'started', 'step_completed', 'succeeded']",
        "[('done', 'succeeded'), ('waiting', 'waiting')]",
        "[('b', 1)]",
        "[]",
    ], child.stderr
