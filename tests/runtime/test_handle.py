"""Handles: those of `rt.run`, the timeout of `result`, and a status that is always there."""

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    InvalidRunId,
    RunCancelled,
    RunFailed,
    RunQuarantined,
    State,
    UnknownRun,
    Workflow,
    step,
    workflow,
)
from keyrun.errors import ResultTimeout
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime


@attrs.frozen
class Receipt:
    number: int


@workflow
async def charge(ctx: Context, number: int) -> Receipt:
    return Receipt(number)


@workflow(name="charge", version=2)
async def charge_again(ctx: Context, number: int) -> int:
    return number


@workflow
async def refuse(ctx: Context) -> None:
    ctx.fail("sold out")


@workflow
async def nap(ctx: Context) -> str:
    await ctx.sleep(10)
    return "rested"


@step
async def long_step() -> str:
    await trio.sleep(10)
    return "rested"


@workflow
async def toil(ctx: Context) -> str:
    return await ctx.step(long_step)


async def test_the_handle_of_a_run_id_waits_for_the_run(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[nap]) as rt:
        await rt.submit(nap, key="k", run_id="r")
        run = rt.run("r")
        assert run.run_id == "r"
        assert run.newly_submitted is False
        assert await run.result() == "rested"
        assert (await run.status()).state is State.SUCCEEDED


async def test_the_result_has_the_type_of_the_workflow_and_version_of_the_run(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[charge]) as rt:
        await (await rt.submit(charge, 7, key="k", run_id="r")).result()
    async with open_test_runtime(store, workflows=[charge, charge_again]) as rt:
        assert await rt.run("r").result() == Receipt(7)
        await rt.submit(charge_again, 8, key="k", run_id="s")
        assert await rt.run("s").result() == 8


async def test_the_handle_of_a_run_id_raises_how_the_run_ended(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[refuse, nap]) as rt:
        await rt.submit(refuse, key="k", run_id="failed")
        await rt.submit(nap, key="l", run_id="cancelled")
        with pytest.raises(RunFailed, match="sold out"):
            await rt.run("failed").result()
        assert await rt.run("cancelled").cancel()
        with pytest.raises(RunCancelled):
            await rt.run("cancelled").result()


async def test_the_handle_of_an_evicted_run_waits_for_it(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[nap], evict_after=1) as rt:
        await rt.submit(nap, key="k", run_id="r")
        await trio.sleep(5)
        assert rt.statistics().live == 0
        assert await rt.run("r").result() == "rested"


async def test_every_call_of_the_handle_of_an_unknown_run_says_so() -> None:
    async with open_test_runtime(workflows=[charge]) as rt:
        run = rt.run("nobody")
        for call in (run.result, run.status, run.cancel):
            with pytest.raises(UnknownRun, match="no run has the id 'nobody'") as raised:
                await call()
            assert raised.value.run_id == "nobody"
        await rt.submit(charge, 1, key="k", run_id="nobody")
        assert await run.result() == Receipt(1)


async def test_a_run_id_that_cannot_be_one_is_refused_at_once() -> None:
    async with open_test_runtime() as rt:
        with pytest.raises(InvalidRunId, match="'a b'"):
            rt.run("a b")


async def test_the_key_of_a_handle_is_known_after_its_first_call() -> None:
    async with open_test_runtime(workflows=[charge]) as rt:
        await rt.submit(charge, 1, key="ann", run_id="r")
        run = rt.run("r")
        assert repr(run) == "<run r>"
        with pytest.raises(RuntimeError, match=r"key of the run 'r' is not known yet.*status\(\)"):
            _ = run.key
        await run.status()
        assert run.key == "ann"
        assert repr(run) == "<run r of key 'ann'>"


@pytest.mark.parametrize("found", [False, True])
async def test_a_handle_says_that_its_run_was_forgotten(
    found: bool, autojump_clock: MockClock
) -> None:
    async with open_test_runtime(workflows=[charge]) as rt:
        run = await rt.submit(charge, 1, key="k", run_id="r")
        run = rt.run("r") if found else run
        assert await run.result() == Receipt(1)
        await rt.forget("r")
        await rt.submit(charge, 2, key="k", run_id="r")
        for call in (run.result, run.status):
            with pytest.raises(UnknownRun, match="the run 'r' was forgotten"):
                await call()


async def test_the_result_of_a_damaged_run_says_that_it_is_quarantined(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[nap]) as rt:
        await rt.submit(nap, key="k", run_id="r")
    async with store:
        [(key, raw)] = await store.scan("runs")
        store.open_group().put("runs", key, raw[:-1] + bytes([raw[-1] ^ 1]))
        await store.durable()
    async with open_test_runtime(store, workflows=[nap]) as rt:
        run = rt.run("r")
        with pytest.raises(RunQuarantined, match="damaged"):
            await run.result()
        assert (await run.status()).state is State.QUARANTINED
        assert run.key == "k"


@pytest.mark.parametrize("flow", [nap, toil])
@pytest.mark.parametrize("evict_after", [1, 100])
async def test_a_result_that_takes_too_long_leaves_the_run_running(
    flow: Workflow[None, str], evict_after: float, autojump_clock: MockClock
) -> None:
    async with open_test_runtime(workflows=[nap, toil], evict_after=evict_after) as rt:
        run = await rt.submit(flow, key="ann", run_id="order-7")
        for waiting in (run, rt.run("order-7")):
            began = trio.current_time()
            with pytest.raises(
                TimeoutError, match=r"the run 'order-7' of key 'ann' did not end within 2.5 s"
            ) as raised:
                await waiting.result(timeout=2.5)
            assert trio.current_time() - began == pytest.approx(2.5)
            assert isinstance(raised.value, ResultTimeout)
            assert (raised.value.run_id, raised.value.key) == ("order-7", "ann")
            assert raised.value.timeout == 2.5
        assert not (await run.status()).state.terminal
        assert await run.result(timeout=60) == "rested"
        assert trio.current_time() == pytest.approx(10, abs=0.1)


async def test_a_timeout_of_zero_does_not_wait(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[nap]) as rt:
        run = await rt.submit(nap, key="k")
        with pytest.raises(ResultTimeout, match="within 0 s"):
            await run.result(timeout=0)
        await run.result()
        assert await run.result(timeout=0) == "rested"


@pytest.mark.parametrize("timeout", [-1, float("nan"), True, "5"])
async def test_a_timeout_that_is_none_is_refused(timeout: float) -> None:
    async with open_test_runtime(workflows=[charge]) as rt:
        run = await rt.submit(charge, 1, key="k")
        with pytest.raises((ValueError, TypeError), match="timeout must be"):
            await run.result(timeout=timeout)


async def test_a_cancelled_wait_is_no_timeout(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[nap]) as rt:
        run = await rt.submit(nap, key="k")
        with trio.move_on_after(1) as scope:
            await run.result(timeout=5)
        assert scope.cancelled_caught
