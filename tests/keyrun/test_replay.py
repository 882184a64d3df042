"""Replay: changed code is compared with the runs of earlier code, and no step is run."""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import attrs
import pytest
import trio
import trio._core._run as trio_run
from trio.testing import MockClock

import keyrun
from keyrun import (
    Context,
    Continue,
    Limits,
    NonDeterminism,
    PermanentError,
    Retry,
    RunCancelled,
    RunFailed,
    State,
    StepFailed,
    Succeed,
    TransientError,
    Turn,
    Workflow,
    current_step,
    machine,
    open_reader,
    step,
    workflow,
)
from keyrun.errors import InvalidHistory
from keyrun.runtime.machines import Verdict
from keyrun.status import History
from keyrun.storage import MemoryStore
from keyrun.testing import (
    CrashingMemoryStore,
    RecordingHook,
    Replayed,
    open_test_runtime,
    replay,
)

ran: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


@step
async def one(value: Any = 1) -> Any:
    ran.append(current_step().step)
    return value


@step
async def two(value: Any = 2) -> Any:
    ran.append(current_step().step)
    return value


@step
async def refuse() -> None:
    ran.append(current_step().step)
    raise PermanentError("refused")


@step(retry=Retry.fixed(max_attempts=3, delay=1))
async def flaky() -> str:
    ran.append(current_step().step)
    if current_step().attempt < 3:
        raise TransientError("not yet")
    return "at last"


@step
async def hang() -> None:
    await trio.sleep_forever()


Code = Callable[[Context], Awaitable[Any]]


def flow(code: Code, **options: Any) -> Workflow[Any, Any]:
    @workflow(name="flow", **options)
    async def changing(ctx: Context) -> Any:
        return await code(ctx)

    return changing


async def recorded(code: Code, *, seconds: float = 1000, **options: Any) -> History:
    """The history of a run of `code`, so many seconds after its start, as it is in a file."""
    ran.clear()
    old = flow(code, **options)
    async with open_test_runtime(workflows=[old], drain_timeout=0) as runtime:
        run = await runtime.submit(old, key="k", run_id="r")
        with trio.move_on_after(seconds), suppress(RunFailed, RunCancelled):
            await run.result()
        history = await runtime.history("r")
    ran.clear()
    loaded = History.from_json(history.to_json())
    assert list(loaded) == list(history)
    return loaded


async def with_one_and_two(ctx: Context) -> Any:
    told = [await ctx.step(one), await ctx.step(two)]
    await ctx.sleep(10)
    return told


async def test_the_code_of_a_run_fits_it_and_no_step_is_run(autojump_clock: MockClock) -> None:
    ended = await recorded(with_one_and_two)
    assert await replay(ended, flow(with_one_and_two)) == Replayed(
        run_id="r", state=State.SUCCEEDED, outcomes=3
    )
    begun = await recorded(with_one_and_two, seconds=5)
    assert await replay(begun, flow(with_one_and_two)) == Replayed(
        run_id="r", state=State.RUNNING, outcomes=2, asks=("timer",)
    )
    assert ran == []


def test_it_runs_in_any_trio_loop() -> None:
    async def main() -> History:
        histories = []
        async with keyrun.open_runtime(MemoryStore(), workflows=[quick]) as runtime:
            await (await runtime.submit(quick, key="k", run_id="r")).result()
            histories.append(await runtime.history("r"))
        return histories[0]

    quick = flow(lambda ctx: ctx.step(one))
    history = trio.run(main)
    assert trio.run(replay, history, quick).state is State.SUCCEEDED


async def other_arguments(ctx: Context) -> Any:
    await ctx.step(one, "other")


async def one_step_less(ctx: Context) -> Any:
    await ctx.step(two)
    await ctx.sleep(10)


async def ends_early(ctx: Context) -> Any:
    return await ctx.step(one)


async def fails_early(ctx: Context) -> Any:
    await ctx.step(one)
    raise ZeroDivisionError("a bug in the new code")


async def cancels_early(ctx: Context) -> Any:
    await ctx.step(one)
    ctx.cancel("no need for step two")


async def renamed(ctx: Context) -> Any:
    await ctx.step(one.options(name="uno"))
    await ctx.step(two)


