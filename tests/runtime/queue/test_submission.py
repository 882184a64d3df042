"""How runs get in: once each, checked at the door, durable before `submit` returns."""

from enum import StrEnum
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    InputMismatch,
    InvalidKey,
    InvalidRunId,
    Limits,
    PermanentError,
    Priority,
    ReservedHeader,
    RunFailed,
    Runtime,
    State,
    UnknownWorkflow,
    current_step,
    step,
    workflow,
)
from keyrun.runtime.tuning import Tuning
from keyrun.storage import MemoryStore, StoreCrashed
from keyrun.testing import RecordingHook, open_test_runtime


@step
async def note(value: Any) -> Any:
    return value


@workflow
async def echo(ctx: Context, value: Any) -> Any:
    return await ctx.step(note, value)


@workflow
async def shout(ctx: Context, value: Any) -> Any:
    return str(await ctx.step(note, value)).upper()


@workflow
async def sleeper(ctx: Context, value: Any) -> Any:
    await ctx.sleep(100)
    return value


@workflow
async def fails(ctx: Context) -> None:
    await ctx.step(_refuse)


@step
async def _refuse() -> None:
    raise PermanentError("no")


WORKFLOWS = [echo, shout, sleeper, fails]


async def test_a_run_gives_its_result(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=WORKFLOWS) as runtime:
        run = await runtime.submit(echo, {"a": [1, 2]}, key="k")
        assert run.newly_submitted
        assert run.key == "k"
        assert await run.result() == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"key": ""}, InvalidKey, "key must have 1 to 255 bytes as UTF-8, got 0"),
        ({"key": "x" * 256}, InvalidKey, "key must have 1 to 255 bytes as UTF-8, got 256"),
        ({"key": "é" * 128}, InvalidKey, "key must have 1 to 255 bytes as UTF-8, got 256"),
        ({"key": 7}, InvalidKey, "key must be a string, got 7"),
        ({"key": "\ud800"}, InvalidKey, "key must be valid Unicode"),
        ({"run_id": ""}, InvalidRunId, "run_id must be 1 to 128 .* got ''"),
        ({"run_id": "a b"}, InvalidRunId, "run_id must be 1 to 128 .* got 'a b'"),
        ({"run_id": "a" * 129}, InvalidRunId, "run_id must be 1 to 128"),
        ({"run_id": "a\n"}, InvalidRunId, "run_id must be 1 to 128"),
        ({"run_id": 5}, InvalidRunId, "run_id must be 1 to 128 .* got 5"),
        ({"headers": {"keyrun.x": "1"}}, ReservedHeader, "reserved: 'keyrun.x'"),
        ({"headers": {"x": 1}}, TypeError, "headers must map strings to strings, got 'x': 1"),
        ({"headers": "x"}, TypeError, "headers must map strings to strings, got 'x'"),
        ({"tags": "urgent"}, TypeError, "tags must be several strings, .* got 'urgent'"),
        ({"tags": 5}, TypeError, "tags must be several strings, .* got 5"),
        ({"tags": ("",)}, TypeError, "tags must be non-empty strings, got ''"),
        ({"priority": 1}, TypeError, "priority must be a Priority, got 1"),
        ({"limits": {"max_attempts": 1}}, TypeError, "limits must be Limits, got {'max_attempts'"),
        ({"delay": -1}, ValueError, "delay must be 0 to 1e10 seconds, got -1"),
        ({"delay": float("nan")}, ValueError, "delay must be 0 to 1e10 seconds, got nan"),
        ({"delay": True}, ValueError, "delay must be 0 to 1e10 seconds, got True"),
        ({"delay": "1"}, ValueError, "delay must be 0 to 1e10 seconds, got '1'"),
        ({"input": {1, 2}}, TypeError, "cannot store a set"),
        ({"input": {"deep": [object()]}}, TypeError, "deep"),
    ],
)
async def test_a_bad_argument_is_refused_by_name(
    autojump_clock: MockClock, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    async with open_test_runtime(workflows=WORKFLOWS) as runtime:
        with pytest.raises(error, match=message):
            await runtime.submit(echo, **{"input": 1, "key": "k", **arguments})
        with pytest.raises(error, match=message):
            await runtime.submit_nowait(echo, **{"input": 1, "key": "k", **arguments})
        assert runtime.statistics().backlog.pending == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"run_timeout": 0}, "run_timeout must be positive, got 0"),
        ({"step_timeout": -1.5}, "step_timeout must be positive, got -1.5"),
        ({"step_timeout": float("nan")}, "step_timeout must be positive, got nan"),
        ({"max_attempts": 0}, "max_attempts must be a whole number of at least 1, got 0"),
        ({"max_iterations": 1.5}, "max_iterations must be a whole number of at least 1, got 1.5"),
        ({"max_iterations": 2**63}, "max_iterations must be a whole number of at least 1"),
        ({"run_timeout": 10**400}, "run_timeout must be positive, got 1000"),
        ({"retry_budget": -1}, "retry_budget must be a whole number of at least 0, got -1"),
        ({"max_interruptions": True}, "max_interruptions must be a whole number"),
    ],
)
def test_bad_limits_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(**arguments)


