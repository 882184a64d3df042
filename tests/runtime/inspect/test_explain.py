"""`explain` names the one cause why a run or a key does not move, in memory and in the store."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from keyrun import (
    Context,
    Retry,
    Runtime,
    Workflow,
    current_step,
    open_reader,
    open_runtime,
    step,
    workflow,
)
from keyrun.policies import CircuitBreaker, RateLimit, Resources
from keyrun.status import Cause, Explanation, QuarantineCause
from keyrun.storage import LmdbStore, MemoryStore
from keyrun.testing import EPOCH, open_test_runtime

LONG = 1000.0


class CountingStore(MemoryStore):
    """Counts the records that are read by their keys."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    async def _get(self, table: str, key: bytes) -> bytes | None:
        self.read += 1
        return await super()._get(table, key)


@step(timeout=None)
async def work() -> None:
    await trio.sleep(LONG)


@step(retry=Retry.fixed(max_attempts=2, delay=50, jitter=0))
async def fail() -> None:
    raise ValueError("no")


@workflow
async def working(ctx: Context) -> None:
    await ctx.step(work)


@workflow
async def failing(ctx: Context) -> None:
    await ctx.step(fail)


@workflow
async def sleeping(ctx: Context) -> None:
    await ctx.sleep(60)


@workflow
async def asking(ctx: Context) -> None:
    await ctx.wait_signal("go", timeout=90)


@workflow
async def deciding(ctx: Context) -> None:
    await ctx.approval("manager")


@workflow
async def parent(ctx: Context) -> None:
    await ctx.child(deciding, None, key="other")


@workflow
async def forked(ctx: Context) -> None:
    await ctx.gather(
        lambda ctx: ctx.wait_signal("late"),
        lambda ctx: ctx.sleep(20),
        lambda ctx: ctx.approval("boss"),
    )


@workflow(instances=1)
async def single(ctx: Context) -> None:
    await ctx.sleep(LONG)


WAITS = [
    (failing, Cause.BACKOFF, EPOCH + 50, None, "waits until 2023-11-14 22:14:10 UTC before the"),
    (sleeping, Cause.TIMER, EPOCH + 60, None, "waits for a timer until 2023-11-14 22:14:20 UTC"),
    (asking, Cause.SIGNAL, EPOCH + 90, "go", "waits for the signal 'go'"),
    (deciding, Cause.APPROVAL, None, "manager", "waits for a decision at the gate 'manager'"),
    (forked, Cause.TIMER, EPOCH + 20, None, ", and for the signal 'late'."),
]


async def explained(rt: Runtime, run_id: str = "r") -> Explanation:
    found = await rt.explain(run_id)
    assert found is not None
    return found


@pytest.mark.parametrize("evicted", [False, True], ids=["in memory", "evicted"])
@pytest.mark.parametrize(
    ("flow", "cause", "until", "holder", "says"),
    WAITS,
    ids=lambda value: getattr(value, "name", ""),
)
async def test_a_wait_is_named_with_its_end(
    flow: Workflow[Any, Any],
    cause: Cause,
    until: float | None,
    holder: str | None,
    says: str,
    evicted: bool,
    autojump_clock: object,
) -> None:
    patience = 1.0 if evicted else LONG
    async with open_test_runtime(
        MemoryStore(), workflows=[flow], evict_after=patience, max_concurrent_steps=1
    ) as rt:
        await rt.submit(flow, key="k", run_id="r")
        await trio.sleep(5)
        assert rt.statistics().live == (0 if evicted else 1)
        found = await explained(rt)
    assert (found.cause, found.key, found.run_id) == (cause, "k", "r")
    assert found.holder == holder
    if until is not None:
        assert found.until == pytest.approx(until, abs=0.01)
    assert found.sentence.startswith("Run r waits ")
    assert says in found.sentence
    assert found.sentence.endswith(".")


@pytest.mark.parametrize("evicted", [False, True], ids=["in memory", "evicted"])
async def test_a_parent_names_its_child_the_key_and_what_the_child_waits_for(
    evicted: bool, autojump_clock: object
) -> None:
    flows = [parent, deciding]
    patience = 1.0 if evicted else LONG
    async with open_test_runtime(MemoryStore(), workflows=flows, evict_after=patience) as rt:
        await rt.submit(parent, key="k", run_id="r")
        await trio.sleep(5)
        found = await explained(rt)
    assert (found.cause, found.holder_key) == (Cause.CHILD, "other")
    assert found.sentence == (
        f"Run r waits for its child {found.holder} under key other, which waits for a decision at "
        "the gate 'manager'."
    )


async def test_a_run_behind_another_names_it_and_what_that_one_does(
    autojump_clock: object,
) -> None:
    async with open_test_runtime(MemoryStore(), workflows=[working]) as rt:
        await rt.submit(working, key="k", run_id="first")
        await rt.submit(working, key="k", run_id="r")
        await wait_all_tasks_blocked()
        found, first = await explained(rt), await explained(rt, "first")
        assert await rt.explain_key("k") == first
    assert (found.cause, found.holder) == (Cause.QUEUED, "first")
    assert found.sentence == (
        "Run r waits behind run first of its key, which is running work (attempt 1)."
    )
    assert (first.cause, first.step, first.holder) == (Cause.RUNNING, "work", None)


