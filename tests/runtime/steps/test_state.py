"""Key state and memos: what steps keep, and when it counts."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, Retry, RunFailed, StepFailed, current_step, step, workflow
from keyrun.storage import MemoryStore
from keyrun.testing import CrashingMemoryStore, open_test_runtime

SOON = Retry.fixed(max_attempts=3, delay=1)


@step
async def read() -> dict[str, Any]:
    return dict(current_step().state)


@workflow
async def reads(ctx: Context) -> dict[str, Any]:
    return await ctx.step(read)


async def test_state_belongs_to_the_key_and_goes_from_run_to_run(
    autojump_clock: MockClock,
) -> None:
    @step
    async def add(amount: int) -> int:
        state = current_step().state
        state["total"] = state.get("total", 0) + amount
        return int(state["total"])

    @workflow
    async def account(ctx: Context, amount: int) -> int:
        return await ctx.step(add, amount)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[account, reads]) as runtime:
        for amount, total in ((1, 1), (2, 3), (4, 7)):
            assert await (await runtime.submit(account, amount, key="a")).result() == total
        assert await (await runtime.submit(account, 100, key="b")).result() == 100
        assert await (await runtime.submit(reads, key="ab")).result() == {}
    async with open_test_runtime(store, workflows=[account, reads]) as runtime:
        assert await (await runtime.submit(reads, key="a")).result() == {"total": 7}
        assert await (await runtime.submit(account, 1, key="b")).result() == 101


async def test_many_runs_of_a_key_see_the_state_of_the_one_before(
    autojump_clock: MockClock,
) -> None:
    @step
    async def append(number: int) -> None:
        current_step().state.setdefault("seen", []).append(number)

    @workflow
    async def appends(ctx: Context, number: int) -> None:
        await ctx.step(append, number)

    store = MemoryStore(latency=0.01)
    async with open_test_runtime(store, workflows=[appends, reads]) as runtime:
        async with trio.open_nursery() as nursery:
            for number in range(200):
                run = await runtime.submit_nowait(appends, number, key="k")
                nursery.start_soon(run.result)
        assert await (await runtime.submit(reads, key="k")).result() == {"seen": list(range(200))}


@pytest.mark.parametrize("inside", [False, True])
async def test_what_a_failed_attempt_did_to_the_state_is_discarded(
    autojump_clock: MockClock, inside: bool
) -> None:
    @step
    async def put() -> None:
        current_step().state["values"] = ["first"]

    @step(retry=SOON)
    async def clumsy() -> list[str]:
        state = current_step().state
        if inside:
            state["values"].append("again")
        else:
            state["values"] = [*state["values"], "again"]
        if current_step().attempt < 3:
            raise ValueError("not yet")
        return list(state["values"])

    @workflow
    async def flow(ctx: Context) -> list[str]:
        await ctx.step(put)
        return await ctx.step(clumsy)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow, reads]) as runtime:
        assert await (await runtime.submit(flow, key="k")).result() == ["first", "again"]
        kept = {"values": ["first", "again"]}
        assert await (await runtime.submit(reads, key="k")).result() == kept
    async with open_test_runtime(store, workflows=[reads]) as runtime:
        assert await (await runtime.submit(reads, key="k")).result() == kept


async def test_the_state_of_a_cancelled_or_timed_out_attempt_is_discarded(
    autojump_clock: MockClock,
) -> None:
    @step(timeout=1, retry=Retry.none())
    async def slow() -> None:
        current_step().state["half"] = "done"
        await trio.sleep(100)

    @workflow
    async def flow(ctx: Context, timeout: float) -> None:
        await ctx.step(slow.options(timeout=timeout))

    async with open_test_runtime(workflows=[flow, reads]) as runtime:
        with pytest.raises(RunFailed):
            await (await runtime.submit(flow, 1, key="k")).result()
        assert await (await runtime.submit(reads, key="k")).result() == {}
        run = await runtime.submit(flow, 50, key="k")
        await trio.sleep(1)
        await run.cancel()
        assert await (await runtime.submit(reads, key="k")).result() == {}


@pytest.mark.parametrize("applied", [False, True])
async def test_state_and_outcome_are_one_commit(autojump_clock: MockClock, applied: bool) -> None:
    """Killed at the commit of the outcome, both are there or neither is."""

    @step
    async def add() -> int:
        state = current_step().state
        state["total"] = state.get("total", 0) + 1
        return int(state["total"])

    @workflow
    async def account(ctx: Context) -> int:
        total = await ctx.step(add)
        await ctx.sleep(10)
        return total

    store = CrashingMemoryStore()
    async with open_test_runtime(store, workflows=[account]) as runtime:
        await runtime.submit(account, key="k", run_id="r")
        store.crash_at(1, applied=applied)
        await trio.sleep_forever()
    async with store:
        space = store.namespace("default").prefix
        outcomes = len(await store.scan("journal", prefix=space))
        states = len(await store.scan("state", prefix=space))
    assert (states > 0, outcomes > 0) == (applied, applied)
    async with open_test_runtime(store, workflows=[account, reads]) as runtime:
        assert await (await runtime.submit(account, key="k", run_id="r")).result() == 1
        assert await (await runtime.submit(reads, key="k")).result() == {"total": 1}


async def test_of_steps_side_by_side_the_first_to_touch_the_state_holds_it(
    autojump_clock: MockClock,
) -> None:
    @step(retry=Retry.none())
    async def hold(seconds: float) -> int:
        await trio.sleep(seconds)
        state = current_step().state
        state["holders"] = state.get("holders", 0) + 1
        await trio.sleep(10)
        return int(state["holders"])

    @workflow
    async def flow(ctx: Context) -> Any:
        async def second(ctx: Context) -> str:
            try:
                await ctx.step(hold, 1)
            except StepFailed as error:
                return str(error)
            return "held"

        first, said = await ctx.gather(ctx.step(hold, 0), second)
        return first, said, await ctx.step(hold, 0)

    async with open_test_runtime(workflows=[flow]) as runtime:
        first, said, later = await (await runtime.submit(flow, key="k")).result()
    assert (first, later) == (1, 2)
    assert "the step 'g1.0/hold' uses the state of the key 'k'" in said


async def test_what_cannot_be_stored_is_refused_where_it_is_put_in(
    autojump_clock: MockClock,
) -> None:
    said: list[str] = []

    @step
    async def strange() -> None:
        here = current_step()
        for mapping in (here.state, here.memo):
            for name, value in (("set", {1}), (7, "seven")):
                with pytest.raises(TypeError) as caught:
                    mapping[name] = value  # type: ignore[index]
                said.append(str(caught.value))
            assert dict(mapping) == {}

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(strange)

    async with open_test_runtime(workflows=[flow]) as runtime:
        await (await runtime.submit(flow, key="k")).result()
    assert len(said) == 4
    assert "cannot store a set" in said[0]
    assert "names in a durable mapping must be strings, got 7" in said[1]


@pytest.mark.parametrize("which", ["state", "memo"])
async def test_what_was_spoilt_inside_fails_the_step_and_nothing_else(
    autojump_clock: MockClock, which: str
) -> None:
    @step(retry=Retry.none())
    async def spoil() -> None:
        mapping = getattr(current_step(), which)
        mapping["list"] = []
        mapping["list"].append({1})
        if which == "memo":
            raise ValueError("failed anyway")

    @workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.step(spoil)
        except StepFailed as error:
            return str(error)
        return "stored"

    async with open_test_runtime(workflows=[flow, reads]) as runtime:
        said = await (await runtime.submit(flow, key="k")).result()
        assert ("cannot store a set" if which == "state" else "failed anyway") in said
        assert await (await runtime.submit(reads, key="k")).result() == {}


async def test_a_memo_survives_attempts_and_crashes_and_ends_with_the_step(
    autojump_clock: MockClock,
) -> None:
    seen: list[tuple[str, int, Any]] = []

    @step(retry=SOON)
    async def long_work() -> int:
        here = current_step()
        seen.append((here.step, here.attempt, here.memo.get("cursor")))
        for cursor in range(here.memo.get("cursor", 0), 100):
            here.memo["cursor"] = cursor + 1
            await trio.sleep(1)
            if cursor == 20 and here.attempt == 1:
                raise ValueError("hiccup")
        return int(here.memo["cursor"])

    @workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.step(long_work), await ctx.step(long_work)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(50)
        store.crash()
        await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[flow], drain_timeout=0) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(20)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        assert await run.result() == (100, 100)
        space = store.namespace("default").prefix
        assert await store.scan("memo", prefix=space) == []
    names = [name for name, _, _ in seen]
    assert names == ["long_work"] * 4 + ["long_work#2"] * 2
    cursors = [cursor for _, _, cursor in seen]
    assert cursors[0] is None
    assert cursors[1] == 21
    assert 21 < cursors[2] < cursors[3] < 100
    assert cursors[4:] == [None, 21]
    assert [attempt for _, attempt, _ in seen] == [1, 2, 2, 2, 1, 2]


async def test_an_attempt_that_is_over_can_change_nothing(autojump_clock: MockClock) -> None:
    kept: list[Any] = []

    @step
    async def leak() -> None:
        kept.append((current_step(), current_step().state))

    @step
    async def look() -> dict[str, Any]:
        here, state = kept[0]
        state["late"] = True
        with pytest.raises(RuntimeError, match="attempt 1 of step 'leak' has ended"):
            here.memo["late"] = True
        return dict(current_step().state)

    @workflow
    async def flow(ctx: Context) -> dict[str, Any]:
        await ctx.step(leak)
        return await ctx.step(look)

    async with open_test_runtime(workflows=[flow]) as runtime:
        assert await (await runtime.submit(flow, key="k")).result() == {}
