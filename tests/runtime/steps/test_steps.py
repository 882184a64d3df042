"""Steps: what a workflow gets from them, and what they know about themselves."""

import asyncio
import gc
import threading
from math import inf
from typing import Any
from uuid import UUID
from weakref import WeakSet

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    FailureKind,
    PermanentError,
    Retry,
    RunCancelled,
    RunFailed,
    State,
    StepFailed,
    current_step,
    step,
    workflow,
)
from keyrun.errors import WrongTask
from keyrun.storage import MemoryStore
from keyrun.testing import EPOCH, RecordingHook, open_test_runtime


@step
async def double(number: int) -> int:
    return 2 * number


async def test_a_run_of_one_step_ends_with_its_hook(autojump_clock: MockClock) -> None:
    @workflow
    async def one(ctx: Context, number: int) -> int:
        return await ctx.step(double, number)

    hook = RecordingHook()
    async with open_test_runtime(workflows=[one], on_terminal=hook) as runtime:
        run = await runtime.submit(one, 21, key="k", run_id="r")
        assert await run.result() == 42
    (outcome,) = hook.outcomes
    assert (outcome.run_id, outcome.key, outcome.workflow) == ("r", "k", "one")
    assert (outcome.state, outcome.result, outcome.steps_done) == (State.SUCCEEDED, 42, 1)
    assert (outcome.failure, outcome.reason, outcome.generation) == (None, None, 1)


async def test_steps_run_one_after_the_other_and_are_numbered(autojump_clock: MockClock) -> None:
    names: list[str] = []

    @step
    async def note() -> None:
        names.append(current_step().step)

    @workflow
    async def several(ctx: Context) -> int:
        await ctx.step(note)
        number = 1
        for _ in range(3):
            number = await ctx.step(double, number)
            await ctx.step(note)
        return number

    async with open_test_runtime(workflows=[several]) as runtime:
        run = await runtime.submit(several, key="k")
        assert await run.result() == 8
        status = await run.status()
        assert status is not None
        assert status.steps_done == 7
    assert names == ["note", "note#2", "note#3", "note#4"]


async def test_a_plain_async_function_is_a_step(autojump_clock: MockClock) -> None:
    async def triple(number: int, *, plus: int = 0) -> int:
        await trio.sleep(1)
        return 3 * number + plus

    @workflow
    async def plain(ctx: Context) -> int:
        return await ctx.step(triple, 2, plus=1)

    async with open_test_runtime(workflows=[plain]) as runtime:
        assert await (await runtime.submit(plain, key="k")).result() == 7


async def test_options_change_a_step_and_leave_the_original(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    @step(retry=Retry.none())
    async def base() -> None:
        seen.append(current_step().step)
        raise ValueError("no")

    @workflow
    async def optional(ctx: Context) -> None:
        renamed = base.options(name="renamed", retry=Retry.fixed(max_attempts=2, delay=1))
        for each in (renamed, base):
            try:
                await ctx.step(each)
            except StepFailed:
                continue

    async with open_test_runtime(workflows=[optional]) as runtime:
        await (await runtime.submit(optional, key="k")).result()
    assert seen == ["renamed", "renamed", "base"]
    assert base.set.name == "base"


@pytest.mark.parametrize("name", ["", "a/b", "a#2", "now()", "x" * 201, "é" * 101, 7])
def test_a_name_that_could_be_mistaken_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="name must be 1 to 200 bytes without"):
        double.options(name=name)