@pytest.mark.parametrize("run_id", ["a", "-", "_", "A" * 128, "0-_z"])
@pytest.mark.parametrize("key", ["k", "ключ", "x" * 255, "a/b#c\0d", " "])
async def test_awkward_but_legal_names_work(
    autojump_clock: MockClock, run_id: str, key: str
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=WORKFLOWS) as runtime:
        await runtime.submit(sleeper, 1, key=key, run_id=run_id)
    async with open_test_runtime(store, workflows=WORKFLOWS) as runtime:
        run = await runtime.submit(sleeper, 1, key=key, run_id=run_id)
        assert not run.newly_submitted
        assert await run.result() == 1


async def test_an_unknown_workflow_is_refused_with_those_that_are_known(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[echo, shout]) as runtime:
        with pytest.raises(UnknownWorkflow, match=r"sleeper.*echo, shout.*open_runtime"):
            await runtime.submit(sleeper, 1, key="k")
        with pytest.raises(UnknownWorkflow):
            await runtime.submit(None, 1, key="k")  # type: ignore[call-overload]


async def submit_twice(
    runtime: Runtime, again: Runtime | None = None, **changes: Any
) -> tuple[Any, Any]:
    original: dict[str, Any] = {
        "workflow": echo,
        "input": {"a": 1, "b": {"c": 2, "d": 3}},
        "key": "k",
        "run_id": "r",
    }
    first = await runtime.submit(**original)
    second = await (again or runtime).submit(**{**original, **changes})
    return first, second


SAME: list[dict[str, Any]] = [
    {},
    {"input": {"b": {"d": 3, "c": 2}, "a": 1}},
    {"headers": {"other": "header"}, "tags": ["t"], "priority": Priority.LOW},
]
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"input": {"a": 1}}, "another input"),
    ({"input": {"a": 1, "b": {"c": 2, "d": 3.0}}}, "another input"),
    ({"input": None}, "another input"),
    ({"key": "other"}, "another key"),
    ({"workflow": shout}, "another workflow"),
]


@pytest.mark.parametrize("same", SAME)
async def test_the_same_submitted_again_is_the_same_run(
    autojump_clock: MockClock, same: dict[str, Any]
) -> None:
    hook = RecordingHook()
    async with open_test_runtime(workflows=WORKFLOWS, on_terminal=hook) as runtime:
        first, second = await submit_twice(runtime, **same)
        assert (first.newly_submitted, second.newly_submitted) == (True, False)
        assert second.run_id == "r"
        assert await first.result() == await second.result()
        third = await runtime.submit(echo, {"a": 1, "b": {"c": 2, "d": 3}}, key="k", run_id="r")
        assert not third.newly_submitted
        assert await third.result() == await first.result()
    assert len(hook.outcomes) == 1


