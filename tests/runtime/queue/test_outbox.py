"""The outbox: ends stay in the store until the terminal hook has received them."""

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from keyrun import (
    Context,
    PermanentError,
    Retention,
    RunFailed,
    RunOutcome,
    Runtime,
    State,
    open_reader,
    step,
    workflow,
)
from keyrun.runtime.queue.outbox import OutboxStatus
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.tuning import Tuning
from keyrun.storage import MemoryStore, StoreClosed
from keyrun.storage.record import unseal
from keyrun.testing import RecordingHook, open_test_runtime
from tests.runtime.fragile import FragileStore


@workflow
async def echo(ctx: Context, value: Any) -> Any:
    return value


@step
async def refuse() -> None:
    raise PermanentError("never")


@workflow
async def failing(ctx: Context, value: Any) -> None:
    await ctx.step(refuse)


WORKFLOWS = [echo, failing]


async def end_runs(
    store: MemoryStore, names: Iterable[str], key: str = "k", **options: Any
) -> None:
    """Run to their end some runs of one key."""
    async with open_test_runtime(store, workflows=WORKFLOWS, **options) as rt:
        for name in names:
            await (await rt.submit(echo, name, key="k", run_id=name)).result()


async def received(store: MemoryStore) -> list[str]:
    """The runs whose ends a working hook receives."""
    hook = RecordingHook()
    async with open_test_runtime(store, workflows=WORKFLOWS, on_terminal=hook):
        await trio.sleep(200)
    return [outcome.run_id for outcome in hook.outcomes]


def broken() -> RecordingHook:
    return RecordingHook(failures=1_000_000)


async def test_the_hook_receives_the_whole_outcome_of_runs_that_were_forgotten(
    autojump_clock: MockClock,
) -> None:
    hook = RecordingHook()

    async def slow(outcome: RunOutcome) -> None:
        await trio.sleep(1)
        await hook(outcome)

    async with open_test_runtime(workflows=WORKFLOWS, on_terminal=slow) as rt:
        for n in range(5):
            run = await rt.submit(echo, n, key="k", run_id=f"r{n}", headers={"n": str(n)})
            await run.result()
            await rt.forget(f"r{n}")
        run = await rt.submit(failing, None, key="k", run_id="failed")
        with pytest.raises(RunFailed):
            await run.result()
        await rt.forget("failed")
        await trio.sleep(60)
        assert await rt.runs() == []
    seen = [(each.run_id, each.result, each.headers) for each in hook.outcomes[:5]]
    assert seen == [(f"r{n}", n, {"n": str(n)}) for n in range(5)]
    last = hook.outcomes[5]
    assert (last.run_id, last.state, last.step) == ("failed", State.FAILED, "refuse")
    assert last.failure is not None
    assert last.failure.reason.endswith("PermanentError: never")


@pytest.mark.parametrize("crash", [False, True])
async def test_runs_that_end_in_an_open_without_a_hook_wait_for_the_next_hook(
    autojump_clock: MockClock, crash: bool
) -> None:
    store = MemoryStore()
    await end_runs(store, [], on_terminal=RecordingHook())
    async with open_test_runtime(store, workflows=WORKFLOWS) as rt:
        for name in "abc":
            await (await rt.submit(echo, name, key="k", run_id=name)).result()
        await rt.forget("b")
        if crash:
            store.crash()
            await trio.sleep_forever()
    await end_runs(store, "de")
    assert await received(store) == ["a", "b", "c", "d", "e"]
    assert await received(store) == []


