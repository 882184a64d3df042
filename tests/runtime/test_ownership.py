"""Ownership: nothing that has effects begins while another process may own the store."""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Compensation,
    Context,
    Entity,
    Graph,
    Limits,
    NodeInput,
    Retry,
    RunOutcome,
    Runtime,
    State,
    Succeed,
    Turn,
    Workflow,
    current_step,
    entity,
    machine,
    step,
    workflow,
)
from keyrun.errors import OwnershipUncertain, StoreError, StoreLost
from keyrun.status import Cause
from keyrun.storage import LmdbStore, MemoryStore, Store
from keyrun.testing import open_test_runtime
from tests.leases import Database, LeasedStore

log: list[str] = []


@pytest.fixture(autouse=True)
def _empty() -> None:
    log.clear()


def noted(what: str) -> None:
    log.append(f"{what} at {trio.current_time():g}")


@step
async def quick(name: str = "quick") -> str:
    noted(name)
    return name


@step
async def slow(name: str = "slow") -> str:
    noted(name)
    await trio.sleep(10)
    return name


@step
def threaded() -> str:
    trio.from_thread.run_sync(noted, "thread")
    return "thread"


@step(asyncio=True)
async def on_asyncio() -> str:
    log.append("asyncio")
    return "asyncio"


@step(at_most_once=True)
async def careful() -> str:
    noted("careful")
    return "careful"


@step(max_concurrent=1)
async def guarded() -> str:
    noted("guarded")
    return "guarded"


STEPS: list[Any] = [quick, threaded, on_asyncio, careful, guarded]


@workflow
async def wait_and_step(ctx: Context, at: int) -> str:
    await ctx.sleep(1)
    return str(await ctx.step(STEPS[at]))


@workflow
async def one_step(ctx: Context) -> str:
    return await ctx.step(quick)


@workflow
async def two_branches(ctx: Context) -> list[str]:
    await ctx.step(slow)
    return list(await ctx.gather(ctx.step(quick, "a"), ctx.step(quick, "b")))


async def node(given: NodeInput) -> str:
    noted(f"node {given.run_input}")
    return "node"


async def slow_node(given: NodeInput) -> None:
    noted("slow")
    await trio.sleep(10)


graph = Graph("graph")
graph.node("first", slow_node)
graph.node("second", node)
graph.edge("first", "second")


@machine()
async def turning(turn: Turn) -> Succeed:
    noted("turn")
    return Succeed("turned")


@entity
class Account(Entity):
    async def deposit(self) -> int:
        noted("deposit")
        self.state["balance"] = self.state.get("balance", 0) + 1
        return int(self.state["balance"])


WORKFLOWS: list[Workflow[Any, Any]] = [wait_and_step, one_step, two_branches, graph, turning]


def leased(**options: Any) -> LeasedStore:
    return LeasedStore(Database(**options))


@asynccontextmanager
async def opened(store: Store, **options: Any) -> AsyncIterator[Runtime]:
    options = {"workflows": WORKFLOWS, "entities": [Account], **options}
    async with open_test_runtime(store, **options) as rt:
        yield rt


async def cause_of(rt: Runtime, run_id: str) -> Cause:
    """Return why a run does not move."""
    found = await rt.explain(run_id)
    assert found is not None
    return found.cause


@pytest.mark.parametrize("at", range(len(STEPS)))
async def test_no_kind_of_step_begins_before_the_store_is_trusted_again(
    autojump_clock: MockClock, at: int
) -> None:
    store = leased()
    async with opened(store) as rt:
        run = await rt.submit(wait_and_step, at, key="k")
        await trio.sleep(0.5)
        store.distrust()
        await trio.sleep(100)
        assert log == []
        assert await cause_of(rt, run.run_id) is Cause.OWNERSHIP
        store.trust()
        await run.result()
        assert len(log) == 1
        assert trio.current_time() < 102


async def test_a_fresh_run_is_held_and_begins_later(autojump_clock: MockClock) -> None:
    store = leased()
    async with opened(store) as rt:
        store.distrust()
        runs = [await rt.submit(one_step, key=f"k{at}") for at in range(300)]
        await trio.sleep(50)
        assert log == []
        store.trust()
        for run in runs:
            await run.result()
        assert len(log) == 300


async def test_a_running_step_ends_and_the_next_ones_are_held(autojump_clock: MockClock) -> None:
    store = leased()
    async with opened(store) as rt:
        run = await rt.submit(two_branches, key="k")
        await trio.sleep(5)
        store.distrust()
        await trio.sleep(45)
        assert log == ["slow at 0"]
        store.trust()
        assert await run.result() == ["a", "b"]
        assert sorted(log) == ["a at 50", "b at 50", "slow at 0"]


