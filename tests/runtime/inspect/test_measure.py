"""What monitoring reads agrees with the runs of the store."""

import random
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Entity,
    Graph,
    Limits,
    NodeInput,
    PermanentError,
    Retry,
    RunOutcome,
    Runtime,
    State,
    Workflow,
    entity,
    step,
    workflow,
)
from keyrun.errors import KeyrunError, RunEnded
from keyrun.graphs import durable
from keyrun.runtime.inspect.measure import (
    Distribution,
    MetricFamily,
    immediate,
    measure,
    oldest_pending,
    runs_by_state,
)
from keyrun.runtime.metrics import OTHER
from keyrun.runtime.records.tables import Evicted, at_place
from keyrun.runtime.tuning import Tuning
from keyrun.storage import MemoryStore
from keyrun.testing import crash_points, open_test_runtime
from tests.faults.soaking import amount

SECRET = "s3cret"


@step(retry=Retry.none())
async def work(seconds: float) -> None:
    await trio.sleep(seconds)


@step(retry=Retry.fixed(max_attempts=2, delay=1, jitter=0))
async def stumbles() -> None:
    if trio.current_time() % 1000 < 500:
        raise ConnectionError(SECRET)


@step(retry=Retry.none())
async def breaks() -> None:
    raise PermanentError(SECRET)


@step(timeout=1, retry=Retry.none())
async def hangs() -> None:
    await trio.sleep(5)


@workflow
async def short(ctx: Context) -> None:
    await ctx.step(work, 0.1)


@workflow
async def waits(ctx: Context) -> None:
    await ctx.step(work, 0.1)
    await ctx.wait_signal("go", timeout=1e6)


@workflow(while_waiting="yield")
async def yields(ctx: Context) -> None:
    await ctx.wait_signal("go")
    await ctx.step(work, 2)


@workflow
async def fails(ctx: Context) -> None:
    await ctx.step(stumbles)
    await ctx.step(breaks)


@workflow
async def times_out(ctx: Context) -> None:
    await ctx.step(hangs)


@workflow
async def parent(ctx: Context) -> None:
    await ctx.child(short, key="child")


@durable
async def breaks_as_node(ctx: Context, given: NodeInput) -> None:
    raise LookupError(SECRET)


graph = Graph("graph")
graph.node("node", breaks_as_node)


@entity
class Wallet(Entity):
    async def put(self, card: str) -> None:
        raise ValueError(card)


ALL: list[Workflow[Any, Any]] = [short, waits, yields, fails, times_out, parent]


def sample(rt: Runtime, name: str, **labels: str) -> Any:
    """The value of one sample. 0 if there is none."""
    found = 0.0
    for family in measure(rt._partition.measured()):
        if family.name == name:
            for values, value in family.samples:
                given = dict(zip(family.labels, values, strict=True))
                if labels.items() <= given.items():
                    if isinstance(value, Distribution):
                        return value
                    found += value
    return found


def families(rt: Runtime) -> dict[str, MetricFamily]:
    return {each.name: each for each in measure(rt._partition.measured())}


async def check(rt: Runtime) -> None:
    """The gauges agree with a scan of all runs, at a moment at which nothing is staged."""
    partition = rt._partition
    await partition.state.counted.wait()
    for _ in range(50):
        await partition.state.store.durable()
        before = partition.state.store.statistics().commits, measured(rt)
        scanned = await scan(rt)
        # Other tasks may have run during the scan, or a commit may be under way.
        await partition.state.store.durable()
        if (partition.state.store.statistics().commits, measured(rt)) == before:
            assert measured(rt) == scanned
            return
        await trio.sleep(0.06)
    raise AssertionError("the runtime never rests")


Gauges = dict[str, Any]


def measured(rt: Runtime) -> Gauges:
    """What the gauges say."""
    partition = rt._partition
    return {
        "runs": runs_by_state(partition.measured()),
        "dead": partition.state.counts.dead_letters,
        "oldest": immediate(oldest_pending(partition.measured())),
        "backlog": sample(rt, "keyrun_backlog_runs"),
        "hook": sample(rt, "keyrun_hook_waiting"),
        "slots": sample(rt, "keyrun_slots_used"),
    }