def test_what_cannot_be_a_step_is_refused() -> None:
    with pytest.raises(TypeError, match="is a step already"):
        step(double)
    with pytest.raises(TypeError, match="@step requires a function, got 7"):
        step(7)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="asyncio=True requires an async function"):
        step(asyncio=True)(len)
    with pytest.raises(TypeError, match="abandon=True requires a sync function"):
        step(abandon=True)(test_a_plain_async_function_is_a_step)
    with pytest.raises(TypeError, match="retry must be a Retry, got 3"):
        double.options(retry=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout must be positive, got 0"):
        double.options(timeout=0)


async def test_functions_that_are_made_in_each_run_are_not_kept(autojump_clock: MockClock) -> None:
    class Client:
        async def call(self) -> str:
            return "called"

    clients: WeakSet[Client] = WeakSet()

    @workflow
    async def job(ctx: Context) -> str:
        client = Client()
        clients.add(client)
        return await ctx.step(client.call)

    async with open_test_runtime(workflows=[job]) as rt:
        for _ in range(1100):
            assert await (await rt.submit(job, key="k")).result() == "called"
    gc.collect()
    assert len(clients) <= 1024


@pytest.mark.parametrize("count", [0, 3])
def test_a_workflow_with_other_arguments_than_context_and_input_is_refused(count: int) -> None:
    async def none() -> None: ...
    async def three(ctx: Context, order: int, amount: int) -> None: ...

    with pytest.raises(TypeError, match="put several values into a dict"):
        workflow({0: none, 3: three}[count])  # type: ignore[call-overload]


async def test_a_step_called_directly_is_the_plain_function() -> None:
    assert await double(4) == 8


async def test_a_sync_step_runs_in_a_thread_with_its_context() -> None:
    here = threading.get_ident()
    told: list[Any] = []

    @step
    def blocking(number: int) -> int:
        told.extend([threading.get_ident() != here, current_step().step, current_step().key])
        current_step().state["n"] = number
        return number + 1

    @step
    async def look() -> Any:
        return current_step().state["n"]

    @workflow
    async def sync(ctx: Context) -> Any:
        return await ctx.step(blocking, 1), await ctx.step(look)

    async with open_test_runtime(workflows=[sync]) as runtime:
        assert await (await runtime.submit(sync, key="k")).result() == (2, 1)
    assert told == [True, "blocking", "k"]


async def test_a_sync_step_that_raises_fails_like_any_other() -> None:
    @step(retry=Retry.fixed(max_attempts=2, delay=0))
    def broken() -> None:
        memo = current_step().memo
        memo["tries"] = memo.get("tries", 0) + 1
        raise KeyError(memo["tries"])

    @workflow
    async def sync(ctx: Context) -> None:
        await ctx.step(broken)

    async with open_test_runtime(workflows=[sync]) as runtime:
        with pytest.raises(RunFailed, match=r"attempt 2 of 2.*KeyError: 2"):
            await (await runtime.submit(sync, key="k")).result()


async def test_coroutines_of_asyncio_libraries_share_a_loop() -> None:
    loops = []

    @step(asyncio=True)
    async def foreign(number: int) -> int:
        loops.append(asyncio.get_running_loop())
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, number)
        await asyncio.sleep(0)
        current_step().state[str(number)] = current_step().step
        return int(await future)

    @workflow
    async def mixed(ctx: Context) -> int:
        return await ctx.step(foreign, 1) + await ctx.step(foreign, 2)

    async with open_test_runtime(workflows=[mixed]) as runtime:
        assert await (await runtime.submit(mixed, key="a")).result() == 3
        assert await (await runtime.submit(mixed, key="b")).result() == 3
    assert len({id(loop) for loop in loops}) == 1


async def test_errors_and_timeouts_of_asyncio_steps_are_those_of_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cancelled: list[str] = []

    @step(asyncio=True, retry=Retry.none(), timeout=0.5)
    async def hangs() -> None:
        def fling() -> None:
            raise RuntimeError("in a callback that nobody waits for")

        asyncio.get_running_loop().call_soon(fling)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("cancelled")
            raise

    @step(asyncio=True, retry=Retry.none())
    async def breaks() -> None:
        raise ValueError("broken")

    @workflow
    async def mixed(ctx: Context) -> list[str]:
        kinds = []
        for each in (hangs, breaks):
            try:
                await ctx.step(each)
            except StepFailed as error:
                kinds.append(str(error.failure.kind))
        return kinds

    async with open_test_runtime(workflows=[mixed]) as runtime:
        run = await runtime.submit(mixed, key="a")
        assert await run.result() == ["step_timeout", "step_failed"]
    assert cancelled == ["cancelled"]
    assert "in a callback that nobody waits for" in caplog.text


