"""A bug of Keyrun in what a workflow asks for is not taken for a failure of the workflow."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Entity,
    FailureKind,
    Retry,
    RunFailed,
    State,
    StepFailed,
    Workflow,
    entity,
    step,
    workflow,
)
from keyrun.runtime.run.journal import Journal
from keyrun.runtime.run.run import Run
from keyrun.storage import MemoryStore, StoreError
from keyrun.testing import RecordingHook, open_test_runtime


@step
async def quick() -> str:
    return "done"


@step
async def slow() -> str:
    await trio.sleep(1)
    return "done"


@workflow
async def plain(ctx: Context) -> str:
    return await ctx.step(quick) + await ctx.step(slow)


@workflow
async def branches(ctx: Context) -> str:
    async def beside(ctx: Context) -> str:
        await ctx.sleep(0.5)
        return await ctx.step(quick)

    return "".join(await ctx.gather(ctx.step(slow), beside))


@workflow
async def limited(ctx: Context) -> str:
    with ctx.move_on_after(10):
        await ctx.sleep(1)
    return await ctx.step(quick)


def unlearn(owner: type | object, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Take away what Keyrun needs, so that its own code raises."""
    return lambda patch: patch.setattr(owner, name, None)


BUGS = [
    (plain, unlearn(Run, "enter")),
    (plain, unlearn(Journal, "remember")),
    (branches, unlearn(Journal, "settled")),
    (branches, unlearn(Journal, "memory")),
    (limited, unlearn(Run, "write")),
    (limited, unlearn(Journal, "around")),
]