def policies() -> list[Any]:
    breaker = CircuitBreaker(failure_rate=0.5, minimum_calls=1, open_for=LONG)
    return [
        (Cause.RATE_LIMIT, {"rate": RateLimit(1, per=LONG)}),
        (Cause.MAX_CONCURRENT, {"max_concurrent": 1}),
        (Cause.RESOURCES, {"resources": Resources(cpu=1)}),
        (Cause.CIRCUIT, {"breaker": breaker, "retry": Retry.none()}),
    ]


@pytest.mark.parametrize(("cause", "options"), policies(), ids=lambda value: str(value)[:14])
async def test_a_step_that_waits_for_a_policy_names_it(
    cause: Cause, options: dict[str, Any], autojump_clock: object
) -> None:
    @step(timeout=None, **options)
    async def call() -> None:
        if cause is Cause.CIRCUIT:
            raise ValueError
        await trio.sleep(LONG)

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(call)

    async with open_test_runtime(
        MemoryStore(), workflows=[flow], resources=Resources(cpu=1), drain_timeout=0
    ) as rt:
        await rt.submit(flow, key="before")
        await wait_all_tasks_blocked()
        await rt.submit(flow, key="k", run_id="r")
        await wait_all_tasks_blocked()
        found = await explained(rt)
        assert await rt.explain_key("k") == found
    assert (found.cause, found.step) == (cause, "call")
    assert found.sentence.startswith("Run r has not started call, which waits")


async def test_without_a_free_slot_a_run_waits_for_one_before_its_start_and_between_steps(
    autojump_clock: object,
) -> None:
    @workflow
    async def second(ctx: Context) -> None:
        await ctx.sleep(1)
        await ctx.step(work)

    async with open_test_runtime(
        MemoryStore(), workflows=[working, second], max_concurrent_steps=1, drain_timeout=0
    ) as rt:
        await rt.submit(second, key="k", run_id="r")
        await rt.submit(working, key="busy")
        await trio.sleep(5)
        found = await explained(rt)
        assert (found.cause, found.step) == (Cause.SLOT, "work")
        assert "max_concurrent_steps" in found.sentence
        for number in range(200):
            await rt.submit(working, key=f"key-{number}", run_id=f"run-{number}")
        await wait_all_tasks_blocked()
        last = await explained(rt, "run-199")
        assert last.cause is Cause.SLOT


async def test_a_run_that_waits_for_another_of_its_workflow_says_so(
    autojump_clock: object,
) -> None:
    async with open_test_runtime(MemoryStore(), workflows=[single]) as rt:
        await rt.submit(single, key="a")
        await wait_all_tasks_blocked()
        await rt.submit(single, key="k", run_id="r")
        await wait_all_tasks_blocked()
        found = await explained(rt)
    assert (found.cause, "instances" in found.sentence) == (Cause.INSTANCES, True)


PAUSES: list[tuple[str, Callable[[Runtime], Any]]] = [
    ("run", lambda rt: rt.pause("r")),
    ("key", lambda rt: rt.pause_key("k")),
    ("runtime", lambda rt: rt.pause_all()),
]


@pytest.mark.parametrize(("holder", "pause"), PAUSES, ids=["run", "key", "runtime"])
async def test_a_pause_names_what_is_paused(
    holder: str, pause: Callable[[Runtime], Any], autojump_clock: object
) -> None:
    async with open_test_runtime(MemoryStore(), workflows=[working]) as rt:
        await rt.pause_key("k")
        await rt.submit(working, key="k", run_id="r")
        if holder != "key":
            await pause(rt)
            await rt.resume_key("k")
        await trio.sleep(1)
        found = await explained(rt)
        assert (found.cause, found.holder) == (Cause.PAUSED, holder)
        await rt.resume_all()
        await rt.resume_key("k")
        await rt.resume("r")
        await wait_all_tasks_blocked()
        assert (await explained(rt)).cause is Cause.RUNNING


async def test_a_delayed_run_names_its_time_and_holds_nothing(autojump_clock: object) -> None:
    async with open_test_runtime(MemoryStore(), workflows=[working]) as rt:
        await rt.submit(working, key="k", run_id="r", delay=30)
        found = await explained(rt)
        assert (found.cause, found.until) == (Cause.DELAYED, EPOCH + 30)
        assert (await rt.explain_key("k")).cause is Cause.IDLE


