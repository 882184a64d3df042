"""submit_or_signal: a message that starts its run, or reaches the one that is there."""

from math import inf
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Backpressure,
    Context,
    InputMismatch,
    InvalidRunId,
    RunEnded,
    RunHandle,
    Runtime,
    SignalTimeout,
    State,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import crash_points, open_test_runtime

PATIENCE = pytest.mark.parametrize("patience", [0.5, inf])


@step
async def handle(what: Any) -> Any:
    return what


@workflow
async def chat(ctx: Context, idle: float) -> list[Any]:
    """Takes messages until there was none for `idle` seconds, and ends with none left."""
    taken: list[Any] = []
    while True:
        try:
            what = await ctx.wait_signal("say", timeout=idle)
        except SignalTimeout:
            return taken
        taken.append(await ctx.step(handle, what))


async def say(rt: Runtime, what: Any, **options: Any) -> RunHandle[list[Any]]:
    given = {"key": "k", "run_id": "r", "name": "say", "payload": what, **options}
    return await rt.submit_or_signal(chat, given.pop("input", 100.0), **given)


@PATIENCE
async def test_the_first_message_starts_the_run_and_the_next_reach_it(
    autojump_clock: MockClock, patience: float
) -> None:
    async with open_test_runtime(workflows=[chat], evict_after=patience) as rt:
        first = await say(rt, "a", tags=("t",), headers={"h": "1"})
        second = await say(rt, "b", input=5.0)  # whose input is of no matter
        await trio.sleep(10)
        third = await say(rt, "c")
        assert [one.newly_submitted for one in (first, second, third)] == [True, False, False]
        assert await first.result() == await third.result() == ["a", "b", "c"]
        status = await first.status()
        assert status is not None
        assert (status.origin, status.tags, status.headers) == ("message", ("t",), {"h": "1"})


async def test_a_run_that_starts_behind_another_has_its_message_when_its_turn_comes(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[chat]) as rt:
        await say(rt, "a", run_id="before")
        run = await say(rt, "b")
        assert await run.result() == ["b"]


async def test_many_at_once_with_one_id_start_one_run_and_all_reach_it(
    autojump_clock: MockClock,
) -> None:
    for latency in (0.0, 0.01):
        handles: list[RunHandle[list[Any]]] = []
        async with open_test_runtime(MemoryStore(latency=latency), workflows=[chat]) as rt:

            async def one(rt: Runtime, number: int, into: list[Any]) -> None:
                await trio.sleep(number % 7 / 500)
                into.append(await say(rt, number))

            async with trio.open_nursery() as nursery:
                for number in range(100):
                    nursery.start_soon(one, rt, number, handles)
            assert sum(handle.newly_submitted for handle in handles) == 1
            assert sorted(await handles[0].result()) == list(range(100))
            assert len(await rt.runs()) == 1


@PATIENCE
async def test_racing_with_the_end_a_message_is_taken_or_refused(
    autojump_clock: MockClock, patience: float
) -> None:
    refused: list[float] = []
    taken: list[float] = []
    store = MemoryStore(latency=0.01)
    async with open_test_runtime(store, workflows=[chat], evict_after=patience) as rt:

        async def late(run_id: str, delay: float) -> None:
            await trio.sleep(delay)
            try:
                await say(rt, delay, run_id=run_id, key=run_id)
            except RunEnded:
                refused.append(delay)
            else:
                taken.append(delay)

        runs = []
        async with trio.open_nursery() as nursery:
            for number in range(61):
                run_id = f"r{number}"
                runs.append(await say(rt, "first", run_id=run_id, key=run_id, input=2.0))
                nursery.start_soon(late, run_id, 1.9 + number * 0.005)
        got = [what for run in runs for what in (await run.result())[1:]]
    assert sorted(got) == sorted(taken)
    assert taken
    assert refused