async def in_branches(ctx: Context) -> Any:
    await ctx.gather(ctx.step(one), ctx.step(two))


async def another_kind(ctx: Context) -> Any:
    await ctx.sleep(1)
    await ctx.step(two)
    await ctx.sleep(10)


@pytest.mark.parametrize("seconds", [5, 1000])
@pytest.mark.parametrize(
    ("after", "named"),
    [
        (other_arguments, "the step 'one' with other arguments"),
        (one_step_less, "has an outcome of 'one' next, but the workflow asks for 'two' instead"),
        (ends_early, "has an outcome of 'two' next, but the workflow ended without asking"),
        (fails_early, "has an outcome of 'two' next, but the workflow ended without asking"),
        (cancels_early, "has an outcome of 'two' next, but the workflow asks for 'ctx.cancel()'"),
        (renamed, "has an outcome of 'one' next, but the workflow asks for 'uno' instead"),
        (in_branches, "of 'one' next, but the workflow asks for 'g1."),
        (another_kind, "has an outcome of 'one' next, but the workflow asks for '"),
    ],
)
async def test_what_contradicts_the_journal_is_raised_and_names_both(
    autojump_clock: MockClock, after: Code, named: str, seconds: float
) -> None:
    history = await recorded(with_one_and_two, seconds=seconds)
    with pytest.raises(NonDeterminism) as contradiction:
        await replay(history, flow(after))
    assert named in str(contradiction.value)
    assert (contradiction.value.run_id, contradiction.value.key) == ("r", "k")
    assert ran == []


async def test_a_run_that_goes_on_may_be_extended_at_its_end(autojump_clock: MockClock) -> None:
    async def extended(ctx: Context) -> Any:
        told = await with_one_and_two(ctx)
        return [*told, await ctx.step(one, "more")]

    async def extended_before_the_timer(ctx: Context) -> Any:
        told = [await ctx.step(one), await ctx.step(two)]
        await ctx.step(one, "more")
        await ctx.sleep(10)
        return told

    begun = await recorded(with_one_and_two, seconds=5)
    assert (await replay(begun, flow(extended))).asks == ("timer",)
    with pytest.raises(NonDeterminism, match=r"'sleep\(\)', which has begun, next.* 'one#2'"):
        await replay(begun, flow(extended_before_the_timer))
    ended = await recorded(with_one_and_two)
    for code in (extended, extended_before_the_timer):
        with pytest.raises(NonDeterminism) as contradiction:
            await replay(ended, flow(code))
    with pytest.raises(NonDeterminism) as contradiction:
        await replay(ended, flow(extended))
    assert "ended as succeeded with [1, 2], but the code asks for 'one#2' instead" in str(
        contradiction.value
    )


async def test_a_step_after_the_end_of_the_journal_needs_a_value(
    autojump_clock: MockClock,
) -> None:
    @step
    async def inspect() -> list[int]:
        ran.append("inspect")
        return []

    async def with_more(ctx: Context) -> Any:
        told = await with_one_and_two(ctx)
        seen = await ctx.step(inspect)
        assert type(seen) is list
        assert seen == [7]
        seen.clear()
        return told

    given = {"inspect": [7]}
    history = await recorded(with_one_and_two)
    with pytest.raises(NonDeterminism, match="the code asks for 'inspect'") as raised:
        await replay(history, flow(with_more))
    assert "pass its value: replay(..., given={'inspect': ...})" in raised.value.__notes__[0]
    assert (await replay(history, flow(with_more), given=given)).state is State.SUCCEEDED
    assert given == {"inspect": [7]}
    assert ran == []


