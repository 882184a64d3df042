"""A step that holds the event loop is named, and no other step pays for it."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from keyrun import Context, Retry, RunFailed, step, workflow
from keyrun.asyncio import Runtime
from keyrun.events import SetbackEvent
from keyrun.runtime.tuning import Tuning
from tests.hosting.blocking import SOON, Noticed, noticed
from tests.hosting.hosts import GUEST, HOSTS, Host
from tests.hosting.workflows import one

ONCE = Retry.none()


@pytest.fixture
def watched() -> Iterator[Noticed]:
    with noticed() as watched:
        yield watched


def one_step(body: Any, **options: Any) -> Any:
    """Return a workflow with one step of this name."""
    only = step(retry=ONCE, **options)(body)

    @workflow(name=f"of_{body.__name__}")
    async def of(ctx: Context) -> Any:
        return await ctx.step(only)

    return of


@pytest.mark.parametrize("on_loop", [False, True], ids=["trio", "asyncio"])
def test_a_step_that_holds_the_loop_is_logged_and_emitted(
    host: Host, on_loop: bool, watched: Noticed
) -> None:
    async def holds() -> str:
        watched.hold_the_loop()
        return "done"

    holding = one_step(holds, asyncio=on_loop)

    async def body(rt: Runtime) -> None:
        async with rt.events(kinds=["step_blocked"]) as events:
            run = await rt.submit(holding, key="k")
            assert await run.result() == "done"
            event = await asyncio.wait_for(anext(events), 10)
        assert isinstance(event, SetbackEvent)
        assert (event.run_id, event.step, event.attempt) == (run.run_id, "holds", 1)
        assert event.elapsed is not None
        assert event.elapsed >= 0.2
        assert watched.steps == ["holds"]
        assert watched.count("it runs Noticed.hold_the_loop") == 1

    host.run_with_runtime(body, workflows=[holding], tuning=SOON)


@pytest.mark.parametrize("on_loop", [False, True], ids=["trio", "asyncio"])
@pytest.mark.parametrize("pauses", [False, True], ids=["at_once", "after_a_pause"])
def test_a_step_that_exceeds_its_timeout_while_it_holds_the_loop_times_out(
    host: Host, on_loop: bool, pauses: bool, watched: Noticed
) -> None:
    pause = asyncio.sleep if on_loop else _pause_on_trio

    async def holds() -> str:
        if pauses:
            await pause(0.001)
        watched.hold_the_loop()
        return "late"

    holding = one_step(holds, asyncio=on_loop, timeout=0.15)

    async def body(rt: Runtime) -> None:
        async with rt.events(kinds=["step_timed_out"]) as events:
            with pytest.raises(RunFailed, match=r"took longer than its timeout of 0\.15 s"):
                await (await rt.submit(holding, key="k")).result()
            assert (await asyncio.wait_for(anext(events), 10)).step == "holds"  # type: ignore[union-attr]
        assert await (await rt.submit(one, 1, key="k")).result() == 2
        assert rt.statistics().running_steps == 0

    host.run_with_runtime(body, workflows=[holding, one], tuning=SOON)


async def _pause_on_trio(seconds: float) -> None:
    import trio

    await trio.sleep(seconds)


@pytest.mark.parametrize("name", ["guest", "uvloop"])
@pytest.mark.parametrize("on_loop", [False, True], ids=["trio", "asyncio"])
def test_a_step_that_another_one_delayed_keeps_its_result(
    name: str, on_loop: bool, watched: Noticed
) -> None:
    runs = 0
    begun = asyncio.Event()
    pause = asyncio.sleep if on_loop else _pause_on_trio

    async def delayed() -> str:
        nonlocal runs
        runs += 1
        begun.set()
        await pause(0.01)
        return "kept"

    async def holds() -> None:
        watched.hold_the_loop()

    holding, waiting = one_step(holds), one_step(delayed, asyncio=on_loop, timeout=0.5)

    async def body(rt: Runtime) -> None:
        run = await rt.submit(waiting, key="delayed")
        await begun.wait()
        await rt.submit(holding, key="holds")
        assert await run.result() == "kept"
        assert runs == 1
        assert watched.steps == ["holds"]

    HOSTS[name].run_with_runtime(
        body,
        workflows=[holding, waiting],
        tuning=Tuning(watchdog_period=0.02, watchdog_limit=0.8),
    )


def test_a_host_that_holds_its_loop_is_logged_and_blames_no_step(watched: Noticed) -> None:
    async def body(rt: Runtime) -> None:
        before = rt.statistics().loop
        assert before.longest_pass is not None
        await (await rt.submit(one, 1, key="k")).result()
        watched.hold_the_loop()
        while not watched.count("the event loop answered"):
            await asyncio.sleep(0.005)
        assert watched.steps == []
        assert watched.count("it runs Noticed.hold_the_loop") == 1
        after = rt.statistics().loop
        assert after.longest_lag >= 0.2
        assert after.lag <= after.longest_lag
        assert after.longest_pass is not None
        assert after.longest_pass > 0

    GUEST.run_with_runtime(body, tuning=SOON)


def test_a_host_with_a_thread_may_hold_its_loop(watched: Noticed) -> None:
    async def body(rt: Runtime) -> None:
        time.sleep(0.5)
        await (await rt.submit(one, 1, key="k")).result()
        assert rt.statistics().loop.longest_pass is None

    HOSTS["thread"].run_with_runtime(body, tuning=SOON)
    assert not any(__file__ in each.getMessage() for each in watched.records)