async def test_under_another_key_or_workflow_it_is_refused(autojump_clock: MockClock) -> None:
    @workflow
    async def other(ctx: Context, idle: float) -> None: ...

    async with open_test_runtime(workflows=[chat, other]) as rt:
        await say(rt, "a")
        with pytest.raises(InputMismatch, match="another key"):
            await say(rt, "b", key="elsewhere")
        with pytest.raises(InputMismatch, match="another workflow"):
            await rt.submit_or_signal(other, 1.0, key="k", run_id="r", name="say")


async def test_one_that_has_ended_is_refused_until_it_is_forgotten(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[chat]) as rt:
        assert await (await say(rt, "a")).result() == ["a"]
        with pytest.raises(RunEnded):
            await say(rt, "b")
        await rt.forget("r")
        again = await say(rt, "c")
        assert again.newly_submitted
        assert await again.result() == ["c"]


async def test_the_handle_is_of_the_run_that_was_reached_also_if_its_id_had_another(
    autojump_clock: MockClock,
) -> None:
    handles: list[RunHandle[list[Any]]] = []
    async with open_test_runtime(MemoryStore(latency=0.01), workflows=[chat]) as rt:
        await (await say(rt, "a", input=1.0)).result()

        async def send(what: str) -> None:
            handles.append(await say(rt, what, input=1.0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(rt.forget, "r")
            await trio.sleep(0.005)
            # It is there, and will be gone: both have to do with the one after it.
            nursery.start_soon(send, "b")
            nursery.start_soon(send, "c")
        first, second = handles
        assert [first.newly_submitted, second.newly_submitted] == [True, False]
        assert sorted(await first.result()) == sorted(await second.result()) == ["b", "c"]


async def test_a_repeat_with_a_signal_id_is_harmless(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[chat]) as rt:
        run = await say(rt, "a", signal_id="1")
        await say(rt, "a", signal_id="1")
        await trio.sleep(10)
        await say(rt, "a", signal_id="1")
        assert await run.result() == ["a"]
        again = await say(rt, "a", signal_id="1")
        assert not again.newly_submitted
        assert await again.result() == ["a"]


async def test_what_is_wrong_is_told_before_anything_is_stored(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[chat]) as rt:
        for given in ({"name": ""}, {"name": "keyrun.x"}, {"signal_id": ""}):
            with pytest.raises(ValueError, match=r"name|signal_id"):
                await say(rt, "a", **given)
        with pytest.raises(InvalidRunId):
            await say(rt, "a", run_id=None)
        assert not await rt.runs()


@pytest.mark.parametrize("after", [0.5, 1.0, 3.0])
async def test_to_start_one_waits_for_room_and_to_reach_one_does_not(
    autojump_clock: MockClock, after: float
) -> None:
    """Also where the key is known by name only, since the run that holds it sleeps."""
    async with open_test_runtime(
        workflows=[chat], max_pending_per_key=1, backpressure_timeout=5
    ) as rt:
        await say(rt, "a")
        await trio.sleep(after)
        await say(rt, "b", run_id="next")
        with pytest.raises(Backpressure):
            await say(rt, "c", run_id="one-too-many")
        assert not (await say(rt, "d", run_id="next")).newly_submitted


async def test_a_paused_run_keeps_its_messages(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[chat]) as rt:
        await rt.pause_key("k")
        run = await say(rt, "a")
        await say(rt, "b")
        await rt.resume_key("k")
        assert await run.result() == ["a", "b"]


async def test_a_crash_at_any_commit_loses_no_message(autojump_clock: MockClock) -> None:
    async def scenario(rt: Runtime) -> tuple[State, Any]:
        for number in range(3):
            run = await say(rt, number, signal_id=f"{number}", input=30.0)
            await trio.sleep(2)
        result = await run.result()
        status = await run.status()
        assert status is not None
        return status.state, result

    for point in crash_points(crashes=1):
        assert await point.run(scenario, workflows=[chat]) == (State.SUCCEEDED, [0, 1, 2])