async def test_a_quarantined_run_names_the_cause_and_so_does_the_run_behind_it(
    autojump_clock: object,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[sleeping]) as rt:
        await rt.submit(sleeping, key="k", run_id="r")
    async with open_test_runtime(store, workflows=[working]) as rt:
        await rt.submit(working, key="k", run_id="behind")
        found, behind = await explained(rt), await explained(rt, "behind")
        assert await rt.explain_key("k") == found
    assert found.cause is Cause.QUARANTINED
    assert f"is quarantined ({QuarantineCause.UNREGISTERED})" in found.sentence
    assert (behind.cause, behind.holder) == (Cause.QUEUED, "r")
    assert "which is quarantined" in behind.sentence


async def test_an_ended_run_and_a_key_without_runs_say_so(autojump_clock: object) -> None:
    @workflow
    async def quick(ctx: Context) -> None: ...

    async with open_test_runtime(MemoryStore(), workflows=[quick]) as rt:
        run = await rt.submit(quick, key="k", run_id="r")
        await run.result()
        found = await explained(rt)
        assert (found.cause, found.sentence) == (
            Cause.ENDED,
            "Run r has succeeded at 2023-11-14 22:13:20 UTC.",
        )
        assert await rt.explain("unknown") is None
        assert (await rt.explain_key("k")).sentence == "Key k has no run that holds it."
        await rt.pause_key("k")
        paused = await rt.explain_key("k")
        assert (paused.cause, paused.holder) == (Cause.PAUSED, "key")


async def test_a_long_chain_of_runs_is_followed_a_few_steps_only(autojump_clock: object) -> None:
    @workflow
    async def nested(ctx: Context, depth: int) -> None:
        if depth < 5:
            await ctx.child(nested, depth + 1, key=f"key-{depth}")
        else:
            await ctx.wait_signal("go")

    async with open_test_runtime(MemoryStore(), workflows=[nested]) as rt:
        await rt.submit(nested, 0, key="k", run_id="r")
        await trio.sleep(5)
        found = await explained(rt)
    assert found.sentence.count("waits for its child") == 4
    assert "signal" not in found.sentence


@pytest.mark.parametrize("evict_after", [1.0, 1e9], ids=["evicted", "in memory"])
async def test_of_many_waits_only_those_that_the_sentence_names_are_read(
    evict_after: float, autojump_clock: object
) -> None:
    @workflow
    async def wide(ctx: Context, children: int) -> None:
        await ctx.gather(*(ctx.child(asking, key=f"child-{at}") for at in range(children)))

    read = []
    for children in (550, 1100):  # a status looks at 500 children, to name quarantined ones
        store = CountingStore()
        workflows: list[Workflow[Any, Any]] = [wide, asking]
        async with open_test_runtime(store, workflows=workflows, evict_after=evict_after) as rt:
            await rt.submit(wide, children, key="k", run_id="r")
            await trio.sleep(5)
            store.read = 0
            found = await explained(rt)
            read.append(store.read)
        assert found.cause is Cause.CHILD
        assert found.sentence.endswith(f", and {children - 3} more.")
        assert found.sentence.count("which waits for the signal 'go'") == 3
    assert read[1] < read[0] + 300, read


async def test_a_runtime_that_closes_names_the_drain(autojump_clock: object) -> None:
    seen: list[Explanation | None] = []

    @step(timeout=None, shield=True)
    async def stubborn() -> None:
        await trio.sleep(2)
        seen.append(await current_step().runtime.explain("next"))

    @workflow
    async def slow(ctx: Context) -> None:
        await ctx.step(stubborn)

    async with open_test_runtime(
        MemoryStore(), workflows=[slow], max_concurrent_steps=1, drain_timeout=0
    ) as rt:
        await rt.submit(slow, key="k", run_id="r")
        await wait_all_tasks_blocked()
        await rt.submit(slow, key="k2", run_id="next")
        await trio.sleep(1)
    (found,) = seen
    assert found is not None
    assert found.cause is Cause.DRAINING


async def test_a_reader_of_another_process_explains_what_the_store_has(tmp_path: Any) -> None:
    async with open_runtime(LmdbStore(tmp_path), workflows=[asking], evict_after=0) as rt:
        await rt.submit(asking, key="k", run_id="r")
        while (expected := await explained(rt)).cause is not Cause.SIGNAL or rt.statistics().live:
            await trio.sleep(0.01)
    async with open_reader(tmp_path) as reader:
        found = await reader.explain("r")
        assert found is not None
        assert found == expected
        assert await reader.explain_key("k") == found
        assert await reader.explain("unknown") is None


async def test_a_run_keeps_its_cause_while_it_leaves_memory() -> None:
    async with open_test_runtime(workflows=[asking], evict_after=0.1) as rt:
        await rt.submit(asking, key="k", run_id="r")
        await wait_all_tasks_blocked()
        before = await rt.explain("r")
        assert before is not None
        assert before.cause is Cause.SIGNAL
        await trio.sleep(0.1)
        said = set()
        for _ in range(200):
            said.add(await rt.explain("r"))
            await trio.lowlevel.checkpoint()
        assert not rt.statistics().live
        assert {(each.cause, each.holder) for each in said if each} == {(Cause.SIGNAL, "go")}
