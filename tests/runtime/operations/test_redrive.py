"""Dead letters come back with today's code, from the step that failed; what is gone is gone."""

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
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
        # The store has been opened with a hook before, so this end waits for the next one.
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
    expected += [("behind-2", 1, "failed"), ("r", 3, "succeeded")]
    assert [(o.run_id, o.generation, o.state) for o in hook.outcomes] == expected
    first = hook.outcomes[0]
    assert first.failure is not None
    assert (first.step, first.headers, "no money" in first.failure.reason) == (
        "pay",
        {"a": "b"},
        True,
    )
    assert [key async for key in records(store, "outcomes")] == []


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
    assert all("; only failed" in each for each in sorted(said)[1:])
    assert shop.calls == ["reserve", "pay", "pay"]
    assert [outcome.generation for outcome in hook.outcomes] == [1, 2]


@pytest.mark.parametrize("first", ["redrive", "forget"])
async def test_of_redrive_and_forget_at_the_same_time_the_first_wins(
    autojump_clock: MockClock, first: str
) -> None:
    shop, store = Shop(), FragileStore(latency=1)
    order = shop.workflow()
    said: dict[str, object] = {}
    async with open_test_runtime(store, workflows=[order]) as runtime:
        run = await runtime.submit(order, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        shop.broken = False
        await runtime.pause_key("k")

        async def ask(what: str) -> None:
            try:
                said[what] = await getattr(runtime, what)("r")
            except (RunEnded, UnknownRun) as error:
                said[what] = type(error)

        async with trio.open_nursery() as nursery:
            for what in (first, *{"redrive", "forget"} - {first}):
                nursery.start_soon(ask, what)
                await trio.sleep(0.1)
        await runtime.resume_key("k")
        if first == "redrive":
            assert said == {"redrive": 2, "forget": RunEnded}
            assert await run.result() == "reserved, paid"
            await runtime.forget("r")
        assert said == {"forget": None, "redrive": UnknownRun} or first == "redrive"
        await trio.sleep(1)
        assert runtime.statistics().backlog.pending == 0
    for table in ("runs", "status", "journal", "queue", "dead", "ended", "ids"):
        assert store.keys(table) == [], table


async def test_a_run_whose_end_is_only_staged_is_redriven_after_it(
    autojump_clock: MockClock,
) -> None:
    shop = Shop()
    order = shop.workflow()
    async with open_test_runtime(MemoryStore(latency=1), workflows=[order]) as runtime:
        run = await runtime.submit(order, key="k", run_id="r")
        while "pay" not in shop.calls:
            await trio.sleep(0.1)
        await trio.testing.wait_all_tasks_blocked()
        shop.broken = False
        assert await runtime.redrive("r") == 2
        assert await run.result() == "reserved, paid"
        events = [happening.event for happening in await runtime.history("r")]
        assert events.count("step_failed") == events.count("redriven") == 1


async def test_a_redrive_that_finds_no_code_changes_nothing(autojump_clock: MockClock) -> None:
    shop, store = Shop(), MemoryStore()
    order = shop.workflow()
    async with open_test_runtime(store, workflows=[order]) as runtime:
        with pytest.raises(RunFailed):
            await (await runtime.submit(order, key="k", run_id="r")).result()
    async with open_test_runtime(store) as runtime:
        with pytest.raises(UnknownWorkflow, match="'order' is not a workflow of this runtime"):
            await runtime.redrive("r")
    async with open_test_runtime(store, workflows=[order]) as runtime:
        await trio.sleep(1)
        (letter,) = await runtime.dead_letters()
        assert (letter.state, letter.generation) == (State.FAILED, 1)
    assert shop.calls == ["reserve", "pay"]


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


async def test_a_redrive_that_is_refused_changes_nothing(autojump_clock: MockClock) -> None:
    shop, store = Shop(), MemoryStore()
    order = shop.workflow()
    async with open_test_runtime(store, workflows=[order]) as runtime:
        run = await runtime.submit(order, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
    async with open_test_runtime(store) as runtime:
        with pytest.raises(UnknownWorkflow):
            await runtime.redrive("r")
    async with open_test_runtime(store, workflows=[order]) as runtime:
        (letter,) = await runtime.dead_letters()
        assert (letter.state, letter.generation) == (State.FAILED, 1)
        assert await runtime.keys() == []
        shop.broken = False
        assert await runtime.redrive("r") == 2
        assert await (await runtime.submit(order, key="k", run_id="r")).result()


async def test_the_history_of_a_redriven_run_is_in_order(autojump_clock: MockClock) -> None:
    mended = False

    @step
    async def fragile() -> None:
        if not mended:
            raise PermanentError("not yet")

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.sleep(5)
        await ctx.step(fragile)

    async with open_test_runtime(workflows=[job]) as rt:
        with pytest.raises(RunFailed):
            await (await rt.submit(job, key="k", run_id="r")).result()
        await trio.sleep(10)
        mended = True
        await rt.redrive("r")
        await (await rt.submit(job, key="k", run_id="r")).result()
        story = await rt.history("r")
    events = [happening.event for happening in story]
    first = ["submitted", "started", "timer_set", "timer_fired", "step_failed", "failed"]
    assert events == [*first, "redriven", "started", "step_completed", "succeeded"]
    assert [happening.at for happening in story] == sorted(happening.at for happening in story)


async def test_the_history_tells_the_start_and_the_end_of_every_generation(
    autojump_clock: MockClock,
) -> None:
    tries = 0

    @step
    async def fragile() -> None:
        nonlocal tries
        await trio.sleep(1)
        tries += 1
        if tries < 3:
            raise PermanentError(f"no {tries}")

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(fragile)

    store = MemoryStore()
    for generation in (1, 2, 3):
        async with open_test_runtime(store, workflows=[job]) as rt:
            run = await rt.submit(job, key="k", run_id="r")
            if generation > 1:
                await rt.pause_key("k")
                await rt.redrive("r")
                await rt.pause("r")
                await trio.sleep(5)
                await rt.resume("r")
                await rt.resume_key("k")
            with suppress(RunFailed):
                await run.result()
            await trio.sleep(10)
            story = await rt.history("r")
    ends = [(one.event, one.at - EPOCH) for one in story if one.event in ENDS]
    assert ends == [
        ("submitted", 0),
        ("started", 0),
        ("failed", 1),
        ("redriven", 11),
        ("started", 16),
        ("failed", 17),
        ("redriven", 27),
        ("started", 32),
        ("succeeded", 33),
    ]
    failures = [one.failure.reason[-4:] for one in story if one.event == "failed" and one.failure]
    assert failures == ["no 1", "no 2"]
    assert [one.at for one in story] == sorted(one.at for one in story)


async def test_a_run_that_a_crash_cut_off_has_started_with_its_first_step(
    autojump_clock: MockClock,
) -> None:
    @step
    async def slow() -> None:
        await trio.sleep(10)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(slow)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep(5)
        store.crash()
    await trio.sleep(5)
    async with open_test_runtime(store, workflows=[job]) as rt:
        await (await rt.submit(job, key="k", run_id="r")).result()
        story = [(one.event, one.at - EPOCH) for one in await rt.history("r")]
    assert story == [
        ("submitted", 0),
        ("started", 0),
        ("interrupted", 10),
        ("step_completed", 20),
        ("succeeded", 20),
    ]


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
