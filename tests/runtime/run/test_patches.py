"""`ctx.patched`: runs that came past a change go on without it, and others take it."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, PermanentError, Retry, State, Workflow, step, workflow
from keyrun.runtime.records.run_counts import count, stored_counts
from keyrun.runtime.records.tables import Ledger
from keyrun.storage import MemoryStore
from keyrun.testing import crash_points, open_test_runtime

Code = Callable[[Context], Awaitable[Any]]
ran: list[str] = []
broken = False


@pytest.fixture(autouse=True)
def _fresh() -> None:
    global broken
    ran.clear()
    broken = False


def doing(name: str) -> Any:
    @step(name=name, retry=Retry.none())
    async def do() -> None:
        ran.append(name)
        if name == "breaks" and broken:
            raise PermanentError("broken")

    return do


before, new, old, after, breaks = map(doing, ("before", "new", "old", "after", "breaks"))


def flow(code: Code) -> Workflow[Any, Any]:
    @workflow(name="flow")
    async def changing(ctx: Context) -> Any:
        return await code(ctx)

    return changing


async def unpatched(store: MemoryStore) -> dict[tuple[str, str], int]:
    """The counts of a store that is closed, checked against its runs."""
    async with store:
        ledger = Ledger(store.namespace("default"))
        kept = await stored_counts(ledger)
        assert kept is not None
        assert kept.all == await count(ledger)
        return kept.unpatched


async def original(ctx: Context) -> None:
    await ctx.step(before)
    await ctx.step(old)
    await ctx.sleep(100)
    await ctx.step(after)


async def changed(ctx: Context) -> None:
    await ctx.step(before)
    if ctx.patched("new"):
        await ctx.step(new)
    else:
        await ctx.step(old)
    await ctx.sleep(100)
    await ctx.step(after)


async def cleaned_up(ctx: Context) -> None:
    await ctx.step(before)
    await ctx.step(new)
    await ctx.sleep(100)
    await ctx.step(after)


async def test_a_run_that_passed_the_change_goes_on_without_it(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow(original)]) as runtime:
        await runtime.submit(flow(original), key="a", run_id="passed")
        await trio.sleep(10)
    ran.clear()
    async with open_test_runtime(store, workflows=[flow(changed)]) as runtime:
        run = await runtime.submit(flow(changed), key="b", run_id="fresh")
        await runtime.pause("passed")
        await runtime.resume("passed")
        await trio.sleep(10)
        assert ran == ["before", "new"]
    assert await unpatched(store) == {("flow", "new"): 1}
    async with open_test_runtime(store, workflows=[flow(changed)]) as runtime:
        for run_id in ("passed", "fresh"):
            run = await runtime.submit(
                flow(changed), key="a" if run_id == "passed" else "b", run_id=run_id
            )
            await run.result()
        history = await runtime.history("passed")
        assert [each.detail for each in history if each.event == "patched"] == ["new: false"]
    assert sorted(ran) == ["after", "after", "before", "new"]
    assert await unpatched(store) == {}


async def test_a_run_that_has_only_begun_the_next_call_has_passed(
    autojump_clock: MockClock,
) -> None:
    async def waiting(ctx: Context) -> None:
        await ctx.step(before)
        await ctx.wait_signal("go")

    async def inserted(ctx: Context) -> None:
        await ctx.step(before)
        if ctx.patched("new"):
            await ctx.step(new)
        await ctx.wait_signal("go")

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow(waiting)]) as runtime:
        await runtime.submit(flow(waiting), key="a", run_id="r")
        await trio.sleep(10)
    async with open_test_runtime(store, workflows=[flow(inserted)]) as runtime:
        await runtime.signal("r", "go")
        await (await runtime.submit(flow(inserted), key="a", run_id="r")).result()
    assert ran == ["before"]


async def test_a_run_that_stopped_before_the_change_takes_it(autojump_clock: MockClock) -> None:
    async def waiting(ctx: Context) -> None:
        await ctx.step(before)
        await ctx.sleep(100)
        await ctx.step(after)

    async def inserted(ctx: Context) -> None:
        await ctx.step(before)
        await ctx.sleep(100)
        if ctx.patched("new"):
            await ctx.step(new)
        await ctx.step(after)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow(waiting)]) as runtime:
        await runtime.submit(flow(waiting), key="a", run_id="r")
        await trio.sleep(10)
    async with open_test_runtime(store, workflows=[flow(inserted)]) as runtime:
        await (await runtime.submit(flow(inserted), key="a", run_id="r")).result()
    assert ran == ["before", "new", "after"]


@pytest.mark.parametrize("answer", [True, False])
async def test_the_condition_may_go_when_no_run_was_answered_no(
    autojump_clock: MockClock, answer: bool
) -> None:
    store, first = MemoryStore(), flow(changed if answer else original)
    async with open_test_runtime(store, workflows=[first]) as runtime:
        await runtime.submit(first, key="a", run_id="r")
        await trio.sleep(10)
    async with open_test_runtime(store, workflows=[flow(changed)]) as runtime:
        await runtime.pause("r")
        await runtime.resume("r")
        await trio.sleep(10)
    assert await unpatched(store) == ({} if answer else {("flow", "new"): 1})
    ran.clear()
    async with open_test_runtime(store, workflows=[flow(cleaned_up)]) as runtime:
        await trio.sleep(1000)
        status = await runtime.status("r")
        assert status is not None
        assert status.state is (State.SUCCEEDED if answer else State.QUARANTINED)
    assert ran == (["after"] if answer else [])


async def test_the_first_answer_holds_in_every_branch_and_after_a_redrive(
    autojump_clock: MockClock,
) -> None:
    global broken
    broken = True
    answers: list[bool] = []

    def code(*, asks: bool) -> Code:
        async def branch(ctx: Context) -> None:
            await ctx.step(before)
            if asks:
                answers.append(ctx.patched("new"))
            await ctx.sleep(100)
            await ctx.step(breaks)

        async def both(ctx: Context) -> None:
            await ctx.gather(branch, branch)
            answers.append(ctx.patched("new"))

        return both

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow(code(asks=False))]) as runtime:
        await runtime.submit(flow(code(asks=False)), key="a", run_id="r")
        await trio.sleep(10)
    async with open_test_runtime(store, workflows=[flow(code(asks=True))]) as runtime:
        await trio.sleep(1000)
        assert answers[:2] == [False, False]
        assert runtime._partition.state.counts.unpatched == {}
        broken = False
        await runtime.redrive("r")
        assert runtime._partition.state.counts.unpatched == {("flow", "new"): 1}
        await trio.sleep(1000)
        status = await runtime.status("r")
        assert status is not None
        assert (status.state, status.generation) == (State.SUCCEEDED, 2)
    assert set(answers) == {False}
    assert await unpatched(store) == {}


async def test_continue_as_asks_anew(autojump_clock: MockClock) -> None:
    def looping(*, asks: bool) -> Code:
        async def loop(ctx: Context) -> None:
            await ctx.step(before)
            if asks and ctx.patched("new"):
                await ctx.step(new)
            await ctx.sleep(100)
            ctx.continue_as()

        return loop

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow(looping(asks=False))]) as runtime:
        await runtime.submit(flow(looping(asks=False)), key="a", run_id="r")
        await trio.sleep(10)
    async with open_test_runtime(store, workflows=[flow(looping(asks=True))]) as runtime:
        await runtime.pause("r")
        await runtime.resume("r")
        await trio.sleep(10)
        assert runtime._partition.state.counts.unpatched == {("flow", "new"): 1}
        await trio.sleep(100)
        assert ran == ["before", "before", "new"]
    assert await unpatched(store) == {}


async def test_the_answer_is_the_same_whatever_commit_a_crash_comes_at(
    autojump_clock: MockClock,
) -> None:
    answers: list[bool] = []

    async def asking(ctx: Context) -> bool:
        await ctx.step(before)
        answer = ctx.patched("new")
        answers.append(answer)
        await ctx.step(new if answer else old)
        await ctx.sleep(10)
        return answer

    changing = flow(asking)

    async def scenario(runtime: Any) -> Any:
        return await (await runtime.submit(changing, key="k", run_id="r")).result()

    for point in crash_points():
        ran.clear()
        taken = await point.run(scenario, workflows=[changing])
        assert not {"new", "old"} <= set(ran), point
        assert taken == ("new" in ran)


@pytest.mark.parametrize("name", ["", "x" * 201, 7, None])
async def test_a_patch_needs_a_name(autojump_clock: MockClock, name: Any) -> None:
    async def asking(ctx: Context) -> None:
        with pytest.raises(ValueError, match="the name of a patch must"):
            ctx.patched(name)

    async with open_test_runtime(workflows=[flow(asking)]) as runtime:
        await (await runtime.submit(flow(asking), key="k")).result()