async def test_nodes_turns_and_entity_methods_are_held(autojump_clock: MockClock) -> None:
    store = leased()
    async with opened(store) as rt:
        nodes = await rt.submit(graph, 7, key="g")
        await trio.sleep(5)
        store.distrust()
        turns = await rt.submit(turning, key="t")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rt.entity(Account, "a").deposit)
            await trio.sleep(45)
            assert log == ["slow at 0"]
            store.trust()
        await nodes.result()
        assert await turns.result() == "turned"
    assert sorted(log[1:]) == ["deposit at 50", "node 7 at 50", "turn at 50"]


async def test_compensations_are_held(autojump_clock: MockClock) -> None:
    async def undo(given: Compensation) -> None:
        noted("undo")

    @step(compensate=undo)
    async def book() -> None:
        noted("book")

    @step(retry=Retry.none())
    async def fail() -> None:
        await trio.sleep(10)
        raise ValueError

    @workflow
    async def trip(ctx: Context) -> None:
        await ctx.step(book)
        await ctx.step(fail)

    store = leased()
    async with opened(store, workflows=[trip]) as rt:
        run = await rt.submit(trip, key="k")
        await trio.sleep(5)
        store.distrust()
        await trio.sleep(45)
        assert log == ["book at 0"]
        store.trust()
        await trio.sleep(1)
        assert log == ["book at 0", "undo at 50"]
        assert (await run.status()).state is State.FAILED


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_the_terminal_hook_is_held(autojump_clock: MockClock, kind: str) -> None:
    async def hook(outcome: RunOutcome) -> None:
        log.append("hook")

    def sync_hook(outcome: RunOutcome) -> None:
        log.append("hook")

    store = leased()
    async with opened(store, on_terminal=hook if kind == "async" else sync_hook) as rt:
        await rt.submit(two_branches, key="k", run_id="r")
        await trio.sleep(5)
        store.distrust()
        await rt.cancel("r")
        await trio.sleep(45)
        assert "hook" not in log
        store.trust()
        await trio.sleep(1)
        assert log.count("hook") == 1


async def test_what_is_held_uses_up_no_attempt_and_no_timeout(autojump_clock: MockClock) -> None:
    tries: list[int] = []

    @step(timeout=2, retry=Retry.fixed(max_attempts=2, delay=1, jitter=0))
    async def flaky() -> str:
        tries.append(current_step().attempt)
        await trio.sleep(1)
        if len(tries) == 1:
            raise ConnectionError
        return "done"

    @workflow(limits=Limits(retry_budget=1))
    async def job(ctx: Context) -> str:
        return await ctx.step(flaky)

    store = leased()
    async with opened(store, workflows=[job]) as rt:
        run = await rt.submit(job, key="k")
        await trio.sleep(1.5)
        for _ in range(5):
            store.distrust()
            await trio.sleep(100)
            store.trust()
            store.distrust()
        store.trust()
        assert await run.result() == "done"
        assert tries == [1, 2]


async def test_a_pause_and_a_drain_still_hold_when_the_store_is_trusted_again(
    autojump_clock: MockClock,
) -> None:
    store = leased()
    async with opened(store) as rt:
        await rt.pause_all()
        store.distrust()
        run = await rt.submit(one_step, key="k")
        await trio.sleep(1)
        store.trust()
        await trio.sleep(10)
        assert log == []
        store.distrust()
        await rt.resume_all()
        await trio.sleep(10)
        assert log == []
        store.trust()
        await run.result()
        store.distrust()
        await rt.submit(one_step, key="k", run_id="later")
    assert log == ["quick at 21"]
    async with opened(store) as rt:
        assert await rt.run("later").result() == "quick"


async def test_a_run_that_is_held_for_long_is_not_evicted_and_resumes(
    autojump_clock: MockClock,
) -> None:
    store = leased()
    async with opened(store, evict_after=0.1) as rt:
        waiting = await rt.submit(wait_and_step, 0, key="k")
        store.distrust()
        await trio.sleep(500)
        store.trust()
        assert await waiting.result() == "quick"


async def test_check_owner_raises_only_while_ownership_is_not_certain(
    autojump_clock: MockClock,
) -> None:
    found: list[str] = []

    def check() -> None:
        try:
            current_step().check_owner()
        except StoreLost as error:
            found.append(str(error))
        else:
            found.append(f"owner {current_step().epoch}")

    @step
    async def in_trio() -> None:
        check()
        store.distrust()
        check()
        store.trust()
        check()

    @step(asyncio=True)
    async def in_asyncio() -> None:
        check()
        store.distrust()
        check()
        store.trust_in_thread()
        check()

    @step
    def in_thread() -> None:
        assert threading.current_thread() is not threading.main_thread()
        check()
        store.distrust()
        check()
        store.trust_in_thread()
        check()

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(in_trio)
        await ctx.step(in_asyncio)
        await ctx.step(in_thread)

    store = leased()
    async with opened(store, workflows=[job]) as rt:
        await (await rt.submit(job, key="k")).result()
    assert found[0::3] == found[2::3] == ["owner 1"] * 3
    for said in found[1::3]:
        assert said.startswith("it is not certain that this process owns LeasedStore('store')")