@pytest.mark.parametrize("number", range(len(BUGS)))
async def test_a_bug_in_what_a_workflow_asks_for_sets_its_key_aside(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    flow, plant = BUGS[number]
    hook = RecordingHook()
    async with open_test_runtime(workflows=[flow], on_terminal=hook, max_restarts=2) as rt:
        with monkeypatch.context() as patch:
            plant(patch)
            run = await rt.submit(flow, key="k", run_id="r")
            await trio.sleep(100)
            status = await rt.status("r")
            assert status is not None
            assert (status.state, status.failure) == (State.QUARANTINED, None), status
            assert not await rt.dead_letters()
            assert not hook.outcomes
            (key,) = await rt.keys(quarantined=True)
            assert "NoneType" in str(key.reason)
        await rt.release_key("k")
        assert "done" in await run.result()
        assert rt.statistics().running_steps == 0
    assert [outcome.state for outcome in hook.outcomes] == [State.SUCCEEDED]
    assert any(each.__dict__.get("event") == "key_crashed" for each in caplog.records)


def _flow(body: Callable[[Context], object]) -> Workflow[None, object]:
    @workflow
    async def flow(ctx: Context) -> object:
        return body(ctx)

    return flow


def _steps(function: Callable[..., object], *args: object) -> Workflow[None, object]:
    made = step(name="made", retry=Retry.none())(function)

    @workflow
    async def flow(ctx: Context) -> object:
        return await ctx.step(made, *args)

    return flow


async def two_more(first: int, second: int) -> int:
    return first + second


@pytest.mark.parametrize(
    "flow",
    [
        _flow(lambda ctx: ctx.report("much")),  # type: ignore[arg-type]
        _flow(lambda ctx: ctx.move_on_after("soon")),  # type: ignore[arg-type]
        _flow(lambda ctx: ctx.step(None)),  # type: ignore[call-overload]
        _flow(lambda ctx: ctx.fail(3)),  # type: ignore[arg-type]
        _flow(lambda ctx: ctx.headers["x"]),
        _flow(lambda ctx: object()),
        _steps(two_more, 1),
        _steps(two_more, 1, "x"),
        _steps(json.loads, "{"),
        _steps(int, "x"),
    ],
)
async def test_what_the_user_did_wrong_is_a_failure_of_the_run(
    autojump_clock: MockClock, flow: Workflow[None, object]
) -> None:
    async with open_test_runtime(workflows=[flow]) as rt:
        with pytest.raises(RunFailed) as caught:
            await (await rt.submit(flow, key="k")).result()
        assert caught.value.failure.kind in (
            FailureKind.WORKFLOW_ERROR,
            FailureKind.STEP_FAILED,
            FailureKind.PERMANENT_ERROR,
        )
        assert len(await rt.dead_letters()) == 1
        assert rt.statistics().quarantined_keys == 0


async def test_a_workflow_that_sleeps_for_no_number_fails(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.sleep("long")  # type: ignore[arg-type]

    async with open_test_runtime(workflows=[flow]) as rt:
        with pytest.raises(RunFailed):
            await (await rt.submit(flow, key="k")).result()


async def test_a_bug_is_not_handled_as_a_failure_of_the_step(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled = False

    @workflow
    async def careful(ctx: Context) -> str:
        nonlocal handled
        try:
            return await ctx.step(slow)
        except StepFailed:
            handled = True
            return "undone"

    async with open_test_runtime(workflows=[careful]) as rt:
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "settled", None)
            run = await rt.submit(careful, key="k")
            await trio.sleep(1.5)
        assert await run.result() == "done"
    assert not handled


class GivesUp(MemoryStore):
    """A store that cannot say who stands in line, once, when it is told to."""

    armed = False

    async def _scan(self, table: str, *where: Any) -> list[tuple[bytes, bytes]]:
        if self.armed and table == "queue":
            self.armed = False
            raise StoreError("the disk gave up")
        return await super()._scan(table, *where)


@workflow
async def holding(ctx: Context, seconds: float) -> float:
    await ctx.sleep(seconds)
    return seconds


async def test_a_store_that_cannot_be_read_fails_the_runtime_and_not_the_run_that_asked(
    autojump_clock: MockClock,
) -> None:
    store = GivesUp()

    @workflow
    async def parent(ctx: Context, again: bool) -> float:
        store.armed = not tried
        tried.append(again)
        return await ctx.child(holding, 1, key="held")

    tried: list[bool] = []
    with pytest.raises(StoreError, match="gave up"):
        async with open_test_runtime(store, workflows=[holding, parent]) as runtime:
            await runtime.submit(holding, 3600, key="held")
            await trio.sleep(10)
            run = await runtime.submit(parent, True, key="k", run_id="r")
            await run.result()
    async with open_test_runtime(store, workflows=[holding, parent]) as runtime:
        again = await runtime.submit(parent, True, key="k", run_id="r")
        assert not again.newly_submitted
        assert await again.result() == 1


class Blank(MemoryStore):
    """A store that cannot read the state of an entity."""

    async def _get(self, table: str, key: bytes) -> bytes | None:
        if table == "entities":
            raise StoreError("the disk gave up")
        return await super()._get(table, key)


@entity
class Counter(Entity):
    async def add(self) -> int:
        return 1


async def test_whoever_calls_an_entity_that_cannot_be_read_is_told_and_waits_no_longer(
    autojump_clock: MockClock,
) -> None:
    told: list[str] = []
    with trio.fail_after(100), pytest.raises(StoreError, match="gave up"):
        async with open_test_runtime(Blank(), entities=[Counter]) as runtime:
            try:
                await runtime.call(Counter, "k", "add")
            except StoreError as error:
                told.append(str(error))
                raise
    assert told == ["the disk gave up"]


@pytest.mark.parametrize("who", ["a branch beside it", "another run"])
async def test_what_waits_while_the_store_cannot_be_read_waits_again_afterwards(
    autojump_clock: MockClock, who: str
) -> None:
    """That everything ends is no decision of the workflow to have its child cancelled."""
    store = GivesUp()

    async def ask(ctx: Context, again: bool) -> float:
        await ctx.sleep(20)
        if again:
            store.armed = not tried
            tried.append(who)
        return await ctx.child(holding, 1, key="held")

    @workflow
    async def other(ctx: Context) -> float:
        return await ask(ctx, who == "another run")

    @workflow
    async def parent(ctx: Context) -> list[float]:
        async def beside(ctx: Context) -> float:
            return await ask(ctx, who == "a branch beside it")

        return list(await ctx.gather(ctx.child(holding, 50, key="busy"), beside))

    tried: list[str] = []
    workflows: list[Workflow[Any, Any]] = [holding, parent, other]
    with pytest.raises(StoreError, match="gave up"):
        async with open_test_runtime(store, workflows=workflows, evict_after=1000) as runtime:
            await runtime.submit(holding, 3600, key="held")
            await runtime.submit(parent, key="k", run_id="r")
            await runtime.submit(other, key="o")
            await trio.sleep_forever()
    async with open_test_runtime(store, workflows=workflows) as runtime:
        run = await runtime.submit(parent, key="k", run_id="r")
        with trio.fail_after(10_000):
            assert await run.result() == [50, 1]