@pytest.mark.parametrize("seconds", [5, 1000])
async def test_a_step_that_was_put_in_between_does_not_fit_unless_it_is_a_patch(
    autojump_clock: MockClock, seconds: float
) -> None:
    def inserted(*, patched: bool) -> Code:
        async def code(ctx: Context) -> Any:
            told = [await ctx.step(one)]
            if not patched or ctx.patched("more"):
                await ctx.step(one, "more")
            told.append(await ctx.step(two))
            await ctx.sleep(10)
            return told

        return code

    history = await recorded(with_one_and_two, seconds=seconds)
    with pytest.raises(NonDeterminism, match="'two' next, but the workflow asks for 'one#2'"):
        await replay(history, flow(inserted(patched=False)), given={"one#2": 1})
    replayed = await replay(history, flow(inserted(patched=True)))
    assert replayed.outcomes == (3 if seconds == 1000 else 2)
    taken = await recorded(inserted(patched=True), seconds=seconds)
    assert (await replay(taken, flow(inserted(patched=True)))).state is replayed.state
    # The answer was yes, so that the `if` may go.
    assert (await replay(taken, flow(inserted(patched=False)))).state is replayed.state
    with pytest.raises(NonDeterminism):
        await replay(taken, flow(with_one_and_two))


async def test_a_timer_that_was_moved_does_not_fit(autojump_clock: MockClock) -> None:
    async def moved(ctx: Context) -> Any:
        told = [await ctx.step(one)]
        await ctx.sleep(10)
        return [*told, await ctx.step(two)]

    with pytest.raises(NonDeterminism, match=r"'two' next, but the workflow asks for 'sleep\(\)'"):
        await replay(await recorded(with_one_and_two, seconds=5), flow(moved))


async def test_a_timer_that_was_put_in_between_does_not_fit(autojump_clock: MockClock) -> None:
    async def beside(ctx: Context) -> Any:
        async def left(ctx: Context) -> Any:
            return await ctx.step(one)

        async def right(ctx: Context) -> Any:
            return await ctx.step(two)

        return await ctx.gather(left, right)

    async def with_timers(ctx: Context) -> Any:
        async def left(ctx: Context) -> Any:
            await ctx.sleep(5)
            return await ctx.step(one)

        async def right(ctx: Context) -> Any:
            return await ctx.step(two)

        await ctx.sleep(1)
        return await ctx.gather(left, right)

    async def without_right(ctx: Context) -> Any:
        async def left(ctx: Context) -> Any:
            await ctx.sleep(5)
            return await ctx.step(one)

        await ctx.gather(left)

    history = await recorded(beside)
    with pytest.raises(NonDeterminism, match=r"next, but the workflow asks for 'sleep\(\)'"):
        await replay(history, flow(with_timers))
    with pytest.raises(NonDeterminism, match=r"has an outcome of 'g1.1/two'"):
        await replay(history, flow(without_right))


async def says_five(ctx: Context) -> Any:
    return {"a": await ctx.step(one), "b": 5}


async def says_five_in_another_order(ctx: Context) -> Any:
    return {"b": 5, "a": await ctx.step(one)}


async def says_six(ctx: Context) -> Any:
    return {"a": await ctx.step(one), "b": 6}


async def judges(ctx: Context) -> Any:
    await ctx.step(one)
    ctx.fail("not good enough")


async def judges_otherwise(ctx: Context) -> Any:
    await ctx.step(one)
    ctx.fail("too good")


async def gives_in(ctx: Context) -> Any:
    await ctx.step(one)
    ctx.cancel("not needed")


async def raises(ctx: Context) -> Any:
    raise LookupError(f"{await ctx.step(one)} at {object()!r}")


async def raises_otherwise(ctx: Context) -> Any:
    raise ZeroDivisionError(await ctx.step(one))


async def returns_rubbish(ctx: Context) -> Any:
    await ctx.step(one)
    return object()


ENDS: dict[Code, str] = {
    says_five: "succeeded with {'a': 1, 'b': 5}",
    says_six: "succeeded with {'a': 1, 'b': 6}",
    judges: "failed (verdict): not good enough",
    judges_otherwise: "failed (verdict): too good",
    gives_in: "cancelled: not needed",
    raises: "failed (workflow_error): the workflow raised LookupError: 1 at <object",
    raises_otherwise: "failed (workflow_error): the workflow raised ZeroDivisionError: 1",
    returns_rubbish: "failed (workflow_error): the workflow raised PayloadTypeError",
}


@pytest.mark.parametrize("before", ENDS)
async def test_a_run_that_ended_must_come_to_the_same_end(
    autojump_clock: MockClock, before: Code
) -> None:
    history = await recorded(before)
    for after, said in ENDS.items():
        if after is before:
            replayed = await replay(history, flow(after))
            assert replayed.state == said.partition(" ")[0].rstrip(":")
        else:
            with pytest.raises(NonDeterminism) as contradiction:
                await replay(history, flow(after))
            assert f"the run ended as {ENDS[before]}" in str(contradiction.value)
            assert f"but the code ends as {said}" in str(contradiction.value)
    if before is says_five:
        await replay(history, flow(says_five_in_another_order))