async def test_now_random_and_uuid4_are_the_same_live_and_replayed(
    autojump_clock: MockClock,
) -> None:
    passes: list[Any] = []

    @workflow
    async def remembers(ctx: Context) -> None:
        told: list[Any] = [ctx.now(), ctx.random(), ctx.uuid4(), ctx.random(), ctx.uuid4()]
        await ctx.sleep(10)
        told += [ctx.now(), ctx.random()]
        passes.append(told)
        await ctx.sleep(10)

    store = MemoryStore()
    for wait in (15, 1, 100):
        async with open_test_runtime(store, workflows=[remembers], evict_after=inf) as runtime:
            await runtime.submit(remembers, key="k", run_id="r")
            await trio.sleep(wait)
    assert len(passes) == 3
    assert passes[0] == passes[1] == passes[2]
    now, first, one, second, two, later, third = passes[0]
    assert now.timestamp() == pytest.approx(EPOCH, abs=0.01)
    assert (later - now).total_seconds() == pytest.approx(10, abs=0.01)
    assert len({first, second, third}) == 3
    assert one != two
    assert isinstance(one, UUID)
    assert one.version == 4


async def test_other_runs_have_other_random_numbers(autojump_clock: MockClock) -> None:
    @workflow
    async def lucky(ctx: Context) -> float:
        return ctx.random()

    async with open_test_runtime(workflows=[lucky]) as runtime:
        numbers = {await (await runtime.submit(lucky, key="k")).result() for _ in range(20)}
    assert len(numbers) == 20


async def test_a_step_knows_itself_and_its_key_is_stable_over_attempts(
    autojump_clock: MockClock,
) -> None:
    seen: list[Any] = []

    @step(timeout=7, retry=Retry.fixed(max_attempts=3, delay=1))
    async def curious() -> None:
        here = current_step()
        seen.append(here)
        assert (here.run_id, here.key, here.headers) == ("r", "k", {"h": "1"})
        assert not here.cancel_requested
        assert here.deadline == pytest.approx(EPOCH + trio.current_time() + 7, abs=0.1)
        here.report(50, "half way")
        with pytest.raises(ValueError, match="percent must be between 0 and 100, got 101"):
            here.report(101)
        if here.attempt < 3:
            raise ValueError("again")

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(curious)
        await ctx.step(curious)

    async with open_test_runtime(workflows=[flow]) as runtime:
        await (await runtime.submit(flow, key="k", run_id="r", headers={"h": "1"})).result()
        await (await runtime.submit(flow, key="k", run_id="r2", headers={"h": "1"})).cancel()
    assert [(each.step, each.attempt) for each in seen[:6]] == [
        *(("curious", attempt) for attempt in (1, 2, 3)),
        *(("curious#2", attempt) for attempt in (1, 2, 3)),
    ]
    keys = [each.idempotency_key for each in seen[:6]]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert keys[3] == keys[4] == keys[5]


async def test_current_step_is_only_for_steps(autojump_clock: MockClock) -> None:
    @workflow
    async def lost(ctx: Context) -> str:
        await ctx.step(double, 1)
        try:
            current_step()
        except RuntimeError as error:
            return str(error)
        return "found"

    async with open_test_runtime(workflows=[lost]) as runtime:
        said = await (await runtime.submit(lost, key="k")).result()
    assert "only for code that runs inside a step" in said


