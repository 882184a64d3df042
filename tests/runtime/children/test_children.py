"""Children: workflows that a workflow starts and waits for."""

from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from math import inf
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    ChildCancelled,
    ChildFailed,
    Context,
    Continue,
    Failure,
    FailureKind,
    Limits,
    PermanentError,
    RunFailed,
    Runtime,
    State,
    StepFailed,
    Succeed,
    Turn,
    UnknownWorkflow,
    Workflow,
    machine,
    step,
    workflow,
)
from keyrun.errors import TooDeep
from keyrun.runtime.tuning import Tuning
from keyrun.storage import StoreError
from keyrun.testing import RecordingHook, crash_points, open_test_runtime, replay
from tests.runtime.fragile import FragileStore

PATIENCE = pytest.mark.parametrize("patience", [0.5, inf])
KEYS = pytest.mark.parametrize("key", [None, "other"])

ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@step
async def note(what: str) -> str:
    ran.append(what)
    return what


@step
async def refuse(what: str) -> str:
    raise PermanentError(f"no {what}")


@workflow
async def leaf(ctx: Context, what: str) -> str:
    await ctx.step(note, f"{what} begins")
    await ctx.sleep(10)
    if what.startswith("bad"):
        await ctx.step(refuse, what)
    if what.startswith("wrong"):
        ctx.fail("it is wrong")
    if what.startswith("off"):
        ctx.cancel("called off")
    if what.startswith("raises"):
        raise LookupError("where is it")
    if what.startswith("waits"):
        await ctx.wait_signal("in vain", timeout=5)
    return await ctx.step(note, f"{what} ends")


Asked = tuple[str, str | None]


@workflow
async def parent(ctx: Context, asked: Asked) -> str:
    what, key = asked
    await ctx.step(note, "before")
    answer = await ctx.child(leaf, what, key=key)
    return await ctx.step(note, f"got {answer}")


@KEYS
@PATIENCE
async def test_a_child_gives_its_result(
    autojump_clock: MockClock, key: str | None, patience: float
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[parent, leaf], evict_after=patience) as rt:
        run = await rt.submit(parent, ("leaf", key), key="k", run_id="r", headers={"a": "b"})
        assert await run.result() == "got leaf ends"
        await trio.sleep(1)
        runs = await rt.runs()
        assert len(runs) == (1 if key is None else 2)
        if key is not None:
            child = runs[1]
            assert (child.key, child.origin, child.headers) == ("other", "child:r", {"a": "b"})
    assert ran == ["before", "leaf begins", "leaf ends", "got leaf ends"]
    for table in ("queue", "timers", "signals", "children"):
        assert store.keys(table) == [], table


@KEYS
async def test_a_child_that_fails_is_told_with_the_chain_of_causes(
    autojump_clock: MockClock, key: str | None
) -> None:
    hook = RecordingHook()
    async with open_test_runtime(workflows=[parent, leaf], on_terminal=hook) as rt:
        run = await rt.submit(parent, ("bad", key), key="k", run_id="r")
        with pytest.raises(RunFailed) as failed:
            await run.result()
        failure = failed.value.failure
        assert failure.kind is FailureKind.CHILD_FAILED
        assert "no bad" in failure.reason
        assert failure.cause is not None
        assert failure.cause.kind is FailureKind.PERMANENT_ERROR
        assert "r" in [each.run_id for each in await rt.dead_letters()]
    assert len(hook.of("r")) == 1


@KEYS
@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        ("wrong", ChildFailed, "it is wrong"),
        ("off", ChildCancelled, "called off"),
        ("bad", ChildFailed, "no bad"),
        ("raises", ChildFailed, "LookupError: where is it"),
        ("waits", ChildFailed, "no signal 'in vain' arrived"),
    ],
)
async def test_a_parent_can_handle_what_its_child_came_to(
    autojump_clock: MockClock, key: str | None, what: str, error: type[Exception], said: str
) -> None:
    @workflow
    async def handles(ctx: Context) -> str:
        try:
            await ctx.child(leaf, what, key=key)
        except error as caught:
            return await ctx.step(note, f"{type(caught).__name__}: {caught}")
        raise AssertionError

    for point in crash_points(every=2):

        async def scenario(rt: Runtime) -> str:
            return await (await rt.submit(handles, key="k", run_id="r")).result()

        told = await point.run(scenario, workflows=[handles, leaf])
        assert told.startswith(error.__name__)
        assert said in told