async def test_code_that_raises_in_the_middle_of_a_run_does_not_fit_it(
    autojump_clock: MockClock,
) -> None:
    async def broken(ctx: Context) -> Any:
        told = [await ctx.step(one), await ctx.step(two)]
        raise ZeroDivisionError(f"told {told}")

    history = await recorded(with_one_and_two, seconds=5)
    with pytest.raises(NonDeterminism, match=r"'sleep\(\)', which has begun, next") as raised:
        await replay(history, flow(broken))
    assert "in broken" in raised.value.__notes__[0]


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_of_a_run_that_was_ended_from_outside_only_the_journal_counts(
    autojump_clock: MockClock, how: str
) -> None:
    async def endless(ctx: Context) -> Any:
        await ctx.step(one)
        await ctx.step(hang)

    async def changed(ctx: Context) -> Any:
        await ctx.step(one)
        await ctx.step(two)

    old = flow(endless, limits=Limits(run_timeout=5) if how == "deadline" else Limits())
    histories = []
    async with open_test_runtime(workflows=[old]) as runtime:
        run = await runtime.submit(old, key="k", run_id="r")
        await trio.sleep(1)
        if how == "cancel":
            await runtime.cancel("r")
        with pytest.raises(RunCancelled if how == "cancel" else RunFailed):
            await run.result()
        histories.append(await runtime.history("r"))
    assert (await replay(histories[0], flow(endless))).asks == ("hang",)
    assert (await replay(histories[0], flow(changed))).asks == ("two",)
    with pytest.raises(NonDeterminism):
        await replay(histories[0], flow(one_step_less))


@pytest.mark.parametrize("seed", range(20))
def test_branches_are_replayed_until_none_can_go_on(seed: int) -> None:
    """However Trio orders the tasks of the branches."""
    with patch.object(trio_run, "_r", Random(seed)):
        trio.run(_replay_branches, clock=MockClock(autojump_threshold=0))


async def _replay_branches() -> None:
    def gathering(last: Any) -> Code:
        async def code(ctx: Context) -> Any:
            async def left(ctx: Context) -> Any:
                await ctx.step(one)
                await ctx.step(hang)

            async def right(ctx: Context) -> Any:
                await ctx.sleep(1)
                await ctx.step(one)
                await ctx.step(last)
                await ctx.sleep(1000)

            await ctx.gather(left, right)

        return code

    history = await recorded(gathering(two), seconds=100)
    replayed = await replay(history, flow(gathering(two)))
    assert (replayed.outcomes, replayed.asks) == (4, ("g1.0/hang", "timer"))
    with pytest.raises(NonDeterminism, match=r"outcome of 'g1.1/two' next.*asks for 'g1.1/deux'"):
        await replay(history, flow(gathering(two.options(name="deux"))))


async def test_a_branch_that_failed_fails_again_and_its_siblings_rest(
    autojump_clock: MockClock,
) -> None:
    def gathering(call: Any) -> Code:
        async def code(ctx: Context) -> Any:
            async def fails(ctx: Context) -> Any:
                await ctx.sleep(1)
                await ctx.step(call)

            async def waits(ctx: Context) -> Any:
                await ctx.step(one)
                await ctx.step(hang)

            try:
                await ctx.gather(fails, waits)
            except StepFailed as error:
                return await ctx.step(two, error.failure.kind.value)

        return code

    history = await recorded(gathering(refuse))
    assert (await replay(history, flow(gathering(refuse)))).state is State.SUCCEEDED
    with pytest.raises(NonDeterminism):
        await replay(history, flow(gathering(refuse.options(name="other"))))


async def test_what_depends_on_the_run_is_the_same(autojump_clock: MockClock) -> None:
    async def personal(ctx: Context) -> Any:
        now, later = ctx.now(), None
        try:
            await ctx.step(refuse)
        except StepFailed as error:
            later = (str(error), await ctx.step(flaky))
        await ctx.sleep(ctx.random())
        return [now, later, ctx.random(), ctx.uuid4(), ctx.run_id, ctx.key, ctx.headers]

    history = await recorded(personal)
    assert (await replay(history, flow(personal))).state is State.SUCCEEDED


