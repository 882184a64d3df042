"""`ctx.log`: lines that carry their run, and appear once however often the workflow is called."""

import logging

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, Retry, current_step, step, workflow
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime, replay
from tests.runtime.blocks import stop

FIELDS = ("run", "key", "workflow", "step", "attempt", "event")
SOON = Retry.fixed(max_attempts=3, delay=1, jitter=0)


@step
async def quick() -> str:
    return "done"


@step(timeout=5, retry=SOON)
async def slow() -> str:
    await trio.sleep(60 if current_step().attempt == 1 else 0)
    return "done"


@step
async def endless() -> None:
    await trio.sleep(1_000)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "keyrun.workflow"]


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@workflow
async def errand(ctx: Context) -> None:
    ctx.log.info("begins")
    await ctx.step(quick)
    ctx.log.info("one")
    await ctx.sleep(10)
    ctx.log.info("slept")
    await ctx.wait_signal("go")
    ctx.log.info("ends")


async def test_a_line_carries_its_run_key_workflow_and_last_step(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        ctx.log.warning("starts with %d", 5, extra={"order": 7})
        await ctx.step(quick)
        await ctx.step(quick)
        ctx.log.info("after two")

    async with open_test_runtime(workflows=[flow]) as rt:
        await (await rt.submit(flow, key="ann", run_id="r")).result()
    first, last = (each for each in caplog.records if each.name == "keyrun.workflow")
    assert first.getMessage() == "starts with 5"
    assert first.levelno == logging.WARNING
    assert [getattr(first, each) for each in FIELDS] == ["r", "ann", "flow", None, None, None]
    assert vars(first)["order"] == 7
    assert first.funcName == "flow"
    assert first.filename == "test_run_log.py"
    assert [getattr(last, each) for each in FIELDS[:4]] == ["r", "ann", "flow", "quick#2"]


@pytest.mark.parametrize("crash", [False, True])
async def test_a_line_appears_once_over_restarts(
    crash: bool, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    store = MemoryStore()
    expected = ["begins", "one"]
    async with open_test_runtime(store, workflows=[errand]) as rt:
        await rt.submit(errand, key="k", run_id="r")
        await trio.sleep(5)
        await stop(store, crash)
    assert lines(caplog) == expected
    for _ in range(2):
        async with open_test_runtime(store, workflows=[errand]) as rt:
            await trio.sleep(20)
            await stop(store, crash)
        assert lines(caplog) == [*expected, "slept"]
    async with open_test_runtime(store, workflows=[errand]) as rt:
        await rt.signal("r", "go")
        await rt.run("r").result()
    assert lines(caplog) == [*expected, "slept", "ends"]


async def test_a_line_appears_once_though_the_run_leaves_memory(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async with open_test_runtime(workflows=[errand], evict_after=1) as rt:
        await rt.submit(errand, key="k", run_id="r")
        await trio.sleep(100)
        assert rt.statistics().live == 0
        await rt.signal("r", "go")
        await rt.run("r").result()
    assert lines(caplog) == ["begins", "one", "slept", "ends"]


async def test_a_line_appears_once_though_a_step_times_out(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        ctx.log.info("first")
        await ctx.step(quick)
        ctx.log.info("second")
        try:
            await ctx.step(slow)
        finally:
            ctx.log.info("third")
        ctx.log.info("last")

    async with open_test_runtime(workflows=[flow]) as rt:
        await (await rt.submit(flow, key="k")).result()
    assert lines(caplog) == ["first", "second", "third", "last"]


async def test_code_that_a_drain_or_an_eviction_unwinds_logs_nothing(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        try:
            await ctx.wait_signal("go")
        finally:
            ctx.log.info("over")

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow], evict_after=1) as rt:
        await rt.submit(flow, key="k", run_id="r")
        await trio.sleep(10)
    async with open_test_runtime(store, workflows=[flow], evict_after=60) as rt:
        await trio.sleep(1)
    assert lines(caplog) == []
    async with open_test_runtime(workflows=[flow]) as rt:
        run = await rt.submit(flow, key="k")
        await trio.sleep(0.5)
        await run.cancel()
    assert lines(caplog) == ["over"]


async def test_a_step_that_was_interrupted_does_not_repeat_the_line_before_it(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        ctx.log.info("before")
        await ctx.step(endless)

    store = MemoryStore()
    for _ in range(3):
        async with open_test_runtime(store, workflows=[flow]) as rt:
            await rt.submit(flow, key="k", run_id="r")
            await trio.sleep(1)  # the start of the step is durable
            await stop(store, crash=True)
    assert lines(caplog) == ["before"]


async def test_branches_and_children_log_their_lines_once(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    @workflow
    async def inner(ctx: Context) -> None:
        ctx.log.info("child begins")
        await ctx.step(quick)
        ctx.log.info("child ends")

    async def branch(ctx: Context) -> None:
        ctx.log.info("branch begins")
        await ctx.step(quick)
        ctx.log.info("branch waits")
        await ctx.wait_signal("go")

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.child(inner)
        await ctx.gather(branch, branch)
        ctx.log.info("all done")

    store = MemoryStore()
    for _ in range(3):
        async with open_test_runtime(store, workflows=[flow, inner]) as rt:
            run = await rt.submit(flow, key="k", run_id="r")
            await trio.sleep(3)
    async with open_test_runtime(store, workflows=[flow, inner]) as rt:
        for _ in range(2):
            await rt.signal("r", "go")
        await rt.run("r").result()
    assert sorted(lines(caplog)) == sorted(
        ["child begins", "child ends", *["branch begins", "branch waits"] * 2, "all done"]
    )
    steps = {vars(each)["step"] for each in caplog.records if each.message == "branch waits"}
    assert steps == {"g1.0/quick", "g1.1/quick"}
    assert run.run_id == "r"


async def test_a_run_that_continues_with_an_empty_journal_logs_every_round(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    @workflow
    async def flow(ctx: Context, left: int) -> None:
        ctx.log.info("%d left", left)
        await ctx.sleep(1)
        if left:
            ctx.continue_as(left - 1)

    async with open_test_runtime(workflows=[flow]) as rt:
        await (await rt.submit(flow, 2, key="k")).result()
    assert lines(caplog) == ["2 left", "1 left", "0 left"]


async def test_the_replay_of_a_history_logs_nothing(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async with open_test_runtime(workflows=[errand]) as rt:
        run = await rt.submit(errand, key="k", run_id="r")
        await rt.signal("r", "go")
        await run.result()
        history = await rt.history("r")
    caplog.clear()
    await replay(history, errand)
    assert lines(caplog) == []


async def test_a_step_may_use_the_logger_of_its_workflow(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        log = ctx.log

        @step(name="noisy", timeout=5, retry=SOON)
        async def noisy() -> None:
            attempt = current_step().attempt
            log.info("attempt %d", attempt)
            await trio.sleep(60 if attempt == 1 else 0)

        await ctx.step(noisy)
        log.info("after")

    async with open_test_runtime(workflows=[flow]) as rt:
        await (await rt.submit(flow, key="k", run_id="r")).result()
    assert lines(caplog) == ["attempt 1", "attempt 2", "after"]
    where = [
        (vars(each)["step"], vars(each)["attempt"])
        for each in caplog.records
        if each.name == "keyrun.workflow"
    ]
    assert where == [("noisy", 1), ("noisy", 2), ("noisy", None)]


async def test_an_exception_of_a_handler_does_not_reach_the_workflow(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise OSError("no space left on device")

    @workflow
    async def flow(ctx: Context) -> str:
        ctx.log.info("lost")
        return "done"

    broken = Broken()
    logging.getLogger("keyrun.workflow").addHandler(broken)
    try:
        async with open_test_runtime(workflows=[flow]) as rt:
            assert await (await rt.submit(flow, key="k", run_id="r")).result() == "done"
    finally:
        logging.getLogger("keyrun.workflow").removeHandler(broken)
    [failed] = [each for each in caplog.records if vars(each).get("event") == "log_failed"]
    assert failed.getMessage().endswith("ctx.log could not log 'lost': OSError")
