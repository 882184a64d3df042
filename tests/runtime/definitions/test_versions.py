"""Versions: new runs take the highest, running ones keep theirs, and none is guessed."""

from math import inf
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Continue,
    PermanentError,
    RunFailed,
    State,
    Succeed,
    Turn,
    UnknownWorkflow,
    Workflow,
    machine,
    step,
    workflow,
)
from keyrun.runtime.machines import Verdict
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime


@step
async def one(value: str) -> str:
    return value


def function(version: int) -> Workflow[None, str]:
    """Asks for other steps in each version, so that one cannot go on with another's journal."""

    @workflow(name="flow", version=version)
    async def flow(ctx: Context) -> str:
        first = await ctx.step(one, f"v{version}")
        await ctx.sleep(10)
        return first + await ctx.step(one, f", v{version}")

    return flow


def turning(version: int) -> Workflow[Any, Any]:
    @machine(name="flow", version=version)
    async def turn(t: Turn) -> Verdict:
        said = f"{t.payload}, v{version}" if t.payload else f"v{version}"
        return Succeed(said) if t.number else Continue(said, after=10)

    return turn


KINDS = pytest.mark.parametrize("make", [function, turning])


@KINDS
async def test_new_runs_take_the_highest_version_and_running_ones_keep_theirs(
    autojump_clock: MockClock, make: Any
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[make(1)]) as runtime:
        await runtime.submit(make(1), key="a", run_id="old")
        await runtime.pause("old")
        await trio.sleep(1)
        # Not begun when the new version comes, and submitted before it.
        await runtime.submit(make(1), key="a", run_id="waiting")
    versions = [make(2), make(1), make(3)]
    for restart in range(2):
        async with open_test_runtime(store, workflows=versions) as runtime:
            new = await runtime.submit(versions[0], key="b", run_id="new")
            assert new.newly_submitted == (restart == 0)
            await trio.sleep(1)
            for run_id, version in (("old", 1), ("waiting", 1), ("new", 3)):
                status = await runtime.status(run_id)
                assert status is not None
                assert status.version == version
    async with open_test_runtime(store, workflows=versions) as runtime:
        await runtime.resume("old")
        for run_id, key, said in (
            ("old", "a", "v1, v1"),
            ("waiting", "a", "v1, v1"),
            ("new", "b", "v3, v3"),
        ):
            run = await runtime.submit(versions[0], key=key, run_id=run_id)
            assert not run.newly_submitted
            assert await run.result() == said


@KINDS
async def test_a_version_that_is_not_registered_quarantines_until_it_is(
    autojump_clock: MockClock, make: Any
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[make(1)]) as runtime:
        await runtime.submit(make(1), key="k", run_id="r")
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[make(2)]) as runtime:
        behind = await runtime.submit(make(2), key="k", run_id="behind")
        elsewhere = await runtime.submit(make(2), key="other", run_id="elsewhere")
        assert await elsewhere.result() == "v2, v2"
        status, waiting = await runtime.status("r"), await behind.status()
        assert status is not None
        assert waiting is not None
        assert (status.state, status.version) == (State.QUARANTINED, 1)
        assert "'flow' version 1 is not registered" in (status.reason or "")
        assert waiting.state is State.PENDING
    async with open_test_runtime(store, workflows=[make(1), make(2)]) as runtime:
        run = await runtime.submit(make(2), key="k", run_id="r")
        assert await run.result() == "v1, v1"
        behind = await runtime.submit(make(2), key="k", run_id="behind")
        assert await behind.result() == "v2, v2"


async def test_a_redrive_without_the_version_takes_the_latest_and_checks_it_against_the_journal(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[function(1)], evict_after=inf) as runtime:
        await runtime.submit(function(1), key="k", run_id="r")
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[function(2)]) as runtime:
        await trio.sleep(1)
        await runtime.redrive("r")
        await trio.sleep(1)
        status = await runtime.status("r")
        assert status is not None
        assert (status.state, status.version) == (State.QUARANTINED, 2)
        assert "the step 'one' with other arguments" in (status.reason or "")


async def test_a_machine_that_is_redriven_without_its_version_turns_on_with_the_latest(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[turning(1)], evict_after=inf) as runtime:
        await runtime.submit(turning(1), key="k", run_id="r")
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[turning(2)]) as runtime:
        await trio.sleep(1)
        await runtime.redrive("r")
        run = await runtime.submit(turning(2), key="k", run_id="r")
        assert await run.result() == "v1, v2"


async def test_a_dead_letter_is_redriven_with_its_version_while_that_is_registered(
    autojump_clock: MockClock,
) -> None:
    broken = True

    def paying(version: int) -> Workflow[None, str]:
        @step
        async def pay() -> str:
            if broken:
                raise PermanentError("no money")
            return "paid"

        @workflow(name="flow", version=version)
        async def flow(ctx: Context) -> str:
            return f"{await ctx.step(pay)} by v{version}"

        return flow

    store = MemoryStore()
    v1, v2 = paying(1), paying(2)
    async with open_test_runtime(store, workflows=[v1]) as runtime:
        for run_id in ("kept", "moved"):
            with pytest.raises(RunFailed):
                await (await runtime.submit(v1, key="k", run_id=run_id)).result()
    broken = False
    async with open_test_runtime(store, workflows=[v1, v2]) as runtime:
        await runtime.redrive("kept")
        assert await (await runtime.submit(v2, key="k", run_id="kept")).result() == "paid by v1"
    async with open_test_runtime(store, workflows=[v2]) as runtime:
        await runtime.redrive("moved")
        assert await (await runtime.submit(v2, key="k", run_id="moved")).result() == "paid by v2"


async def test_one_version_is_one_workflow(autojump_clock: MockClock) -> None:
    with pytest.raises(ValueError, match="two workflows are called 'flow' version 1"):
        async with open_test_runtime(workflows=[function(1), function(1)]):
            pass
    same = function(1)
    async with open_test_runtime(workflows=[same, same]) as runtime:
        with pytest.raises(UnknownWorkflow, match="which has: flow"):
            await runtime.submit(workflow(name="other")(same.function), key="k")


@pytest.mark.parametrize("version", [0, -1, True, "1", 1.0])
def test_a_version_is_a_whole_number_of_at_least_1(version: Any) -> None:
    with pytest.raises(ValueError, match="version must be a whole number of at least 1"):
        function(version)