@pytest.mark.parametrize("kind", ["async", "sync", "branch"])
async def test_an_attempt_that_check_owner_ends_does_not_count(
    autojump_clock: MockClock, kind: str
) -> None:
    attempts: list[int] = []

    def work() -> str:
        attempts.append(current_step().attempt)
        if len(attempts) < 4:
            store.distrust()
        current_step().check_owner()
        return "done"

    @step(retry=Retry.none(), name="work")
    async def in_loop() -> str:
        return work()

    @step(retry=Retry.none(), name="work")
    def in_thread() -> str:
        return work()

    @workflow
    async def job(ctx: Context) -> str:
        chosen = in_thread if kind == "sync" else in_loop
        if kind == "branch":
            return str((await ctx.gather(ctx.step(in_loop)))[0])
        return await ctx.step(chosen)

    store = leased()
    async with opened(store, workflows=[job]) as rt:
        run = await rt.submit(job, key="k")
        for _ in range(3):
            await trio.sleep(1)
            store.trust()
        assert await run.result() == "done"
    assert attempts == [1, 1, 1, 1]


async def test_an_error_that_a_step_makes_itself_counts(autojump_clock: MockClock) -> None:
    @step(retry=Retry.fixed(max_attempts=3, delay=1))
    async def work() -> None:
        attempts.append(current_step().attempt)
        raise OwnershipUncertain("not from check_owner")

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(work)

    attempts: list[int] = []
    async with opened(leased(), workflows=[job]) as rt:
        run = await rt.submit(job, key="k")
        await trio.sleep(10)
        assert (await run.status()).state is State.FAILED
    assert attempts == [1, 2, 3]


async def epoch_of(rt: Runtime) -> int:
    run = await rt.submit(tell_epoch, key="k")
    return await run.result()


@step
async def read_epoch() -> int:
    current_step().check_owner()
    return current_step().epoch


@workflow
async def tell_epoch(ctx: Context) -> int:
    return await ctx.step(read_epoch)


@pytest.mark.parametrize("name", ["memory", "lmdb", "leased"])
async def test_the_epoch_grows_with_every_open(
    autojump_clock: MockClock, name: str, tmp_path: Any
) -> None:
    stores: dict[str, Callable[[], Store]] = {
        "memory": MemoryStore,
        "lmdb": lambda: LmdbStore(tmp_path / "state"),
        "leased": leased,
    }
    store = stores[name]()
    epochs = []
    for _ in range(3):
        async with opened(store, workflows=[tell_epoch]) as rt:
            epochs.append(await epoch_of(rt))
            store.crash()
    assert epochs == [1, 2, 3]


async def test_the_epoch_of_the_store_counts_if_it_is_ahead(autojump_clock: MockClock) -> None:
    store = leased()
    store.database.epoch = 41
    async with opened(store, workflows=[tell_epoch]) as rt:
        assert await epoch_of(rt) == 42
    # The records came from a store with more owners than this database has had.
    store.database.epoch = 3
    async with opened(store, workflows=[tell_epoch]) as rt:
        assert await epoch_of(rt) == 43


async def lost_while(
    store: LeasedStore, begin: Callable[[Runtime], Awaitable[object]], **options: Any
) -> None:
    """Open a runtime, begin something, and lose the store 5 seconds later."""
    with pytest.raises(StoreLost):
        async with opened(store, **options) as rt:
            await begin(rt)
            await trio.sleep(5)
            store.lose()
            await trio.sleep(1000)
            raise AssertionError("the block of a lost store goes on")


async def test_a_lost_store_ends_the_block_and_nothing_of_it_is_recorded(
    autojump_clock: MockClock,
) -> None:
    @step
    async def work(name: str) -> str:
        noted(name)
        try:
            await trio.sleep(10)
        except trio.Cancelled:
            noted(f"{name} cancelled")
            raise
        return name

    @workflow
    async def job(ctx: Context) -> str:
        await ctx.gather(ctx.step(work, "a"), ctx.step(work, "b"))
        return await ctx.step(work, "c")

    store = leased()

    async def begin(rt: Runtime) -> None:
        await rt.submit(job, key="k", run_id="r")
        await rt.submit(job, key="k", run_id="behind")

    await lost_while(store, begin, workflows=[job])
    assert sorted(log) == ["a at 0", "a cancelled at 5", "b at 0", "b cancelled at 5"]
    before = len(store.database.commits)
    assert store.database.commits == [1] * before
    log.clear()
    async with opened(store, workflows=[job]) as rt:
        assert await rt.run("r").result() == "c"
        history = await rt.history("r")
        assert not [each for each in history if each.event in ("attempt_failed", "run_failed")]
        assert [each.event for each in history].count("interrupted") == 2
        assert await rt.run("behind").result() == "c"