async def scan(rt: Runtime) -> Gauges:
    """The same, from all records of the store."""
    found: Counter[tuple[str, str]] = Counter()
    pending, steps = [], 0
    # Every delayed run counts as waiting to start. So does every run that has a place and was not
    # evicted, until it has started: only memory knows that.
    ledger = rt._statuses.ledger
    started = {run.number for run in rt._partition.runs if not run.pending}
    places = [
        at_place(key, raw, ledger.split_place(key)[1])
        for key, raw in await ledger.store.scan("queue")
    ]
    waiting = len(await ledger.store.scan("delayed"))
    waiting += sum(each.evicted is Evicted.NO and each.number not in started for each in places)
    for status in await rt.runs(limit=100_000):
        if not status.state.terminal:
            found[status.workflow, status.state.value] += 1
        steps += status.state is State.RUNNING
        if status.state is State.PENDING and status.generation == 1:
            number = await rt._statuses.ledger.find(status.run_id)
            assert number is not None
            if rt._partition.runs.delayed(number) is None:
                submission = await rt._statuses.ledger.submission(number)
                assert submission is not None
                pending.append(status.submitted_at + submission.delay)
    dead = Counter(status.workflow for status in await rt.dead_letters(limit=100_000))
    ends = await rt._statuses.ledger.store.scan("outcomes")
    return {
        "runs": dict(found),
        "dead": dict(dead),
        "oldest": min(pending, default=None),
        "backlog": waiting,
        "hook": len(ends),
        "slots": steps,
    }


async def everything(rt: Runtime) -> None:
    """Bring runs to many states. It is played again after a crash."""
    await check(rt)
    await rt.submit(short, key="a", run_id="short")
    await rt.submit(waits, key="b", run_id="waits")
    await rt.submit(waits, key="b", run_id="behind", limits=Limits(run_timeout=1e6))
    await rt.submit(short, key="c", run_id="delayed", delay=1e5)
    await rt.submit(fails, key="d", run_id="fails")
    await rt.submit(parent, key="f", run_id="parent")
    await rt.submit(waits, key="g", run_id="paused")
    await rt.submit(yields, key="h", run_id="yields")
    await rt.submit(yields, key="h", run_id="next")
    await trio.sleep(5)
    await rt.pause("paused")
    with suppress(RunEnded):
        await rt.signal("yields", "go")
    status = await rt.status("fails")
    if status is not None and status.state is State.FAILED and status.generation == 1:
        await rt.redrive("fails")
    await trio.sleep(5)
    await rt.cancel("delayed")
    await rt.submit(waits, key="z", run_id="last")
    await check(rt)


async def test_gauges_agree_with_the_store_whatever_commit_a_crash_comes_at(
    autojump_clock: MockClock,
) -> None:
    for point in crash_points(every=amount(4, 1)):
        await point.run(everything, workflows=ALL)


async def test_gauges_are_exact_at_once_after_a_crash_without_the_workflows(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=ALL) as rt:
        await everything(rt)
        await trio.sleep(10)
        store.crash()
    async with open_test_runtime(store) as rt:
        await check(rt)
        await trio.sleep(10)
        await check(rt)
    async with open_test_runtime(store, workflows=ALL) as rt:
        await check(rt)
        await trio.sleep(10)
        await check(rt)


@pytest.mark.parametrize("seed", range(amount(12, 1000)))
async def test_gauges_agree_with_the_store_after_a_random_history(
    autojump_clock: MockClock, seed: int
) -> None:
    rng, store = random.Random(seed), MemoryStore()
    ids = 0
    for _ in range(3):
        async with open_test_runtime(store, workflows=ALL) as rt:
            await check(rt)
            for _ in range(40):
                run_id = f"r{rng.randrange(ids + 1)}"
                with suppress(KeyrunError):
                    match rng.randrange(9):
                        case 0 | 1 | 2:
                            chosen: Workflow[None, None] = rng.choice(ALL)
                            await rt.submit(
                                chosen,
                                key=rng.choice("abcdef"),
                                run_id=f"r{ids}",
                                delay=rng.choice([0, 0, 0, 3]),
                            )
                            ids += 1
                        case 3:
                            await rt.signal(run_id, "go")
                        case 4:
                            await rt.pause(run_id)
                        case 5:
                            await rt.resume(run_id)
                        case 6:
                            await rt.cancel(run_id)
                        case 7:
                            await rt.redrive(run_id)
                        case 8:
                            await rt.forget(run_id)
                await trio.sleep(rng.choice([0, 0.05, 0.3, 3]))
            if rng.random() < 0.5:
                await trio.sleep(5)
            await check(rt)
            if rng.random() < 0.5:
                store.crash()