async def test_a_run_that_was_redriven_is_replayed_with_what_still_counts(
    autojump_clock: MockClock,
) -> None:
    broken = True

    @step(retry=Retry.none())
    async def pay() -> str:
        if broken:
            raise PermanentError("no money")
        return "paid"

    async def order(ctx: Context) -> Any:
        return [await ctx.step(one), await ctx.step(pay)]

    old, store, histories = flow(order), MemoryStore(), []
    async with open_test_runtime(store, workflows=[old]) as runtime:
        run = await runtime.submit(old, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        histories.append(await runtime.history("r"))
        await runtime.pause_all()
        await runtime.redrive("r")
        histories.append(await runtime.history("r"))
        broken = False
        await runtime.resume_all()
        await run.result()
        histories.append(await runtime.history("r"))
    failed, redriven, done = [await replay(history, old) for history in histories]
    assert [each.state for each in (failed, redriven, done)] == ["failed", "running", "succeeded"]
    assert (redriven.outcomes, redriven.asks) == (1, ("pay",))


async def test_the_mended_code_of_a_quarantined_run_can_be_tried(autojump_clock: MockClock) -> None:
    good, bad, store = flow(with_one_and_two), flow(one_step_less), MemoryStore()
    async with open_test_runtime(store, workflows=[good], evict_after=inf) as runtime:
        await runtime.submit(good, key="k", run_id="r")
        await trio.sleep(1)
    histories = []
    async with open_test_runtime(store, workflows=[bad]) as runtime:
        await trio.sleep(1)
        status = await runtime.status("r")
        histories.append(await runtime.history("r"))
    assert status is not None
    assert status.state is State.QUARANTINED
    with pytest.raises(NonDeterminism) as contradiction:
        await replay(histories[0], bad)
    assert str(contradiction.value) == status.reason
    await replay(histories[0], good)


async def everything(ctx: Context) -> Any:
    async def left(ctx: Context) -> Any:
        await ctx.sleep(3)
        return await ctx.step(flaky), ctx.now()

    async def right(ctx: Context) -> Any:
        await ctx.gather(ctx.step(one), ctx.step(two))
        await ctx.step(refuse)

    try:
        await ctx.gather(left, right)
    except StepFailed:
        return await ctx.gather(left, ctx.step(flaky))


@pytest.mark.parametrize("applied", [False, True])
async def test_whenever_the_process_dies_the_code_fits_what_is_on_the_disk(
    autojump_clock: MockClock, applied: bool
) -> None:
    code, states = flow(everything), []
    for commit in range(1, 40):
        store = CrashingMemoryStore()
        store.crash_at(commit, applied=applied)
        with suppress(Exception):
            async with open_test_runtime(store, workflows=[code]) as runtime:
                await (await runtime.submit(code, key="k", run_id="r")).result()
        async with open_reader(store) as reader:
            history = await reader.history("r")
        if history:
            states.append((await replay(history, code)).state)
    assert states[0] is State.RUNNING
    assert states[-1] is State.SUCCEEDED
    assert states == sorted(states)


@attrs.frozen
class Order:
    number: int


@attrs.frozen
class Receipt:
    order: Order
    paid: bool


@step
async def charge(order: Order) -> Receipt:
    return Receipt(order, True)


@workflow
async def checkout(ctx: Context, order: Order) -> Receipt:
    return await ctx.step(charge, order)


class Swapped:
    """As if it were encryption; what it makes of the same is never the same."""

    salt = 0

    def wrap(self, data: bytes, /) -> bytes:
        self.salt += 1
        return bytes([self.salt]) + data[::-1]

    def unwrap(self, data: bytes, /) -> bytes:
        return data[1:][::-1]


@pytest.mark.parametrize("transform", [None, Swapped()])
async def test_a_file_saved_by_a_reader_is_replayed_with_declared_types(
    tmp_path: Path, transform: Swapped | None
) -> None:
    path = tmp_path / "order-7.json"
    async with keyrun.open_runtime(
        tmp_path / "state", workflows=[checkout], transform=transform
    ) as runtime:
        run = await runtime.submit(
            checkout, Order(7), key="k", run_id="order-7", headers={"keyrun bytes": "AAAA"}
        )
        assert await run.result() == Receipt(Order(7), True)
    async with open_reader(tmp_path / "state") as reader:
        (await reader.history("order-7")).save(path)
    history = History.load(path)
    assert [each.event for each in history] == [
        "submitted",
        "started",
        "step_completed",
        "succeeded",
    ]
    replayed = await replay(history, checkout, transform=transform)
    assert replayed.state is State.SUCCEEDED
    if transform is not None:
        with pytest.raises(NonDeterminism, match=r"pass it to replay\(transform=...\)"):
            await replay(history, checkout)


async def test_an_input_that_todays_code_cannot_read_does_not_fit(
    autojump_clock: MockClock,
) -> None:
    @workflow(name="checkout")
    async def changed(ctx: Context, order: Receipt) -> Any:
        return None

    histories = []
    async with open_test_runtime(workflows=[checkout]) as runtime:
        await (await runtime.submit(checkout, Order(7), key="k", run_id="r")).result()
        histories.append(await runtime.history("r"))
    with pytest.raises(NonDeterminism, match="the code cannot read the input of the run"):
        await replay(histories[0], changed)


async def test_what_cannot_be_replayed_is_refused_with_a_reason(autojump_clock: MockClock) -> None:
    @machine(name="turning")
    async def turning(t: Turn) -> Verdict:
        return Continue() if t.number < 3 else Succeed()

    histories = []
    async with open_test_runtime(workflows=[turning]) as runtime:
        await (await runtime.submit(turning, key="k", run_id="r")).result()
        histories += [await runtime.history("r"), await runtime.history("nobody")]
    of_machine, empty = histories
    for history, code, said in (
        (of_machine, turning, "the store has only its latest turn"),
        (
            of_machine,
            checkout,
            "history of a run of 'turning', but the workflow is 'checkout'",
        ),
        (empty, checkout, "this history is empty: no run has that id"),
    ):
        with pytest.raises(InvalidHistory, match=said):
            await replay(history, code)
    with pytest.raises(TypeError, match=r"of History.load\(path\), got \[\]"):
        await replay([], checkout)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a workflow made with @workflow"):
        await replay(of_machine, charge)  # type: ignore[arg-type]
    with pytest.raises(InvalidHistory, match="this history is empty"):
        empty.to_json()
    assert not empty


async def test_a_file_that_is_no_history_is_refused_with_its_name(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    history = await recorded(with_one_and_two)
    path = tmp_path / "history.json"
    history.save(path)
    assert History.load(path) == history
    text = path.read_text()
    newer = text.replace('"keyrun history": 1', '"keyrun history": 2')
    fields = json.loads(text)
    fields["run"].pop()
    for spoilt, said in (
        ("", "not a history that Keyrun has saved"),
        ("[]", "not a history that Keyrun has saved"),
        (text[:-20], "not a history that Keyrun has saved"),
        (json.dumps(fields), "not a history that Keyrun has saved"),
        (text.replace('"keyrun.bytes": "', '"keyrun.bytes": "!'), "not a history that Keyrun has"),
        (newer, "has format 2, but this Keyrun reads formats up to 1; upgrade"),
    ):
        path.write_text(spoilt)
        with pytest.raises(InvalidHistory, match=said) as refused:
            History.load(path)
        assert "history.json" in str(refused.value)
    with pytest.raises(FileNotFoundError):
        History.load(tmp_path / "none.json")


async def test_a_history_is_a_sequence_of_what_happened(autojump_clock: MockClock) -> None:
    hook = RecordingHook()
    code = flow(with_one_and_two)
    async with open_test_runtime(workflows=[code], on_terminal=hook) as runtime:
        await (await runtime.submit(code, key="k", run_id="r")).result()
        history = await runtime.history("r")
    assert len(history) == len(list(history)) == 7
    assert history[0].event == "submitted"
    assert [each.event for each in history[-2:]] == ["timer_fired", "succeeded"]
    assert repr(history) == "<history of r, 7 happenings>"
