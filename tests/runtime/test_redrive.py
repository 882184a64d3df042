"""Dead letters come back with today's code, from the step that failed; what is gone is gone."""

import pytest
import trio
from trio.testing import MockClock

from keyrun.runtime import (
    Context,
    PermanentError,
    Retry,
    RunEnded,
    RunFailed,
    State,
    UnknownRun,
    Workflow,
    current_step,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import RecordingHook, open_test_runtime


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


async def test_only_failed_and_quarantined_runs_can_be_redriven(autojump_clock: MockClock) -> None:
    shop = Shop()
    shop.broken = False
    order = shop.workflow()
    async with open_test_runtime(workflows=[order]) as runtime:
        run = await runtime.submit(order, key="k", run_id="r")
        await run.result()
        with pytest.raises(RunEnded, match="is succeeded; only failed and quarantined"):
            await runtime.redrive("r")
        with pytest.raises(UnknownRun, match="no run has the id 'nobody'"):
            await runtime.redrive("nobody")


async def test_a_workflow_that_is_not_registered_holds_its_run_until_it_is(
    autojump_clock: MockClock,
) -> None:
    shop, store = Shop(), MemoryStore()
    shop.broken = False
    order = shop.workflow()

    @workflow
    async def other(ctx: Context) -> str:
        return "other"

    async with open_test_runtime(store, workflows=[order, other]) as runtime:
        await runtime.pause_all()
        await runtime.submit(order, key="k", run_id="r")
        await runtime.submit(other, key="k", run_id="behind")
    async with open_test_runtime(store, workflows=[other]) as runtime:
        await runtime.resume_all()
        await trio.sleep(1)
        status = await runtime.status("r")
        assert status is not None
        assert status.state is State.QUARANTINED
        assert "'order' version 1 is not registered" in (status.reason or "")
        assert await (await runtime.submit(other, key="elsewhere")).result() == "other"
    async with open_test_runtime(store, workflows=[order, other]) as runtime:
        await trio.sleep(1)
        assert await runtime.redrive("r") == 1
        run = await runtime.submit(order, key="k", run_id="r")
        assert await run.result() == "reserved, paid"
        behind = await runtime.submit(other, key="k", run_id="behind")
        assert await behind.result() == "other"


async def test_a_quarantined_run_can_be_cancelled_and_frees_its_key(
    autojump_clock: MockClock,
) -> None:
    shop, store = Shop(), MemoryStore()
    shop.broken = False
    order = shop.workflow()

    @workflow
    async def other(ctx: Context) -> str:
        return "other"

    async with open_test_runtime(store, workflows=[order, other]) as runtime:
        await runtime.pause_all()
        await runtime.submit(order, key="k", run_id="r")
        await runtime.submit(other, key="k", run_id="behind")
    async with open_test_runtime(store, workflows=[other]) as runtime:
        await runtime.resume_all()
        await trio.sleep(1)
        assert await runtime.cancel("r")
        behind = await runtime.submit(other, key="k", run_id="behind")
        assert await behind.result() == "other"
        status = await runtime.status("r")
        assert status is not None
        assert status.state is State.CANCELLED


async def test_a_forgotten_id_that_is_used_again_shares_nothing_with_its_former_life(
    autojump_clock: MockClock,
) -> None:
    shop, store = Shop(), MemoryStore()
    order = shop.workflow()
    async with open_test_runtime(store, workflows=[order]) as runtime:
        run = await runtime.submit(order, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        await runtime.forget("r")
        assert await runtime.status("r") is None
        for table in ("runs", "status", "ids", "journal", "memo", "dead", "ended", "queue"):
            assert await store.scan(table) == []
        shop.broken = False
        again = await runtime.submit(order, key="other key", run_id="r")
        assert again.newly_submitted
        assert await again.result() == "reserved, paid"
    assert shop.calls == ["reserve", "pay", "reserve", "pay"]
    assert len(shop.keys) == 2


async def test_a_run_that_has_not_ended_is_not_forgotten(autojump_clock: MockClock) -> None:
    shop = Shop()
    order = shop.workflow()
    async with open_test_runtime(workflows=[order]) as runtime:
        await runtime.pause_all()
        await runtime.submit(order, key="k", run_id="r")
        with pytest.raises(RunEnded, match="cancel it first"):
            await runtime.forget("r")