@pytest.mark.parametrize(("other", "what"), OTHERS)
async def test_something_else_under_the_same_id_is_refused(
    autojump_clock: MockClock, other: dict[str, Any], what: str
) -> None:
    async with open_test_runtime(workflows=WORKFLOWS) as runtime:
        with pytest.raises(InputMismatch, match=what) as caught:
            await submit_twice(runtime, **other)
        assert caught.value.run_id == "r"
        run = await runtime.submit(echo, {"a": 1, "b": {"c": 2, "d": 3}}, key="k", run_id="r")
        await run.result()
        with pytest.raises(InputMismatch, match=what):
            await submit_twice(runtime, **other)


@pytest.mark.parametrize(("other", "what"), [*OTHERS, ({}, "")])
async def test_duplicates_are_told_apart_across_a_restart(
    autojump_clock: MockClock, other: dict[str, Any], what: str
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=WORKFLOWS) as before:
        run = await before.submit(echo, {"a": 1, "b": {"c": 2, "d": 3}}, key="k", run_id="r")
        await run.result()
    async with open_test_runtime(store, workflows=WORKFLOWS) as after:
        if what:
            with pytest.raises(InputMismatch, match=what):
                await submit_twice(after, **other)
        else:
            first, second = await submit_twice(after)
            assert not first.newly_submitted
            assert not second.newly_submitted
            assert await second.result() == {"a": 1, "b": {"c": 2, "d": 3}}


async def test_a_duplicate_of_a_submit_that_is_being_committed_waits_for_that_commit(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore(latency=1.0)
    returned: list[tuple[float, bool]] = []
    refused: list[str] = []
    async with open_test_runtime(store, workflows=WORKFLOWS) as runtime:
        began = trio.current_time()

        async def submit(value: int) -> None:
            try:
                run = await runtime.submit(echo, value, key="k", run_id="r")
            except InputMismatch as error:
                refused.append(str(error))
            else:
                returned.append((trio.current_time() - began, run.newly_submitted))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit, 1)
            await trio.sleep(0.5)
            for value in (1, 2, 1):
                nursery.start_soon(submit, value)
        assert sorted(new for _, new in returned) == [False, False, True]
        assert {time for time, _ in returned} == {1.0}
        assert len(refused) == 1


async def test_duplicates_that_come_while_a_long_backlog_is_read_are_one_run(
    autojump_clock: MockClock,
) -> None:
    sizes = Tuning(startup_page=1)
    store = MemoryStore()
    async with open_test_runtime(store, workflows=WORKFLOWS, tuning=sizes) as runtime:
        await runtime.pause_all()
        for number in range(5):
            await runtime.submit(echo, number, key=f"k{number}")
    async with open_test_runtime(store, workflows=WORKFLOWS, tuning=sizes) as runtime:
        assert not runtime._partition.state.recovered
        new: list[bool] = []

        async def submit() -> None:
            new.append((await runtime.submit(echo, 7, key="k", run_id="r")).newly_submitted)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(submit)
        assert sorted(new) == [False, False, True]
        assert [run.run_id for run in await runtime.runs(key="k")] == ["r"]


async def test_a_duplicate_shares_the_error_of_the_commit(autojump_clock: MockClock) -> None:
    store = MemoryStore(latency=1.0)
    errors = 0

    async def submit(runtime: Runtime) -> None:
        nonlocal errors
        with trio.CancelScope(shield=True), pytest.raises(StoreCrashed):
            await runtime.submit(echo, 1, key="k", run_id="r")
        errors += 1

    async with open_test_runtime(store, workflows=WORKFLOWS) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit, runtime)
            nursery.start_soon(submit, runtime)
            await trio.sleep(0.5)
            store.crash()
    assert errors == 2
    async with open_test_runtime(store, workflows=WORKFLOWS) as runtime:
        assert await runtime.status("r") is None


async def test_what_submit_accepted_survives_a_crash(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=WORKFLOWS) as runtime:
        await runtime.submit(sleeper, 5, key="k", run_id="r")
        store.crash()
        await trio.sleep_forever()
    async with open_test_runtime(store, workflows=WORKFLOWS) as runtime:
        run = await runtime.submit(sleeper, 5, key="k", run_id="r")
        assert not run.newly_submitted
        assert await run.result() == 5