async def test_the_threads_of_sync_steps_are_waited_for_and_their_outcomes_dropped(
    autojump_clock: MockClock,
) -> None:
    may_end = threading.Event()
    ended: list[str] = []

    @step
    def work() -> str:
        log.append("thread")
        may_end.wait(10)
        ended.append("thread")
        return "done"

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step(work)

    store = leased()

    async def begin(rt: Runtime) -> None:
        await rt.submit(job, key="k", run_id="r")
        while not log:
            await trio.sleep(0.001)

    with pytest.raises(StoreLost):
        async with opened(store, workflows=[job], threads="real") as rt:
            await begin(rt)
            store.lose()
            threading.Timer(0.1, may_end.set).start()
    assert ended == ["thread"]
    async with opened(store, workflows=[job]) as rt:
        assert await rt.run("r").result() == "done"
    assert log == ["thread", "thread"]


async def test_calls_that_wait_in_a_lost_store_raise_and_are_not_acknowledged(
    autojump_clock: MockClock,
) -> None:
    errors: list[BaseException] = []

    async def catching(call: Callable[[], Awaitable[object]]) -> None:
        try:
            await call()
        except Exception as error:
            errors.append(error)

    store = leased()
    async with trio.open_nursery() as nursery:
        with pytest.raises(StoreLost):
            async with opened(store) as rt:
                store.database.latency = 10
                nursery.start_soon(catching, lambda: rt.submit(one_step, key="k", run_id="r"))
                nursery.start_soon(catching, rt.entity(Account, "a").deposit)
                await trio.sleep(1)
                store.lose()
                await trio.sleep(1)
    assert [type(each) for each in errors] == [StoreLost] * 2
    store.database.latency = 0
    async with opened(store) as rt:
        assert await rt.status("r") is None


async def test_a_thread_that_was_waited_for_after_the_gate_does_not_begin_untrusted(
    autojump_clock: MockClock,
) -> None:
    may_end = threading.Event()

    @step(timeout=1, abandon=True, retry=Retry.none())
    def stuck() -> None:
        may_end.wait(10)

    @workflow
    async def keep_the_thread(ctx: Context) -> None:
        await ctx.step(stuck)

    @workflow
    async def work_in_thread(ctx: Context) -> str:
        # Virtual time jumps while the thread works.
        return await ctx.step(threaded.options(timeout=inf))

    store = leased()
    workflows = [keep_the_thread, work_in_thread]
    # The abandoned call keeps the only thread, but not its slot.
    async with opened(store, workflows=workflows, max_concurrent_steps=1, threads="real") as rt:
        await rt.submit(keep_the_thread, key="a")
        await trio.sleep(2)
        run = await rt.submit(work_in_thread, key="b")
        await trio.sleep(1)
        assert (await run.status()).step == "threaded"
        store.distrust()
        may_end.set()
        while await cause_of(rt, run.run_id) is not Cause.OWNERSHIP:
            await trio.sleep(0.01)
        await trio.sleep(50)
        assert log == []
        store.trust()
        assert await run.result() == "thread"


async def test_a_drain_ends_although_the_database_does_not_answer(
    autojump_clock: MockClock,
) -> None:
    store = leased(ttl=10)
    with pytest.raises(StoreError, match="made nothing durable"):
        async with opened(store, drain_timeout=3) as rt:
            run = await rt.submit(two_branches, key="k", run_id="r")
            await trio.sleep(5)
            store.cut()
            await trio.sleep(20)
            begun = trio.current_time()
    assert trio.current_time() - begun < 3 + 5 + 2
    store.mend()
    async with opened(store) as rt:
        assert await rt.run(run.run_id).result() == ["a", "b"]


async def test_a_drain_ends_when_the_store_is_lost_meanwhile(autojump_clock: MockClock) -> None:
    store = leased()
    async with trio.open_nursery() as nursery:
        with pytest.raises(StoreLost):
            async with opened(store) as rt:
                await rt.submit(two_branches, key="k", run_id="r")
                await trio.sleep(5)
                nursery.start_soon(_lose_after, store, 2)
    async with opened(store) as rt:
        assert await rt.run("r").result() == ["a", "b"]


async def _lose_after(store: LeasedStore, seconds: float) -> None:
    await trio.sleep(seconds)
    store.lose()