async def test_a_context_belongs_to_its_task(autojump_clock: MockClock) -> None:
    errors: list[str] = []

    @workflow
    async def spread(ctx: Context) -> int:
        async def elsewhere() -> None:
            for use in (lambda: ctx.step(double, 1), lambda: ctx.sleep(1)):
                try:
                    await use()
                except WrongTask as error:
                    errors.append(str(error))
            for call in (ctx.now, ctx.random, ctx.uuid4):
                try:
                    call()
                except WrongTask as error:
                    errors.append(str(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(elsewhere)
        return await ctx.step(double, 2)

    async with open_test_runtime(workflows=[spread]) as runtime:
        assert await (await runtime.submit(spread, key="k", run_id="r")).result() == 4
    assert len(errors) == 5
    assert all("pass async functions to ctx.gather(...)" in error for error in errors)


async def on_main_line(ctx: Context, call: Any) -> Any:
    return await ctx.step(call)


async def in_branch(ctx: Context, call: Any) -> Any:
    async def branch(own: Context) -> Any:
        return await own.step(call)

    (result,) = await ctx.gather(branch)
    return result


@pytest.mark.parametrize("place", [on_main_line, in_branch])
@pytest.mark.parametrize("form", ["at once", "after a while", "in a thread", "in a task"])
async def test_a_step_that_uses_the_context_of_its_workflow_is_refused(
    autojump_clock: MockClock, place: Any, form: str
) -> None:
    said: list[str] = []
    calls = 0

    @workflow
    async def tangled(ctx: Context) -> Any:
        def use() -> None:
            nonlocal calls
            calls += 1
            for call in (
                ctx.now,
                ctx.random,
                ctx.uuid4,
                lambda: ctx.fail("no"),
                lambda: ctx.cancel("no"),
            ):
                try:
                    call()
                except WrongTask as error:
                    said.append(str(error))

        async def durable() -> None:
            for call in (lambda: ctx.step(double, 1), lambda: ctx.sleep(1), lambda: ctx.gather()):
                with pytest.raises(WrongTask) as refused:
                    await call()
                said.append(str(refused.value))

        async def once() -> None:
            use()
            await durable()
            ctx.random()

        async def later() -> None:
            await trio.sleep(1)
            await once()

        async def apart() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(durable)
            use()
            ctx.random()

        def threaded() -> None:
            use()
            said.extend([said[-1]] * 3)
            ctx.random()

        forms = {"at once": once, "after a while": later, "in a thread": threaded}
        with pytest.raises(StepFailed) as failed:
            await place(ctx, step(forms.get(form, apart)).options(name="tangle"))
        return failed.value.failure.error_type, await ctx.step(double, 21)

    async with open_test_runtime(workflows=[tangled]) as runtime:
        run = await runtime.submit(tangled, key="k", run_id="r")
        error_type, result = await run.result()
    assert (error_type, result, calls) == ("keyrun.runtime.errors.WrongTask", 42, 1)
    assert len(said) == 8
    ident = "tangle" if place is on_main_line else "g1.0/tangle"
    assert {each.partition(";")[0] for each in said} == {
        f"the step {ident!r} uses the context of its workflow"
    }


def forgotten() -> Any:
    return double(1)


class Calling:
    async def __call__(self) -> int:
        return 1


@pytest.mark.parametrize("function", [forgotten, lambda: double(1), Calling()])
async def test_a_plain_function_that_returns_a_coroutine_is_told_to_be_async(
    autojump_clock: MockClock, function: Any
) -> None:
    @workflow
    async def calling(ctx: Context) -> None:
        await ctx.step(step(function).options(retry=Retry.none()))

    async with open_test_runtime(workflows=[calling]) as runtime:
        run = await runtime.submit(calling, key="k")
        with pytest.raises(RunFailed, match="coroutine: declare the step with `async def`"):
            await run.result()


async def test_a_step_may_have_a_runtime_of_its_own(autojump_clock: MockClock) -> None:
    @workflow
    async def inner(ctx: Context) -> int:
        await ctx.sleep(ctx.random())
        return await ctx.step(double, 21)

    @step
    async def delegate() -> int:
        results = []
        async with open_test_runtime(workflows=[inner]) as runtime:
            results.append(await (await runtime.submit(inner, key="k")).result())
        return results[0]

    @workflow
    async def outer(ctx: Context) -> int:
        return await ctx.step(delegate)

    async with open_test_runtime(workflows=[outer]) as runtime:
        assert await (await runtime.submit(outer, key="k")).result() == 42


async def test_a_context_refuses_everything_after_its_end(autojump_clock: MockClock) -> None:
    kept: list[Context] = []

    @workflow
    async def leaky(ctx: Context) -> None:
        kept.append(ctx)

    async with open_test_runtime(workflows=[leaky]) as runtime:
        await (await runtime.submit(leaky, key="k", run_id="r")).result()
        (ctx,) = kept
        assert ctx.run_id == "r"
        for use in (lambda: ctx.step(double, 1), lambda: ctx.sleep(1), lambda: ctx.gather()):
            with pytest.raises(WrongTask, match="this context is closed"):
                await use()
        for call in (ctx.now, ctx.random, lambda: ctx.fail("x"), lambda: ctx.cancel("x")):
            with pytest.raises(WrongTask, match="this context is closed"):
                call()


async def test_a_finally_of_a_workflow_that_is_cancelled_does_nothing_by_mistake(
    autojump_clock: MockClock,
) -> None:
    cleaned: list[str] = []

    @step
    async def clean() -> None:
        cleaned.append("cleaned")

    @workflow
    async def careful(ctx: Context) -> None:
        try:
            await ctx.sleep(100)
        finally:
            with trio.CancelScope(shield=True):
                await ctx.step(clean)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[careful]) as runtime:
        await runtime.submit(careful, key="k", run_id="r")
        await trio.sleep(1)
    assert cleaned == []
    async with open_test_runtime(store, workflows=[careful]) as runtime:
        run = await runtime.submit(careful, key="k", run_id="r")
        await run.result()
        assert cleaned == ["cleaned"]
        cancelled = await runtime.submit(careful, key="k", run_id="c")
        await trio.sleep(1)
        await cancelled.cancel()
    assert cleaned == ["cleaned"]


async def test_arguments_and_results_keep_their_types_through_a_restart(
    autojump_clock: MockClock,
) -> None:
    value = {"tuple": (1, 2), "bytes": b"\0", "float": 1.0, "nested": [{"none": None}]}
    passes: list[Any] = []

    @step
    async def same(given: Any) -> Any:
        return given

    @workflow
    async def flow(ctx: Context) -> None:
        passes.append(await ctx.step(same, value))
        await ctx.sleep(10)

    store = MemoryStore()
    for wait in (1, 20):
        async with open_test_runtime(store, workflows=[flow], evict_after=inf) as runtime:
            await runtime.submit(flow, key="k", run_id="r")
            await trio.sleep(wait)
    assert passes == [value, value]
    assert type(passes[1]["tuple"]) is tuple
    assert type(passes[1]["float"]) is float


async def test_a_value_that_cannot_be_stored_fails_the_step_at_once(
    autojump_clock: MockClock,
) -> None:
    calls: list[int] = []

    @step
    async def strange() -> Any:
        calls.append(1)
        return {1, 2}

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(strange)

    async with open_test_runtime(workflows=[flow]) as runtime:
        with pytest.raises(RunFailed, match="cannot store a set") as caught:
            await (await runtime.submit(flow, key="k")).result()
    assert caught.value.failure.kind is FailureKind.PERMANENT_ERROR
    assert calls == [1]


async def test_verdicts_end_a_run_without_a_dead_letter(autojump_clock: MockClock) -> None:
    @workflow
    async def judges(ctx: Context, verdict: str) -> None:
        await ctx.step(double, 1)
        try:
            if verdict == "fail":
                ctx.fail("it is no good")
            ctx.cancel("not needed")
        except Exception:
            raise AssertionError("a verdict is not an exception to be caught") from None

    hook = RecordingHook()
    async with open_test_runtime(workflows=[judges], on_terminal=hook) as runtime:
        failed = await runtime.submit(judges, "fail", key="k", run_id="f")
        with pytest.raises(RunFailed, match="it is no good") as caught:
            await failed.result()
        assert caught.value.failure.kind is FailureKind.VERDICT
        cancelled = await runtime.submit(judges, "cancel", key="k", run_id="c")
        with pytest.raises(RunCancelled, match="not needed") as stopped:
            await cancelled.result()
        assert stopped.value.reason == "not needed"
        assert not await runtime.dead_letters()
    assert [(each.run_id, each.state, each.reason) for each in hook.outcomes] == [
        ("f", State.FAILED, "it is no good"),
        ("c", State.CANCELLED, "not needed"),
    ]


async def test_an_error_of_the_workflow_itself_is_a_dead_letter(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def buggy(ctx: Context) -> None:
        await ctx.step(double, 1)
        raise ZeroDivisionError("between the steps")

    @workflow
    async def grouped(ctx: Context) -> None:
        async with trio.open_nursery():
            await ctx.step(double, 1)
            raise ZeroDivisionError("in a nursery")

    async with open_test_runtime(workflows=[buggy, grouped]) as runtime:
        for each, text in ((buggy, "between the steps"), (grouped, "in a nursery")):
            run = await runtime.submit(each, key="k")
            with pytest.raises(RunFailed) as caught:
                await run.result()
            failure = caught.value.failure
            assert failure.kind is FailureKind.WORKFLOW_ERROR
            assert failure.traceback is not None
            assert text in failure.traceback
        assert len(await runtime.dead_letters()) == 2


async def test_a_verdict_inside_a_nursery_of_the_workflow_counts(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def nested(ctx: Context) -> None:
        async with trio.open_nursery():
            ctx.fail("enough")

    async with open_test_runtime(workflows=[nested]) as runtime:
        run = await runtime.submit(nested, key="k")
        with pytest.raises(RunFailed, match="enough") as caught:
            await run.result()
        assert caught.value.failure.kind is FailureKind.VERDICT


async def test_a_permanent_error_names_step_attempt_and_type(autojump_clock: MockClock) -> None:
    @step
    async def refuse() -> None:
        raise PermanentError("no way")

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(refuse)

    hook = RecordingHook()
    async with open_test_runtime(workflows=[flow], on_terminal=hook) as runtime:
        run = await runtime.submit(flow, key="k")
        with pytest.raises(RunFailed) as caught:
            await run.result()
        (letter,) = await runtime.dead_letters()
        assert letter.run_id == run.run_id
    failure = caught.value.failure
    assert failure.kind is FailureKind.PERMANENT_ERROR
    assert (failure.step, failure.attempt) == ("refuse", 1)
    assert failure.error_type == "keyrun.runtime.errors.PermanentError"
    assert failure.traceback is not None
    assert "no way" in failure.traceback
    assert len(hook.outcomes) == 1


async def test_a_step_that_stages_something_and_then_waits_is_not_disturbed_by_the_commit(
    autojump_clock: MockClock,
) -> None:
    """What its first part staged is committed while it already waits for something else."""
    door = trio.Event()

    @step
    async def knock(kind: str) -> str:
        current_step().memo["knocked"] = kind
        if kind == "event":
            await door.wait()
        else:
            with trio.move_on_after(0.5):
                await trio.sleep_forever()
        return kind

    @workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.step(knock, "event"), await ctx.step(knock, "time")

    async with open_test_runtime(MemoryStore(latency=1), workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k")
        await trio.sleep(0.2)
        door.set()
        assert await run.result() == ("event", "time")