async def test_a_duplicate_of_a_failed_run_gives_the_stored_failure(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=WORKFLOWS) as runtime:
        with pytest.raises(RunFailed):
            await (await runtime.submit(fails, key="k", run_id="r")).result()
    async with open_test_runtime(store, workflows=WORKFLOWS) as runtime:
        again = await runtime.submit(fails, key="k", run_id="r")
        with pytest.raises(RunFailed, match="PermanentError: no") as caught:
            await again.result()
        assert caught.value.failure.step == "_refuse"


async def test_made_ids_keep_the_order_of_submission(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    made: list[str] = []
    for _ in range(2):
        async with open_test_runtime(store, workflows=WORKFLOWS) as runtime:
            runs = [await runtime.submit(echo, 1, key=f"k{n % 7}") for n in range(1000)]
            made += [run.run_id for run in runs]
            await trio.sleep(1)
    assert len(set(made)) == 2000
    assert made == sorted(made)


async def test_an_id_that_begins_with_another_is_another_run(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=WORKFLOWS) as runtime:
        for name in ("a", "ab", "abc", "b"):
            run = await runtime.submit(echo, name, key=name, run_id=name)
            assert run.newly_submitted
        for name in ("a", "ab", "abc", "b"):
            run = await runtime.submit(echo, name, key=name, run_id=name)
            assert not run.newly_submitted
            assert await run.result() == name
        assert await runtime.status("bb") is None


async def test_namespaces_in_one_store_know_nothing_of_each_other(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with (
        open_test_runtime(store, workflows=WORKFLOWS, namespace="one") as one,
        open_test_runtime(store, workflows=WORKFLOWS, namespace="two") as two,
    ):
        first = await one.submit(echo, "one", key="k", run_id="r")
        assert await two.status("r") is None
        second = await two.submit(echo, "two", key="k", run_id="r")
        assert second.newly_submitted
        assert (await first.result(), await second.result()) == ("one", "two")
        assert not await two.cancel("unknown")
    async with open_test_runtime(store, workflows=WORKFLOWS, namespace="two") as two:
        status = await two.status("r")
        assert status is not None
        assert status.result == "two"


class Color(StrEnum):
    RED = "red"


async def test_members_of_an_enum_can_be_headers_and_tags(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[echo]) as rt:
        run = await rt.submit(echo, 1, key="k", headers={Color.RED: Color.RED}, tags=[Color.RED])
        assert await run.result() == 1
        status = await run.status()
        assert status is not None
        assert (status.headers, status.tags) == ({"red": "red"}, ("red",))


async def test_headers_tags_and_limits_are_kept_with_the_run(autojump_clock: MockClock) -> None:
    seen: list[dict[str, str]] = []

    @step
    async def look() -> None:
        seen.append(current_step().headers)

    @workflow
    async def looking(ctx: Context) -> dict[str, str]:
        await ctx.step(look)
        await ctx.sleep(1)
        await ctx.step(look)
        return ctx.headers

    hook = RecordingHook()
    store = MemoryStore()
    headers = {"trace": "t-1", "Keyrun.": "not reserved"}
    async with open_test_runtime(store, workflows=[looking], on_terminal=hook) as runtime:
        await runtime.submit(looking, key="k", run_id="r", headers=headers, tags=["a", "b"])
        headers["trace"] = "changed by the caller"
        await trio.sleep(0.5)
    async with open_test_runtime(store, workflows=[looking], on_terminal=hook) as runtime:
        run = await runtime.submit(looking, key="k", run_id="r")
        kept = {"trace": "t-1", "Keyrun.": "not reserved"}
        assert await run.result() == kept
        status = await run.status()
        assert status is not None
        assert (status.headers, status.tags) == (kept, ("a", "b"))
    assert seen == [kept, kept]
    assert [outcome.headers for outcome in hook.outcomes] == [kept]


@attrs.frozen
class Order:
    customer: str
    amounts: list[int]


@attrs.frozen
class Receipt:
    order: Order
    total: int


async def test_an_input_that_does_not_fit_is_named(autojump_clock: MockClock) -> None:
    @workflow
    async def typed(ctx: Context, number: int) -> None: ...

    async with open_test_runtime(workflows=[typed]) as rt:
        with pytest.raises(
            TypeError, match="the input of the workflow 'typed': value: expected int, got None"
        ):
            await rt.submit(typed, None, key="k")  # type: ignore[arg-type]


async def test_input_and_result_may_be_attrs_classes(autojump_clock: MockClock) -> None:
    @step
    async def charge(order: Order) -> Receipt:
        return Receipt(order, sum(order.amounts))

    @workflow
    async def checkout(ctx: Context, order: Order) -> Receipt:
        assert isinstance(ctx.input, Order)
        receipt = await ctx.step(charge, order)
        await ctx.sleep(5)
        return receipt

    store = MemoryStore()
    order = Order("ann", [1, 2])
    async with open_test_runtime(store, workflows=[checkout]) as runtime:
        await runtime.submit(checkout, order, key="k", run_id="r")
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[checkout]) as runtime:
        run = await runtime.submit(checkout, order, key="k", run_id="r")
        assert await run.result() == Receipt(order, 3)
        with pytest.raises(TypeError, match="Order"):
            await runtime.submit(checkout, {"customer": "ann"}, key="k")  # type: ignore[misc]


async def test_a_cancelled_submit_may_be_repeated(autojump_clock: MockClock) -> None:
    store = MemoryStore(latency=1.0)
    async with open_test_runtime(store, workflows=WORKFLOWS) as runtime:
        with trio.move_on_after(0.5) as scope:
            await runtime.submit(echo, 1, key="k", run_id="r")
        assert scope.cancelled_caught
        run = await runtime.submit(echo, 1, key="k", run_id="r")
        assert not run.newly_submitted
        assert await run.result() == 1


async def test_a_result_that_cannot_be_stored_fails_the_run(autojump_clock: MockClock) -> None:
    @workflow
    async def strange(ctx: Context) -> Any:
        return {1, 2}

    async with open_test_runtime(workflows=[strange]) as runtime:
        run = await runtime.submit(strange, key="k")
        with pytest.raises(RunFailed, match="cannot store a set"):
            await run.result()
        status = await run.status()
        assert status is not None
        assert status.state is State.FAILED


async def test_a_made_id_can_be_repeated_like_any_other(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[echo]) as rt:
        made = (await rt.submit(echo, {"b": 1, "a": [2]}, key="k")).run_id
        other = (await rt.submit(echo, {"b": 1, "a": [2]}, key="k")).run_id
        assert other != made
        again = await rt.submit(echo, {"a": [2], "b": 1}, key="k", run_id=made)
        assert not again.newly_submitted
    async with open_test_runtime(store, workflows=[echo]) as rt:
        again = await rt.submit(echo, {"a": [2], "b": 1}, key="k", run_id=made)
        assert not again.newly_submitted
        assert await again.result() == {"a": [2], "b": 1}
        with pytest.raises(InputMismatch, match="another input"):
            await rt.submit(echo, {"a": [2], "b": 3}, key="k", run_id=made)
        with pytest.raises(InputMismatch, match="another key"):
            await rt.submit(echo, {"a": [2], "b": 1}, key="other", run_id=made)


async def test_an_id_that_only_looks_made_is_not_taken_for_another_run(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[echo]) as rt:
        made = (await rt.submit(echo, 1, key="k")).run_id
        alike = "0" * 22 + made[22:]
        assert await rt.status(alike) is None
        assert (await rt.submit(echo, 2, key="k", run_id=alike)).newly_submitted
        await rt.status(made)
        assert await (await rt.submit(echo, 2, key="k", run_id=alike)).result() == 2


async def test_a_made_id_that_was_forgotten_is_unknown(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[echo]) as rt:
        run = await rt.submit(echo, 1, key="k")
        await run.result()
        await rt.forget(run.run_id)
        assert await rt.status(run.run_id) is None
        assert (await rt.submit(echo, 5, key="k", run_id=run.run_id)).newly_submitted