async def test_counters_count_runs_and_attempts_by_their_outcome(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(MemoryStore(), workflows=ALL) as rt:
        for number in range(3):
            await rt.submit(short, key=f"k{number}")
        await rt.submit(fails, key="f")
        await rt.submit(times_out, key="t")
        await rt.submit(waits, key="w", run_id="w")
        await trio.sleep(3)
        await rt.cancel("w")
        assert sample(rt, "keyrun_runs_submitted") == 6
        assert sample(rt, "keyrun_runs_ended", workflow="short", state="succeeded") == 3
        assert sample(rt, "keyrun_runs_ended", state="cancelled") == 1
        assert sample(rt, "keyrun_runs_ended", state="failed", kind="step_timeout") == 1
        assert sample(rt, "keyrun_run_duration_seconds", workflow="short").sum == pytest.approx(
            0.3, abs=0.01
        )
        attempts = "keyrun_step_attempts"
        assert sample(rt, attempts, step="work", outcome="completed", workflow="short") == 3
        assert sample(rt, attempts, step="stumbles", outcome="retrying") == 1
        assert sample(rt, attempts, step="stumbles", outcome="failed") == 1
        assert sample(rt, attempts, step="hangs", outcome="timed_out") == 1
        assert sample(rt, "keyrun_step_duration_seconds", step="hangs").sum == pytest.approx(1)
        assert sample(rt, "keyrun_dead_letters") == 2


async def test_an_attempt_that_is_cut_off_counts_as_cancelled_and_one_of_a_killed_process_as_such(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()

    @workflow
    async def long(ctx: Context) -> None:
        await ctx.step(work, 100)

    async with open_test_runtime(store, workflows=[long]) as rt:
        await rt.submit(long, key="a", run_id="a")
        await rt.submit(long, key="b")
        await trio.sleep(1)
        await rt.cancel("a")
        assert sample(rt, "keyrun_step_attempts", outcome="cancelled") == 1
        await trio.sleep(1)
        store.crash()
    async with open_test_runtime(store, workflows=[long]) as rt:
        assert sample(rt, "keyrun_step_interruptions") == 1


async def test_waits_for_slots_room_and_timers_are_measured(autojump_clock: MockClock) -> None:
    options: dict[str, Any] = {"max_concurrent_steps": 1, "max_pending": 2}
    async with open_test_runtime(MemoryStore(), workflows=[short], **options) as rt:
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(partial(rt.submit, short, key=f"k{number}"))
            await trio.sleep(0.05)
            assert sample(rt, "keyrun_slots_used") == 1
            assert sample(rt, "keyrun_backlog_runs") == sample(rt, "keyrun_backlog_limit_runs")
            assert sample(rt, "keyrun_backpressure_waiting") > 0
        await trio.sleep(1)
        assert sample(rt, "keyrun_backpressure_waiting") == 0
        assert sample(rt, "keyrun_backpressure_periods") >= 1
        waited = sample(rt, "keyrun_backpressure_wait_seconds", workflow="short")
        assert waited.cumulative[-1] > 0
        assert waited.sum > 0.05
        assert sample(rt, "keyrun_run_start_delay_seconds").sum > 0.5
        assert sample(rt, "keyrun_slot_wait", step="work") == 0


LABELS = {"namespace", "workflow", "step", "state", "outcome", "kind"}


async def test_labels_hold_only_names_from_code(autojump_clock: MockClock) -> None:
    """Every kind of run, of call and of failure has the secret in its key, id, tag and error."""

    async def hook(outcome: RunOutcome) -> None:
        raise OSError(SECRET)

    store = MemoryStore()
    options: dict[str, Any] = {"entities": [Wallet], "on_terminal": hook, "max_pending_per_key": 2}
    async with open_test_runtime(store, workflows=[*ALL, graph], **options) as rt:
        for each in (*ALL, graph):
            name = f"{each.name}-{SECRET}"
            await rt.submit(each, None, key=name, run_id=name, tags=[SECRET], headers={"h": SECRET})
        with suppress(ValueError):
            await rt.entity(Wallet, SECRET).put(SECRET)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(partial(rt.submit, short, key=SECRET))
        await trio.sleep(50)
        first = families(rt)
        store.crash()
    async with open_test_runtime(store, workflows=[short], **options) as rt:
        await trio.sleep(5)
        second = families(rt)
        assert sample(rt, "keyrun_runs", state="quarantined") > 0
    for family in (*first.values(), *second.values()):
        assert {*family.labels} <= LABELS or family.name == "keyrun_build_info"
        for values, _ in family.samples:
            assert SECRET not in repr(values), family.name


async def test_the_gauges_count_names_beyond_the_limit_together_too(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def dies(number: int) -> Workflow[None, None]:
        @step(retry=Retry.none(), max_concurrent=1)
        async def breaks_down() -> None:
            raise PermanentError

        @workflow(name=f"dies{number}")
        async def flow(ctx: Context) -> None:
            await ctx.step(breaks_down.options(name=f"breaks{number}"))

        return flow

    def stays(number: int) -> Workflow[None, None]:
        @workflow(name=f"stays{number}")
        async def flow(ctx: Context) -> None:
            await ctx.wait_signal("go")

        return flow

    flows = [each(number) for number in range(150) for each in (dies, stays)]
    async with open_test_runtime(MemoryStore(), workflows=flows) as rt:
        for flow in flows:
            await rt.submit(flow, key=flow.name)
        await trio.sleep(5)
        found = families(rt)
        for name, total in (("keyrun_runs", 150), ("keyrun_dead_letters", 150)):
            samples = dict(found[name].samples)
            values: Any = samples.values()
            assert sum(values) == total
            named = {labels[found[name].labels.index("workflow")] for labels in samples}
            assert OTHER in named
        every = {
            (label, value)
            for family in found.values()
            for values, _ in family.samples
            for label, value in zip(family.labels, values, strict=True)
        }
        per_label = Counter(label for label, _ in every)
        assert per_label["workflow"] == 201
        assert per_label["step"] == 150
    warnings = [each for each in caplog.records if "names of a workflow" in each.getMessage()]
    assert len(warnings) == 1


async def test_a_full_queue_shows_in_the_next_scrape_by_node_and_its_event_arrives_at_once(
    autojump_clock: MockClock,
) -> None:
    def of(name: str, most: int) -> Graph:
        async def quick(_: NodeInput) -> None: ...

        async def slow(_: NodeInput) -> None:
            await trio.sleep(10)

        made = Graph(name)
        made.node("first", quick)
        made.node("second", slow, max_concurrent=1, max_waiting=most)
        made.edge("first", "second")
        return made

    full, free = of("full", 1), of("free", 100)
    async with open_test_runtime(workflows=[full, free], max_pending=100) as rt:
        began: list[tuple[float, float]] = []

        async def listen() -> None:
            async with rt.events(kinds=["backpressure_began"]) as events:
                async for event in events:
                    began.append((event.at, rt._partition.state.wall()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await trio.testing.wait_all_tasks_blocked()
            for number in range(4):
                for each in (full, free):
                    await rt.submit(each, key=f"{each.name}{number}")
            await trio.sleep(0.1)
            assert len(began) == 1
            assert began[0][1] - began[0][0] < 0.1
            waiting, periods, seconds = (
                f"keyrun_node_backpressure_{each}" for each in ("waiting", "periods", "seconds")
            )
            assert sample(rt, waiting, workflow="full", step="second") == 2
            assert sample(rt, waiting, workflow="free") == 0
            await trio.sleep(4.9)
            # The duration counts while the period lasts.
            assert sample(rt, seconds, workflow="full", step="second") == pytest.approx(5, abs=0.1)
            await trio.sleep(60)
            assert sample(rt, waiting) == 0
            assert sample(rt, periods, workflow="full", step="second") == 1
            assert sample(rt, seconds) == pytest.approx(20, abs=0.2)
            nursery.cancel_scope.cancel()


async def test_names_beyond_the_limit_count_together_with_one_warning(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    async def many(ctx: Context) -> None:
        for number in range(60):
            await ctx.step(work.options(name=f"step{number}"), 0.0)

    tuning = Tuning(metric_names=10)
    async with open_test_runtime(MemoryStore(), workflows=[many], tuning=tuning) as rt:
        run = await rt.submit(many, key="a")
        await run.result()
        assert sample(rt, "keyrun_step_attempts", step=OTHER) == 50
        assert len(families(rt)["keyrun_step_duration_seconds"].samples) == 11
    warnings = [each for each in caplog.records if "names of a step" in each.getMessage()]
    assert len(warnings) == 1


async def test_counting_can_be_left_out(autojump_clock: MockClock) -> None:
    tuning = Tuning(metric_names=0)
    async with open_test_runtime(MemoryStore(), workflows=[short], tuning=tuning) as rt:
        run = await rt.submit(short, key="a")
        await run.result()
        assert "keyrun_runs_submitted" not in families(rt)
        assert "keyrun_runs" in families(rt)


async def test_the_oldest_run_that_waits_to_start_is_found_among_many_that_left(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(MemoryStore(), workflows=[short]) as rt:
        await rt.pause_all()
        for number in range(3000):
            await rt.submit_nowait(short, key=f"k{number}", run_id=f"r{number}")
        await trio.sleep(60)
        last = await rt.submit(short, key="last")
        for number in range(3000):
            await rt.cancel(f"r{number}")
        for _ in range(2):
            age = sample(rt, "keyrun_oldest_pending_run_age_seconds")
        assert age == pytest.approx(0, abs=0.01)
        await trio.sleep(10)
        assert sample(rt, "keyrun_oldest_pending_run_age_seconds") == pytest.approx(10, abs=0.01)
        await rt.resume_all()
        await last.result()
        assert sample(rt, "keyrun_oldest_pending_run_age_seconds") == 0