async def test_a_store_that_never_had_a_hook_keeps_no_ends(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = FragileStore()
    await end_runs(store, "abc")
    await end_runs(store, "d")
    assert store.keys("outcomes") == []
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert await received(store) == []


async def test_an_open_without_a_hook_warns_once_with_the_number_of_waiting_ends(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    await end_runs(store, "ab", on_terminal=broken())
    caplog.clear()
    await end_runs(store, "c")
    await end_runs(store, "d")
    warned = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.__dict__["event"] for each in warned] == ["outcomes_waiting"] * 2
    assert warned[0].getMessage().startswith("2 ends of runs wait for on_terminal")
    assert warned[1].getMessage().startswith("3 ends of runs wait for on_terminal")
    assert "discard_outcomes()" in warned[0].getMessage()


async def test_opening_reads_only_the_first_keys_of_the_outbox(autojump_clock: MockClock) -> None:
    class Counting(MemoryStore):
        rows = 0

        async def _scan(self, table: str, *where: Any) -> list[tuple[bytes, bytes]]:
            found = await super()._scan(table, *where)
            self.rows += len(found) if table in ("outcomes", "outbox") else 0
            return found

    store = Counting()
    async with open_test_runtime(store, workflows=WORKFLOWS, on_terminal=broken()) as rt:
        async with trio.open_nursery() as nursery:
            for n in range(2000):
                nursery.start_soon(partial(rt.submit, echo, n, key=f"k{n % 1000}"))
        await trio.sleep(1)
    store.rows = 0
    async with open_test_runtime(store, workflows=WORKFLOWS):
        assert store.rows == 0
    release = trio.Event()

    async def hold(outcome: RunOutcome) -> None:
        await release.wait()

    async with open_test_runtime(
        store, workflows=WORKFLOWS, on_terminal=hold, drain_timeout=0
    ) as rt:
        await trio.testing.wait_all_tasks_blocked()
        assert store.rows < 500
        assert rt.statistics().waiting_outcomes == 2000


async def test_retention_removes_runs_whose_ends_have_not_been_delivered(
    autojump_clock: MockClock,
) -> None:
    store, names = FragileStore(), [f"r{n}" for n in range(450)]
    async with open_test_runtime(
        store, workflows=WORKFLOWS, on_terminal=broken(), retention=Retention(age=60)
    ) as rt:
        for name in names:
            await (await rt.submit(echo, name, key="k", run_id=name)).result()
        await trio.sleep(100)
        assert await rt.runs() == []
        assert store.keys("runs") == store.keys("status") == store.keys("ended") == []
    assert await received(store) == names
    assert store.keys("outcomes") == []


async def test_an_outcome_id_is_the_same_in_every_repeat_and_differs_between_ends(
    autojump_clock: MockClock,
) -> None:
    store, seen = MemoryStore(), list[RunOutcome]()

    async def recording(outcome: RunOutcome) -> None:
        seen.append(outcome)
        if len([each for each in seen if each.outcome_id == outcome.outcome_id]) < 3:
            raise RuntimeError("not yet")

    options: dict[str, Any] = {"workflows": WORKFLOWS, "on_terminal": recording}
    async with open_test_runtime(store, **options) as rt:
        with pytest.raises(RunFailed):
            await (await rt.submit(failing, None, key="k", run_id="r")).result()
        assert await rt.redrive("r") == 2
        await rt.submit(echo, 1, key="other", run_id="other")
        await trio.sleep(1)
    async with open_test_runtime(store, **options) as rt:
        await trio.sleep(200)
        await rt.forget("r")
        await (await rt.submit(echo, 1, key="k", run_id="r")).result()
        await trio.sleep(200)
    ends = {(each.run_id, each.generation, each.state): each.outcome_id for each in seen}
    assert set(ends) == {
        ("r", 1, State.FAILED),
        ("r", 2, State.FAILED),
        ("r", 1, State.SUCCEEDED),
        ("other", 1, State.SUCCEEDED),
    }
    assert len(set(ends.values())) == len({each.outcome_id for each in seen}) == 4
    assert len(seen) == 12


async def test_discarding_drops_the_waiting_ends_and_stops_the_collecting(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = FragileStore()
    await end_runs(store, "abc", on_terminal=broken())
    async with open_test_runtime(store, workflows=WORKFLOWS) as rt:
        assert await rt.outbox() == OutboxStatus(waiting=3, collecting=True)
        assert await rt.discard_outcomes() == 3
        assert await rt.outbox() == OutboxStatus(waiting=0, collecting=False)
        assert await rt.discard_outcomes() == 0
        assert await rt.outbox() == OutboxStatus(waiting=0, collecting=False)
        await (await rt.submit(echo, 1, key="k", run_id="d")).result()
    caplog.clear()
    await end_runs(store, "e")
    assert caplog.records == []
    assert store.keys("outcomes") == []
    hook = RecordingHook()
    await end_runs(store, "f", on_terminal=hook)
    await end_runs(store, "g")
    assert [outcome.run_id for outcome in hook.outcomes] == ["f"]
    assert await received(store) == ["g"]


async def test_discarding_beside_a_hook_drops_what_waits_and_delivers_later_ends(
    autojump_clock: MockClock,
) -> None:
    store, seen = FragileStore(), list[str]()
    failing = True

    async def hook(outcome: RunOutcome) -> None:
        await trio.sleep(5)
        if failing:
            raise RuntimeError("not now")
        seen.append(outcome.run_id)

    async with open_test_runtime(store, workflows=WORKFLOWS, on_terminal=hook) as rt:
        for name in ("a", "b", "c"):
            await rt.submit(echo, 1, key="k", run_id=name)
        await rt.submit(echo, 1, key="other", run_id="other")
        await trio.sleep(20)
        # A call for "a" and one for "other" run or wait for their next try.
        dropped = await rt.discard_outcomes()
        assert dropped == 4
        failing = False
        await rt.submit(echo, 1, key="k", run_id="d")
        await trio.sleep(200)
        assert seen[-1] == "d"
        assert not {"b", "c"} & set(seen)
        assert rt.statistics().waiting_outcomes == 0
    assert store.keys("outcomes") == []


async def test_no_outcome_is_delivered_after_discard_was_called(autojump_clock: MockClock) -> None:
    store = FragileStore(latency=0.01)
    await end_runs(store, "abc", on_terminal=broken())
    calls: list[str] = []

    async def hook(outcome: RunOutcome) -> None:
        calls.append(outcome.run_id)
        raise RuntimeError("not now")

    async with open_test_runtime(store, workflows=WORKFLOWS, on_terminal=hook) as rt:
        await trio.sleep(5)
        assert set(calls) == {"a"}
        calls.clear()
        # The records stay until the commit, which takes longer than the next retries.
        store.latency = 1000
        assert await rt.discard_outcomes() == 3
        assert calls == []


async def test_the_count_is_right_when_calls_return_while_ends_are_discarded(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore(latency=0.01)

    async def hook(outcome: RunOutcome) -> None:
        await trio.sleep(0.003)

    async with open_test_runtime(store, workflows=WORKFLOWS, on_terminal=hook) as rt:
        async with trio.open_nursery() as nursery:
            for n in range(200):
                nursery.start_soon(partial(rt.submit, echo, n, key=f"k{n % 7}"))
            for _ in range(20):
                await trio.sleep(0.004)
                nursery.start_soon(rt.discard_outcomes)
        await trio.sleep(10)
        assert rt.statistics().waiting_outcomes == 0
        assert await rt.outbox() == OutboxStatus(waiting=0, collecting=True)
    assert store.keys("outcomes") == []


async def test_a_damaged_count_is_counted_again(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = FragileStore()
    await end_runs(store, "abc", on_terminal=broken())
    (record,) = [key for key in store.keys("counter") if key.endswith(b"outbox")]
    store.damage("counter", record)
    async with open_test_runtime(store, workflows=WORKFLOWS) as rt:
        assert rt.statistics().waiting_outcomes == 3
        await (await rt.submit(echo, 1, key="k", run_id="d")).result()
    assert "counted 3" in caplog.text
    assert await received(store) == ["a", "b", "c", "d"]


async def test_large_results_are_delivered_one_at_a_time(autojump_clock: MockClock) -> None:
    """A page of the outbox has a limit in bytes: 40 results of 1 MB are not read at once."""

    class Measuring(MemoryStore):
        most = 0

        async def _scan(self, table: str, *where: Any) -> list[tuple[bytes, bytes]]:
            found = await super()._scan(table, *where)
            if table == "outcomes":
                self.most = max(self.most, sum(len(raw) for _, raw in found))
            return found

    store, sizes = Measuring(), list[int]()

    async def hook(outcome: RunOutcome) -> None:
        sizes.append(len(outcome.result))

    async with open_test_runtime(store, workflows=WORKFLOWS, on_terminal=broken()) as rt:
        for n in range(40):
            await rt.submit(echo, "x" * 1_000_000, key=f"k{n % 2}")
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=WORKFLOWS, on_terminal=hook) as rt:
        await trio.sleep(1)
    assert sizes == [1_000_000] * 40
    assert store.most < 2_000_000
    async with open_test_runtime(store, workflows=WORKFLOWS) as rt:
        for n in range(40):
            await rt.submit(echo, "x" * 1_000_000, key=f"k{n % 2}")
        await trio.sleep(1)
        assert await rt.discard_outcomes() == 40
    assert store.most < 20_000_000


async def as_an_older_keyrun(store: MemoryStore) -> None:
    """Give the entries the form that they had before they held the outcome: number and generation,
    and only for a run that was redriven how that generation ended."""
    async with store:
        group = store.open_group()
        for record, raw in await store.scan("outcomes"):
            group.delete("outcomes", record)
            prefix = record[: record.index(0) + 1]
            legacy = prefix + record[-12:]
            status = unseal("status", prefix + record[-12:-4], await stored(store, prefix, record))
            ended = unseal("outcomes", record, raw)[4]
            fields = () if status == ended else ended
            group.put("outbox", legacy, sealed("outbox", legacy, *fields))
        for key, _ in await store.scan("counter"):
            if key.endswith(b"outbox"):
                group.delete("counter", key)
        await store.durable(group)


async def stored(store: MemoryStore, prefix: bytes, record: bytes) -> bytes:
    raw = await store.get("status", prefix + record[-12:-4])
    assert raw is not None
    return raw


@pytest.mark.parametrize("between", ["nothing", "an open without a hook", "a crash"])
async def test_entries_of_an_older_keyrun_are_delivered_in_the_order_of_the_ends(
    autojump_clock: MockClock, between: str
) -> None:
    sizes = Tuning(outbox_conversion=2)
    store, hook = FragileStore(), RecordingHook()
    async with open_test_runtime(
        store, workflows=WORKFLOWS, on_terminal=broken(), tuning=sizes
    ) as rt:
        # Its number is the lowest, and it is the last to end.
        await rt.submit(echo, 0, key="k", run_id="delayed", delay=50, headers={"h": "1"})
        for name in ("a", "b"):
            await (await rt.submit(echo, name, key="k", run_id=name)).result()
        for _ in range(2):
            with pytest.raises(RunFailed):
                await (await rt.submit(failing, None, key="k", run_id="r")).result()
            await rt.redrive("r")
        with pytest.raises(RunFailed):
            await (await rt.submit(failing, None, key="k", run_id="r")).result()
        await (await rt.submit(echo, "c", key="k", run_id="c")).result()
        await trio.sleep(100)
    await as_an_older_keyrun(store)
    assert len(store.keys("outbox")) == 7
    async with open_reader(store) as reader:
        assert await reader.outbox() == OutboxStatus(waiting=7, collecting=True)
    if between == "an open without a hook":
        async with open_test_runtime(store, workflows=WORKFLOWS, tuning=sizes) as rt:
            # All of this begins before the entries are converted.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rt.forget, "a")
                nursery.start_soon(rt.redrive, "r")
            await (await rt.submit(echo, "d", key="k", run_id="d")).result()
    elif between == "a crash":
        store.crash_at = store.commits + 3
        async with open_test_runtime(
            store, workflows=WORKFLOWS, on_terminal=hook, tuning=sizes
        ) as rt:
            await trio.sleep_forever()
        store.crash_at = None
        assert hook.calls == 0
        assert store.keys("outbox")
        assert store.keys("outcomes")
    async with open_test_runtime(store, workflows=WORKFLOWS, on_terminal=hook, tuning=sizes) as rt:
        await trio.sleep(200)
        assert rt.statistics().waiting_outcomes == 0
    expected = [("a", 1), ("b", 1), ("r", 1), ("r", 2), ("r", 3), ("c", 1), ("delayed", 1)]
    if between == "an open without a hook":
        expected += [("r", 4), ("d", 1)]
    assert [(each.run_id, each.generation) for each in hook.outcomes] == expected
    assert hook.of("delayed")[0].headers == {"h": "1"}
    assert store.keys("outbox") == store.keys("outcomes") == []


@pytest.mark.parametrize("hook", [True, False])
async def test_a_store_of_an_older_keyrun_runs_steps_while_its_entries_are_converted(
    autojump_clock: MockClock, hook: bool
) -> None:
    sizes = Tuning(outbox_conversion=1)
    store, names = FragileStore(latency=1), [f"r{n}" for n in range(50)]
    async with open_test_runtime(
        store, workflows=WORKFLOWS, on_terminal=broken(), tuning=sizes
    ) as rt:
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(partial(rt.submit, echo, name, key="k", run_id=name))
                await trio.lowlevel.checkpoint()
        await trio.sleep(60)
    await as_an_older_keyrun(store)
    seen = RecordingHook()
    async with open_test_runtime(
        store, workflows=WORKFLOWS, on_terminal=seen if hook else None, tuning=sizes
    ) as rt:
        await (await rt.submit(echo, 1, key="k", run_id="new")).result()
        assert store.keys("outbox")
        assert seen.calls == 0
        # Its entry has no outcome yet, so the run must stay.
        await rt.forget("r49")
        assert store.keys("outbox") == []
        if not hook:
            assert await rt.discard_outcomes() == 51
        await trio.sleep(60)
        assert rt.statistics().waiting_outcomes == 0
    assert [outcome.run_id for outcome in seen.outcomes] == ([*names, "new"] if hook else [])


async def test_a_drain_cuts_off_the_conversion_and_the_next_open_finishes_it(
    autojump_clock: MockClock,
) -> None:
    sizes = Tuning(outbox_conversion=1)
    store, names = FragileStore(), [f"r{n}" for n in range(20)]
    await end_runs(store, names, on_terminal=broken())
    await as_an_older_keyrun(store)
    slow = FragileStore(latency=1)
    slow._tables = store._tables
    refused: list[str] = []

    async def forget(rt: Runtime) -> None:
        with pytest.raises(StoreClosed):
            await rt.forget("r3")
        refused.append("forget")

    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        async with open_test_runtime(
            slow, workflows=WORKFLOWS, on_terminal=RecordingHook(), drain_timeout=5, tuning=sizes
        ) as rt:
            nursery.start_soon(forget, rt)
            await trio.sleep(3)
        assert trio.current_time() - began < 15
    assert refused == ["forget"]
    assert slow.keys("outbox")
    assert slow.keys("outcomes")
    assert await received(slow) == names


async def test_an_end_whose_removal_is_being_committed_is_not_discarded_again(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    returned = trio.Event()

    async def hook(outcome: RunOutcome) -> None:
        await trio.sleep(1)
        store.latency = 1
        returned.set()

    async with open_test_runtime(store, workflows=WORKFLOWS, on_terminal=hook) as rt:
        await rt.submit(echo, 1, key="k")
        await returned.wait()
        await trio.sleep(0.5)
        assert rt.statistics().waiting_outcomes == 0
        assert len(store.keys("outcomes")) == 1
        assert await rt.discard_outcomes() == 0
        assert rt.statistics().waiting_outcomes == 0
