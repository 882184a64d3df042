"""Dead letters come back with today's code, from the step that failed; what is gone is gone."""

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock

from keyrun.runtime import (
    Context,
    PermanentError,
    Retention,
    Retry,
    RunEnded,
    RunFailed,
    RunOutcome,
    State,
    UnknownRun,
    UnknownWorkflow,
    Workflow,
    current_step,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import EPOCH, RecordingHook, open_test_runtime
from tests.runtime.fragile import FragileStore

ENDS = ("submitted", "started", "redriven", "failed", "succeeded")


class Shop:
    """A workflow whose second step can be mended."""

    def __init__(self) -> None:
        self.broken = True
        self.calls: list[str] = []
        self.keys: set[str] = set()

    def workflow(self) -> Workflow[None, str]:
        @step
        async def reserve() -> str:
            self.calls.append("reserve")
            return "reserved"

        @step(retry=Retry.none())
        async def pay() -> str:
            self.calls.append("pay")
            self.keys.add(current_step().idempotency_key)
            if self.broken:
                raise PermanentError("no money")
            return "paid"

        @workflow(name="order")
        async def order(ctx: Context) -> str:
            return f"{await ctx.step(reserve)}, {await ctx.step(pay)}"

        return order


async def test_a_dead_letter_is_redriven_from_the_step_that_failed(
    autojump_clock: MockClock,
) -> None:
    shop, hook = Shop(), RecordingHook()
    order = shop.workflow()
    async with open_test_runtime(workflows=[order], on_terminal=hook) as runtime:
        run = await runtime.submit(order, key="k", run_id="r", headers={"a": "b"})
        with pytest.raises(RunFailed):
            await run.result()
        (letter,) = await runtime.dead_letters()
        assert (letter.run_id, letter.generation) == ("r", 1)
        shop.broken = False
        assert await runtime.redrive("r") == 2
        assert await run.result() == "reserved, paid"
        assert await runtime.dead_letters() == []
    assert shop.calls == ["reserve", "pay", "pay"]
    assert len(shop.keys) == 1
    assert [(o.state, o.generation) for o in hook.outcomes] == [
        (State.FAILED, 1),
        (State.SUCCEEDED, 2),
    ]


async def test_a_redriven_run_goes_to_the_end_of_its_line(autojump_clock: MockClock) -> None:
    shop = Shop()
    order = shop.workflow()
    done: list[str] = []

    @step
    async def slow(name: str) -> None:
        await trio.sleep(10)
        done.append(name)

    @workflow
    async def other(ctx: Context, name: str) -> None:
        await ctx.step(slow, name)

    async with open_test_runtime(workflows=[order, other]) as runtime:
        run = await runtime.submit(order, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        await runtime.submit(other, "a", key="k")
        await runtime.submit(other, "b", key="k")
        shop.broken = False
        await runtime.redrive("r")
        await run.result()
        assert done == ["a", "b"]


async def test_a_redrive_survives_a_crash(autojump_clock: MockClock) -> None:
    shop, store = Shop(), MemoryStore()
    order = shop.workflow()
    async with open_test_runtime(store, workflows=[order]) as runtime:
        run = await runtime.submit(order, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        await runtime.pause_all()
        shop.broken = False
        await runtime.redrive("r")
        store.crash()
        await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[order]) as runtime:
        await runtime.resume_all()
        run = await runtime.submit(order, key="k", run_id="r")
        assert not run.newly_submitted
        assert await run.result() == "reserved, paid"
    assert shop.calls == ["reserve", "pay", "pay"]


@pytest.mark.parametrize("restart", ["none", "clean", "crash", "without a hook"])
async def test_every_generation_is_told_also_when_redriven_before_the_hook_was_told(
    autojump_clock: MockClock, restart: str
) -> None:
    shop, store, hook = Shop(), MemoryStore(), RecordingHook()
    order = shop.workflow()
    taking = False

    async def telling(outcome: RunOutcome) -> None:
        if not taking:
            raise RuntimeError("not now")
        await hook(outcome)

    async with open_test_runtime(store, workflows=[order], on_terminal=telling) as runtime:
        run = await runtime.submit(order, key="k", run_id="r", headers={"a": "b"})
        for generation in (1, 2):
            with pytest.raises(RunFailed):
                await run.result()
            behind = await runtime.submit(order, key="k", run_id=f"behind-{generation}")
            with pytest.raises(RunFailed):
                await behind.result()
            if generation == 1:
                assert await runtime.redrive("r") == 2
        shop.broken = False
        if restart == "none":
            await runtime.redrive("r")
            await run.result()
            taking = True
            await trio.sleep(200)
        elif restart == "crash":
            await runtime.redrive("r")
            store.crash()
            await trio.sleep_forever()
    if restart == "without a hook":
        async with open_test_runtime(store, workflows=[order]) as runtime:
            assert await runtime.redrive("r") == 3
            await (await runtime.submit(order, key="k", run_id="r")).result()
    taking = True
    async with open_test_runtime(store, workflows=[order], on_terminal=telling) as runtime:
        if restart == "clean":
            await runtime.redrive("r")
        if restart != "without a hook":
            await (await runtime.submit(order, key="k", run_id="r")).result()
        await trio.sleep(1)
    expected = [("r", 1, "failed"), ("behind-1", 1, "failed"), ("r", 2, "failed")]
    expected += [("behind-2", 1, "failed")]
    if restart != "without a hook":
        # That runtime was to tell nobody.
        expected += [("r", 3, "succeeded")]
    assert [(o.run_id, o.generation, o.state) for o in hook.outcomes] == expected
    first = hook.outcomes[0]
    assert first.failure is not None
    assert (first.step, first.headers, "no money" in first.failure.reason) == (
        "pay",
        {"a": "b"},
        True,
    )
    assert [key async for key in records(store, "outbox")] == []


async def records(store: MemoryStore, table: str) -> AsyncIterator[bytes]:
    async with store:
        for key, _ in await store.scan(table):
            yield key


async def test_a_generation_that_was_told_is_not_told_again(autojump_clock: MockClock) -> None:
    shop, store, hook = Shop(), MemoryStore(latency=1), RecordingHook()
    order = shop.workflow()
    async with open_test_runtime(store, workflows=[order], on_terminal=hook) as runtime:
        run = await runtime.submit(order, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        await trio.testing.wait_all_tasks_blocked()
        assert len(hook.outcomes) == 1
        shop.broken = False
        # That it was told is only staged by now.
        await runtime.redrive("r")
        await run.result()
    async with open_test_runtime(store, workflows=[order], on_terminal=hook):
        await trio.sleep(1)
    assert [outcome.generation for outcome in hook.outcomes] == [1, 2]


async def test_a_run_is_redriven_once_however_many_ask_for_it(autojump_clock: MockClock) -> None:
    shop, hook = Shop(), RecordingHook()
    order = shop.workflow()
    said: list[str] = []
    async with open_test_runtime(
        MemoryStore(latency=1), workflows=[order], on_terminal=hook
    ) as runtime:
        run = await runtime.submit(order, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        shop.broken = False

        async def redrive() -> None:
            try:
                said.append(str(await runtime.redrive("r")))
            except RunEnded as error:
                said.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(redrive)
        await run.result()
        await trio.sleep(10)
    assert sorted(said)[0] == "2"
    assert all("is pending; only failed" in each for each in sorted(said)[1:])
    assert shop.calls == ["reserve", "pay", "pay"]
    assert [outcome.generation for outcome in hook.outcomes] == [1, 2]


async def test_a_run_that_is_due_to_be_swept_stays_while_it_is_redriven(
    autojump_clock: MockClock,
) -> None:
    shop = Shop()

    @workflow
    async def refused(ctx: Context) -> str:
        if shop.broken:
            ctx.fail("not today")
        return "fine"

    async with open_test_runtime(
        MemoryStore(latency=1.0), workflows=[refused], retention=Retention(age=10.0)
    ) as runtime:
        run = await runtime.submit(refused, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        status = await run.status()
        assert status is not None
        assert status.ended_at is not None
        shop.broken = False
        await trio.sleep(status.ended_at + 9.5 - EPOCH - trio.current_time())
        await runtime.redrive("r")
        assert await run.result() == "fine"
        await trio.sleep(5)
        assert await run.status() is not None