@KEYS
async def test_crash_at_every_commit_of_a_parent_with_two_children(
    autojump_clock: MockClock, key: str | None
) -> None:
    @workflow
    async def family(ctx: Context) -> list[str]:
        other = None if key is None else f"{key}-2"
        both = await ctx.gather(ctx.child(leaf, "a", key=key), ctx.child(leaf, "b", key=other))
        return [await ctx.step(note, "after"), *both]

    async def scenario(rt: Runtime) -> list[str]:
        return await (await rt.submit(family, key="k", run_id="r")).result()

    for point in crash_points():
        ran.clear()
        expected = ["after", "a ends", "b ends"]
        assert await point.run(scenario, workflows=[family, leaf]) == expected, point
        for what in ("a ends", "b ends", "after"):
            # Once, or twice where the crash came before its outcome was durable.
            assert 1 <= ran.count(what) <= 2


async def test_children_of_other_keys_run_at_the_same_time_and_in_their_order(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def fan(ctx: Context) -> float:
        await ctx.gather(*[ctx.child(leaf, f"{n}", key=f"k{n % 5}") for n in range(10)])
        return trio.current_time()

    async with open_test_runtime(workflows=[fan, leaf]) as rt:
        run = await rt.submit(fan, key="k", run_id="r")
        assert await run.result() == pytest.approx(20, abs=1)


@PATIENCE
async def test_the_cancel_of_a_parent_cancels_its_children(
    autojump_clock: MockClock, patience: float
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[parent, leaf], evict_after=patience) as rt:
        run = await rt.submit(parent, ("leaf", "other"), key="k", run_id="r")
        await trio.sleep(5)
        assert await run.cancel()
        await trio.sleep(1)
        assert {each.state for each in await rt.runs()} == {State.CANCELLED}
    assert ran == ["before", "leaf begins"]
    for table in ("queue", "timers", "signals", "children"):
        assert store.keys(table) == [], table


async def test_a_child_that_is_left_alone_is_cancelled_also_after_a_crash(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def impatient(ctx: Context) -> str:
        with ctx.move_on_after(5):
            await ctx.child(leaf, "leaf", key="other")
        await ctx.sleep(100)
        return "done"

    async def scenario(rt: Runtime) -> list[State]:
        run = await rt.submit(impatient, key="k", run_id="r")
        assert await run.result() == "done"
        return [each.state for each in await rt.runs() if each.run_id != "r"]

    for point in crash_points():
        ran.clear()
        assert await point.run(scenario, workflows=[impatient, leaf]) == [State.CANCELLED], point
        assert "leaf ends" not in ran


async def test_a_child_can_be_cancelled_by_itself(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[parent, leaf]) as rt:
        run = await rt.submit(parent, ("leaf", "other"), key="k", run_id="r")
        await trio.sleep(5)
        (child,) = await rt.runs(key="other")
        assert await rt.cancel(child.run_id)
        with pytest.raises(RunFailed, match="was cancelled"):
            await run.result()


async def test_waits_that_go_round_in_a_circle_fail_the_youngest_and_name_the_circle(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def circular(ctx: Context, keys: list[str]) -> str:
        if not keys:
            return "the end"
        await ctx.sleep(1)
        return f"{ctx.key} then {await ctx.child(circular, keys[1:], key=keys[0])}"

    async with open_test_runtime(workflows=[circular]) as rt:
        run = await rt.submit(circular, ["b", "c"], key="a")
        assert await run.result() == "a then b then the end"
        run = await rt.submit(circular, ["b", "c", "a"], key="a")
        with pytest.raises(RunFailed, match="would wait forever: c -> a -> b -> c"):
            await run.result()
        # Nobody is stuck.
        assert await (await rt.submit(circular, [], key="a")).result() == "the end"
        assert rt.statistics().backlog.pending == 0


async def test_a_parent_that_was_killed_as_its_child_began_receives_the_end_of_the_child(
    autojump_clock: MockClock,
) -> None:
    store, tuning = FragileStore(), Tuning(gate_slack=0)

    @step
    async def block() -> None:
        await trio.sleep(10)

    @workflow
    async def blocking(ctx: Context) -> None:
        await ctx.step(block)

    @workflow
    async def waiting(ctx: Context) -> str:
        return await ctx.child(short, key="a")

    @workflow
    async def short(ctx: Context) -> str:
        return await ctx.step(note, "done")

    workflows: list[Workflow[Any, Any]] = [blocking, waiting, short]

    def opened() -> AbstractAsyncContextManager[Runtime]:
        return open_test_runtime(store, workflows=workflows, max_concurrent_steps=1, tuning=tuning)

    with suppress(BaseExceptionGroup, StoreError):
        async with opened() as rt, trio.open_nursery() as nursery:
            # The second commit has the child. The third would have the status of the parent.
            store.crash_at = store.commits + 3
            for key in ("b", "c", "d"):
                nursery.start_soon(partial(rt.submit, blocking, key=key))
            nursery.start_soon(partial(rt.submit, waiting, key="k", run_id="r"))
            await trio.sleep(5)
    store.crash_at = None
    # The keys get the only slot in their order, so the child ends before its parent is loaded.
    async with opened() as rt:
        with trio.fail_after(1000):
            assert await rt.run("r").result() == "done"


async def test_a_circle_is_found_also_if_a_crash_cut_off_who_looked_for_it(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def circular(ctx: Context, keys: list[str]) -> str:
        return await ctx.child(circular, keys[1:], key=keys[0]) if keys else "the end"

    async def scenario(rt: Runtime) -> str:
        run = await rt.submit(circular, ["b", "a"], key="a", run_id="r")
        with trio.fail_after(1000), pytest.raises(RunFailed) as caught:
            await run.result()
        assert rt.statistics().backlog.pending == 0
        return str(caught.value)

    for point in crash_points():
        told = await point.run(scenario, workflows=[circular])
        assert "would wait forever: b -> a -> b" in told, point


async def test_two_that_ask_each_other_at_the_same_time_do_not_both_fail(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def quick(ctx: Context) -> str:
        return "quick"

    @workflow
    async def crossing(ctx: Context, other: str) -> str:
        try:
            return await ctx.child(quick, key=other)
        except ChildFailed:
            return "refused"

    async with open_test_runtime(workflows=[crossing, quick]) as rt:
        async with trio.open_nursery() as nursery:
            told: list[str] = []

            async def ask(key: str, other: str) -> None:
                told.append(await (await rt.submit(crossing, other, key=key)).result())

            nursery.start_soon(ask, "a", "b")
            nursery.start_soon(ask, "b", "a")
        assert sorted(told) == ["quick", "refused"]


async def test_a_parent_that_yields_is_in_no_circle(autojump_clock: MockClock) -> None:
    @workflow(while_waiting="yield")
    async def polite(ctx: Context, keys: list[str]) -> str:
        return await ctx.child(polite, keys[1:], key=keys[0]) if keys else "the end"

    async with open_test_runtime(workflows=[polite]) as rt:
        run = await rt.submit(polite, ["b", "a", "b"], key="a")
        assert await run.result() == "the end"


@KEYS
async def test_children_are_at_most_five_deep(autojump_clock: MockClock, key: str | None) -> None:
    @workflow
    async def deeper(ctx: Context, depth: int) -> int:
        try:
            other = None if key is None else f"k{depth}"
            return await ctx.child(deeper, depth + 1, key=other)
        except TooDeep:
            return depth

    async with open_test_runtime(workflows=[deeper]) as rt:
        assert await (await rt.submit(deeper, 0, key="k")).result() == 5


async def test_a_child_inside_has_names_of_its_own(autojump_clock: MockClock) -> None:
    @workflow
    async def twice(ctx: Context) -> list[str]:
        first = await ctx.child(leaf, "a")
        second = await ctx.child(leaf, "b")
        return [first, await ctx.step(note, "between"), second]

    async with open_test_runtime(workflows=[twice, leaf]) as rt:
        run = await rt.submit(twice, key="k", run_id="r")
        assert await run.result() == ["a ends", "between", "b ends"]
        steps = [each.step for each in await rt.history("r") if each.event == "step_completed"]
        assert steps == ["child/note", "child/note#2", "child2/note", "child2/note#2", "note"]


async def test_a_machine_is_a_child_under_another_key_only(autojump_clock: MockClock) -> None:
    @machine(name="counter")
    async def counter(turn: Turn) -> Any:
        return Succeed(turn.number) if turn.number == 3 else Continue(after=5)

    @workflow
    async def asks(ctx: Context) -> list[Any]:
        try:
            await ctx.child(counter)
        except TypeError as error:
            return [str(error), await ctx.child(counter, key="other")]
        raise AssertionError

    async with open_test_runtime(workflows=[asks, counter]) as rt:
        said, result = await (await rt.submit(asks, key="k")).result()
        assert "give it a key of its own" in said
        assert result == 3


async def test_a_child_that_nobody_registered_is_an_error_of_the_parent(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[parent]) as rt:
        run = await rt.submit(parent, ("leaf", "other"), key="k")
        with pytest.raises(RunFailed, match=UnknownWorkflow.__name__):
            await run.result()


async def test_a_redrive_of_a_parent_starts_the_child_that_failed_again(
    autojump_clock: MockClock,
) -> None:
    broken = True

    @step
    async def sometimes() -> str:
        if broken:
            raise PermanentError("broken")
        return "mended"

    @workflow
    async def child(ctx: Context) -> str:
        return await ctx.step(sometimes)

    @workflow
    async def above(ctx: Context) -> str:
        await ctx.step(note, "once")
        return await ctx.child(child, key="other")

    async with open_test_runtime(workflows=[above, child]) as rt:
        run = await rt.submit(above, key="k", run_id="r")
        with pytest.raises(RunFailed, match="broken"):
            await run.result()
        broken = False
        await rt.redrive("r")
        assert await run.result() == "mended"
    assert ran == ["once"]


@KEYS
async def test_the_failure_of_a_child_of_a_child_has_a_cause_for_each(
    autojump_clock: MockClock, key: str | None
) -> None:
    @workflow
    async def between(ctx: Context) -> str:
        return await ctx.child(leaf, "raises", key=key and f"{key}-2")

    @workflow
    async def above(ctx: Context) -> str:
        return await ctx.child(between, key=key)

    async with open_test_runtime(workflows=[above, between, leaf]) as rt:
        with pytest.raises(RunFailed) as failed:
            await (await rt.submit(above, key="k")).result()
    kinds = []
    failure: Failure | None = failed.value.failure
    while failure is not None:
        kinds.append(failure.kind)
        failure = failure.cause
    child = FailureKind.CHILD_FAILED
    assert kinds == [child, child, FailureKind.WORKFLOW_ERROR]


@KEYS
async def test_a_child_that_takes_longer_than_it_may_is_told_as_such(
    autojump_clock: MockClock, key: str | None
) -> None:
    @workflow(limits=Limits(run_timeout=5))
    async def slow(ctx: Context) -> None:
        await ctx.sleep(100)

    @workflow
    async def handles(ctx: Context) -> FailureKind:
        try:
            await ctx.child(slow, key=key)
        except ChildFailed as error:
            if (cause := error.failure.cause) is not None:
                return cause.kind
        raise AssertionError

    async with open_test_runtime(workflows=[handles, slow]) as rt:
        run = await rt.submit(handles, key="k")
        assert await run.result() == FailureKind.RUN_TIMEOUT
        assert trio.current_time() == pytest.approx(5, abs=0.1)


async def test_what_a_child_inside_lets_out_of_a_step_is_no_step_of_the_parent(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def handles(ctx: Context) -> str:
        try:
            await ctx.child(leaf, "bad")
        except StepFailed:
            return "as a step"
        except ChildFailed as error:
            cause = error.failure.cause
            return f"as a child, of {cause and cause.step}"
        raise AssertionError

    async with open_test_runtime(workflows=[handles, leaf]) as rt:
        told = await (await rt.submit(handles, key="k")).result()
        assert told == "as a child, of child/refuse"


async def test_only_workflows_are_children() -> None:
    @workflow
    async def odd(ctx: Context) -> str:
        try:
            await ctx.child(note, "x")  # type: ignore[call-overload]
        except TypeError as error:
            return str(error)
        raise AssertionError

    async with open_test_runtime(workflows=[odd]) as rt:
        assert "takes a workflow" in await (await rt.submit(odd, key="k")).result()


async def test_a_run_that_goes_on_with_an_empty_journal_leaves_no_child_behind(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def restless(ctx: Context, turn: int) -> int:
        if turn:
            return turn

        async def wait(ctx: Context) -> None:
            await ctx.child(leaf, "leaf", key="other")

        async def go_on(ctx: Context) -> None:
            await ctx.sleep(3)
            ctx.continue_as(1)

        await ctx.gather(wait, go_on)
        raise AssertionError

    async with open_test_runtime(workflows=[restless, leaf]) as rt:
        assert await (await rt.submit(restless, 0, key="k", run_id="r")).result() == 1
        await trio.sleep(1)
        (child,) = await rt.runs(key="other")
        assert child.state is State.CANCELLED


async def test_a_child_inside_cannot_go_on_with_an_empty_journal(autojump_clock: MockClock) -> None:
    @workflow
    async def inner(ctx: Context) -> None:
        ctx.continue_as(None)

    @workflow
    async def outer(ctx: Context) -> str:
        try:
            await ctx.child(inner)
        except RuntimeError as error:
            return str(error)
        raise AssertionError

    async with open_test_runtime(workflows=[outer, inner]) as rt:
        assert "give it a key: ctx.child" in await (await rt.submit(outer, key="k")).result()


@workflow
async def endless(ctx: Context) -> None:
    await ctx.wait_signal("never")


@workflow
async def impatient(ctx: Context, round_: int) -> None:
    with ctx.move_on_after(1):
        await ctx.child(endless, key="other")
    await ctx.sleep(5)
    if round_ < 10:
        ctx.continue_as(round_ + 1)
    await ctx.wait_signal("never")


@pytest.mark.parametrize("patience", [0, 0.1, 1, inf])
async def test_children_that_are_left_alone_leave_nothing_behind(
    autojump_clock: MockClock, patience: float
) -> None:
    store = FragileStore()
    workflows: list[Any] = [impatient, endless]
    async with open_test_runtime(store, workflows=workflows, evict_after=patience) as rt:
        await rt.submit(impatient, 0, key="k", run_id="p")
        await trio.sleep(200)
        ended = await rt.runs(key="other")
        assert [child.state for child in ended] == [State.CANCELLED] * 11
        assert (store.keys("children"), store.keys("signals")) == ([], [])


@workflow
async def waiting_for_both(ctx: Context) -> None:
    async def signalled(ctx: Context) -> None:
        await ctx.wait_signal("never")

    await ctx.gather(ctx.child(leaf, "child", key="other"), signalled)


async def test_a_child_that_has_ended_before_its_paused_parent_is_cancelled_leaves_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[waiting_for_both, leaf]) as rt:
        await rt.submit(waiting_for_both, key="k", run_id="p")
        await trio.sleep(0.5)
        await rt.pause("p")
        await trio.sleep(20)
        assert (await rt.runs(key="other"))[0].state is State.SUCCEEDED
        await rt.cancel("p")
        await trio.sleep(1)
        assert (store.keys("children"), store.keys("signals")) == ([], [])


@workflow
async def forgiving(ctx: Context, what: str) -> str:
    try:
        return await ctx.child(leaf, what, key="other")
    except ChildFailed:
        await ctx.wait_signal("never")
    except ChildCancelled as error:
        return str(error.reason)
    return "told"


async def test_the_end_of_a_child_that_was_redriven_is_told_to_nobody(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[forgiving, leaf]) as rt:
        await rt.submit(forgiving, "bad child", key="k", run_id="p")
        await trio.sleep(20)
        (child,) = await rt.runs(key="other")
        await rt.redrive(child.run_id)
        await trio.sleep(20)
        status = await rt.status(child.run_id)
        assert status is not None
        assert (status.state, status.generation) == (State.FAILED, 2)
        assert (store.keys("children"), store.keys("signals")) == ([], [])


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_parent_is_told_that_its_quarantined_child_was_forgotten(
    autojump_clock: MockClock, damaged: bool
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[forgiving, leaf]) as rt:
        await rt.submit(forgiving, "child", key="k", run_id="p")
        await trio.sleep(5)
        (child,) = await rt.runs(key="other")
    if damaged:
        store.damage("runs", store.keys("runs")[1])
    left: list[Any] = [forgiving, leaf] if damaged else [forgiving]
    async with open_test_runtime(store, workflows=left) as rt:
        await trio.sleep(20)
        status = await rt.status(child.run_id)
        assert status is not None
        assert status.state is State.QUARANTINED
        await rt.forget(child.run_id)
        run = await rt.submit(forgiving, "child", key="k", run_id="p")
        with trio.fail_after(100):
            assert await run.result() == "it was forgotten"
        assert (store.keys("children"), store.keys("signals")) == ([], [])
        assert rt.statistics().backlog.pending == 0


async def test_the_children_of_a_quarantined_run_that_is_forgotten_are_cancelled(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[forgiving, leaf]) as rt:
        await rt.submit(forgiving, "child", key="k", run_id="p")
        await trio.sleep(0.5)
    async with open_test_runtime(store, workflows=[leaf]) as rt:
        await trio.sleep(0.5)
        await rt.forget("p")
        await trio.sleep(0.5)
        (child,) = await rt.runs(key="other")
        assert child.state is State.CANCELLED
        assert (store.keys("children"), store.keys("signals")) == ([], [])


@workflow(while_waiting="yield")
async def polite_parent(ctx: Context) -> str:
    return await ctx.child(leaf, "polite", key="b")


@workflow
async def rude_parent(ctx: Context) -> str:
    await ctx.sleep(5)
    return await ctx.child(leaf, "rude", key="a")


@pytest.mark.parametrize("patience", [0, 0.1, 1, inf])
async def test_who_yields_closes_no_circle(autojump_clock: MockClock, patience: float) -> None:
    workflows: list[Any] = [leaf, polite_parent, rude_parent]
    async with open_test_runtime(workflows=workflows, evict_after=patience) as rt:
        rude = await rt.submit(rude_parent, key="b")
        polite = await rt.submit(polite_parent, key="a")
        assert [await rude.result(), await polite.result()] == ["rude ends", "polite ends"]


@workflow(while_waiting="yield")
async def polite_between(ctx: Context) -> str:
    try:
        return await ctx.child(leaf, "third", key="a")
    except ChildFailed as error:
        return str(error)


@workflow
async def first_of_three(ctx: Context) -> str:
    return await ctx.child(polite_between, key="b")


@PATIENCE
async def test_a_circle_closes_through_who_yields_its_key_and_is_waited_for(
    autojump_clock: MockClock, patience: float
) -> None:
    workflows: list[Any] = [leaf, polite_between, first_of_three]
    async with open_test_runtime(workflows=workflows, evict_after=patience) as rt:
        run = await rt.submit(first_of_three, key="a")
        with trio.fail_after(1000):
            assert "b -> a -> b" in await run.result()


@step
async def put_back(why: Any) -> None:
    ran.append("undone")


@step(compensate=put_back)
async def put() -> None:
    ran.append("done")


@workflow
async def undoable(ctx: Context, key: str | None) -> str:
    said = await ctx.child(leaf, "child", key=key)
    await ctx.step(put)
    await ctx.sleep(1000)
    return said


@KEYS
async def test_a_run_that_had_a_child_is_undone_also_by_another_process(
    autojump_clock: MockClock, key: str | None
) -> None:
    """Its code is rehearsed for that, up to where it was."""
    store = FragileStore()
    async with open_test_runtime(store, workflows=[undoable, leaf]) as rt:
        await rt.submit(undoable, key, key="k", run_id="r")
        await trio.sleep(60)
        assert ran[-1] == "done"
    async with open_test_runtime(store, workflows=[undoable, leaf]) as rt:
        await rt.cancel("r")
        await trio.sleep(60)
        status = await rt.status("r")
        assert status is not None
        assert (status.state, ran[-2:]) == (State.CANCELLED, ["done", "undone"])


@KEYS
async def test_a_run_with_a_child_is_replayed_against_its_history(
    autojump_clock: MockClock, key: str | None
) -> None:
    async with open_test_runtime(workflows=[undoable, leaf]) as rt:
        await rt.submit(undoable, key, key="k", run_id="r")
        await trio.sleep(60)
        done = await replay(await rt.history("r"), undoable)
    assert done.asks == ("timer",)
