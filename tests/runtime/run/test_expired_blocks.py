"""Changed code in and behind a block that has expired: a contradiction is found before any of the
changed code has an effect, and code that was not changed resumes."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    ChildFailed,
    Context,
    Limits,
    NonDeterminism,
    PermanentError,
    Retry,
    RunFailed,
    ScopeTimeout,
    State,
    StepFailed,
    Workflow,
    step,
    workflow,
)
from keyrun.runtime.records.journal_entry import SCOPE_LEFT, CallDone, CallKind, JournalEntry, Note
from keyrun.status import History
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime, replay
from tests.runtime.run.test_contradictions import (
    BEGUN,
    ENDED,
    PLACES,
    Code,
    drive,
    effect,
    effects,
    go,
    hold,
    make,
    nap,
    sequence,
)

tidy = effect("tidy")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    effects.clear()


def move_on(code: Code) -> Code:
    async def block(ctx: Context) -> None:
        with ctx.move_on_after(1):
            await code(ctx)

    return block


def fail(code: Code) -> Code:
    async def block(ctx: Context) -> None:
        with suppress(ScopeTimeout), ctx.fail_after(1):
            await code(ctx)

    return block


def in_finished(code: Code) -> Code:
    """The block is inside of one that finishes."""

    async def block(ctx: Context) -> None:
        with ctx.move_on_after(5000):
            await move_on(code)(ctx)

    return block


def in_expired(code: Code) -> Code:
    """The block is inside of one that expires as well."""

    async def block(ctx: Context) -> None:
        with ctx.move_on_after(2):
            await move_on(code)(ctx)
            await ctx.wait_signal("never sent")

    return block


def around_expired(code: Code) -> Code:
    """The block has one inside that expires first."""

    async def inner(ctx: Context) -> None:
        with ctx.move_on_after(0.5):
            await ctx.wait_signal("never sent")
        await code(ctx)

    return move_on(inner)


BLOCKS: dict[str, Callable[[Code], Code]] = {
    "move_on_after": move_on,
    "fail_after": fail,
    "in one that finished": in_finished,
    "in one that expired": in_expired,
    "around one that expired": around_expired,
}
NAMES = list(BEGUN)


def pairs(place: str, block: str) -> list[tuple[str, str]]:
    """Calls in the block, and behind it: all of them in a function, some elsewhere."""
    if (place, block) == ("function", "move_on_after"):
        return [(inside, behind) for inside in NAMES for behind in NAMES]
    return [(name, NAMES[(at + 3) % len(NAMES)]) for at, name in enumerate(NAMES)]


async def deaf(ctx: Context) -> None:
    await ctx.approval("other")


everywhere = pytest.mark.parametrize(
    ("place", "block"),
    [
        *((place, "move_on_after") for place in [*PLACES, "node"]),
        *(("function", block) for block in BLOCKS if block != "move_on_after"),
        ("branch", "fail_after"),
        ("loop", "in one that expired"),
    ],
)


@everywhere
async def test_code_that_was_not_changed_resumes_behind_an_expired_block(
    autojump_clock: MockClock, place: str, block: str
) -> None:
    for inside, behind in pairs(place, block):
        flow = make(place, sequence(BLOCKS[block](BEGUN[inside]), BEGUN[behind]))
        for crash in (False, True):
            state, reason = await drive(flow, flow, crash=crash)
            assert state in (State.WAITING, State.RUNNING), (inside, behind, reason)
            assert effects == [], (inside, behind)


@everywhere
async def test_changed_code_in_an_expired_block_does_not_take_a_call_behind_it(
    autojump_clock: MockClock, place: str, block: str
) -> None:
    expires = BLOCKS[block]
    for inside, behind in pairs(place, block):
        old = make(place, sequence(expires(BEGUN[inside]), BEGUN[behind]))
        new = make(place, sequence(expires(BEGUN[behind]), go))
        state, reason = await drive(old, new, crash=behind == "interrupted step")
        assert state is State.QUARANTINED, (inside, behind, reason)
        assert effects == [], (inside, behind, reason)


@everywhere
@pytest.mark.parametrize("where", ["next", "later"])
async def test_a_call_that_an_expired_block_cut_off_is_not_started_behind_it(
    autojump_clock: MockClock, place: str, block: str, where: str
) -> None:
    expires = BLOCKS[block]
    for inside, call in BEGUN.items():
        after: Code = ENDED["step"]
        moved = (call, after) if where == "next" else (after, call)
        old = make(place, sequence(expires(call), after, hold))
        new = make(place, sequence(expires(deaf), *moved, go))
        state, reason = await drive(old, new, crash=False)
        assert state is State.QUARANTINED, (inside, reason)
        assert effects == [], (inside, reason)


async def test_a_call_that_an_expired_block_cut_off_is_not_started_at_the_end_of_the_journal(
    autojump_clock: MockClock,
) -> None:
    for inside, call in BEGUN.items():
        old = make("function", sequence(move_on(call), _stuck))
        new = make("function", sequence(move_on(deaf), call, go))
        state, reason = await drive(old, new, crash=True)
        assert state is State.QUARANTINED, (inside, reason)
        assert effects == [], (inside, reason)


async def _stuck(ctx: Context) -> None:
    await trio.sleep_forever()


async def test_what_an_expired_block_cut_off_may_be_replaced(autojump_clock: MockClock) -> None:
    for inside, call in BEGUN.items():
        if inside in ("signal", "approval", "gather"):
            continue  # then the calls behind it have other numbers, or a branch has an outcome
        old = make("function", sequence(move_on(call), hold))
        new = make("function", sequence(move_on(deaf), hold))
        state, reason = await drive(old, new, crash=False)
        assert state is State.WAITING, (inside, reason)


def tidied(*tidying: Code) -> Code:
    """A block that tidies up after it was cut off."""

    async def code(ctx: Context) -> None:
        try:
            await ctx.sleep(100)
        finally:
            with trio.CancelScope(shield=True):
                for each in tidying:
                    await each(ctx)

    return move_on(code)


def tidies(ctx: Context) -> Any:
    return ctx.step(tidy)


async def naps(ctx: Context) -> None:
    await ctx.sleep(1)


async def gathers(ctx: Context) -> None:
    await ctx.gather(tidies, naps)


@pytest.mark.parametrize("behind", ["approval", "signal", "child", "step between attempts"])
async def test_calls_that_tidy_an_expired_block_up_are_in_the_block(
    autojump_clock: MockClock, behind: str
) -> None:
    last = BEGUN[behind]
    for tidying in (tidies, naps, gathers):
        old = make("function", sequence(tidied(tidying), last))
        state, reason = await drive(old, old, crash=False)
        assert state is State.WAITING, reason
        for changed in (
            sequence(tidied(), tidying, last, go),
            sequence(tidied(), last, go),
            sequence(tidied(tidying, tidying), last, go),
            sequence(tidied(tidying, last), go),
            sequence(tidied(last, tidying), go),
            sequence(tidied(tidying), tidying, last, go),
        ):
            state, reason = await drive(old, make("function", changed), crash=False)
            assert state is State.QUARANTINED, reason
            assert effects == [], reason


@pytest.mark.parametrize("crash", [False, True])
async def test_a_block_that_has_expired_and_was_not_left_is_resumed(
    autojump_clock: MockClock, crash: bool
) -> None:
    def slowly(ctx: Context) -> Any:
        return ctx.sleep(50)

    old = make("function", sequence(tidied(tidies, slowly), hold))
    assert (await drive(old, old, crash=crash))[0] is State.WAITING
    new = make("function", sequence(tidied(), tidies, slowly, hold))
    state, reason = await drive(old, new, crash=crash)
    assert state is State.QUARANTINED
    assert "'tidy'" in reason
    assert effects == []


@pytest.mark.parametrize("place", [*PLACES, "node"])
async def test_a_redrive_comes_back_into_a_block_that_a_failure_left(
    autojump_clock: MockClock, place: str
) -> None:
    good = False

    @step(retry=Retry.none())
    async def sensitive() -> None:
        if not good:
            raise PermanentError("not yet")

    async def inside(ctx: Context) -> None:
        await ctx.step(sensitive)
        await ctx.step(tidy)
        await ctx.sleep(1)

    flow = make(place, sequence(tidied(inside), naps, hold))
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        good = True
        await runtime.redrive("r")
        await trio.sleep(20)
        await _is_waiting(runtime)
    for _ in range(2):
        async with open_test_runtime(store, workflows=[flow]) as runtime:
            await runtime.pause("r")
            await runtime.resume("r")
            await trio.sleep(20)
            await _is_waiting(runtime)
    assert effects.count("tidy") == 1


async def test_a_redrive_takes_code_whose_error_in_an_expired_block_was_fixed(
    autojump_clock: MockClock,
) -> None:
    async def broken(ctx: Context) -> None:
        raise KeyError("a bug")

    old = make("function", sequence(tidied(tidies, broken), hold))
    new = make("function", sequence(tidied(tidies, gathers), hold))
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[old]) as runtime:
        run = await runtime.submit(old, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
    for _ in range(3):
        async with open_test_runtime(store, workflows=[new]) as runtime:
            status = await runtime.status("r")
            if status is not None and status.state is State.FAILED:
                await runtime.redrive("r")
            await runtime.pause("r")
            await runtime.resume("r")
            await trio.sleep(20)
            await _is_waiting(runtime)
    assert effects == ["tidy", "tidy"]


async def _is_waiting(runtime: Any) -> None:
    status = await runtime.status("r")
    assert status is not None
    assert status.state is State.WAITING, status.reason


async def _history(flow: Workflow[Any, Any]) -> History:
    async with open_test_runtime(workflows=[flow, nap]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(20)
        return await runtime.history("r")
    raise AssertionError("the block ended early")


async def test_a_replay_knows_where_a_block_was_left(autojump_clock: MockClock) -> None:
    history = await _history(make("function", sequence(move_on(BEGUN["timer"]), hold)))
    for fits in (BEGUN["timer"], deaf):
        flow = make("function", sequence(move_on(fits), hold))
        assert (await replay(history, flow)).state is State.RUNNING
    for changed in (
        sequence(move_on(hold), go),
        sequence(move_on(deaf), BEGUN["timer"], go),
    ):
        with pytest.raises(NonDeterminism):
            await replay(history, make("function", changed))


async def test_journals_of_an_earlier_keyrun_do_not_say_where_a_block_was_left(
    autojump_clock: MockClock,
) -> None:
    flow = make("function", sequence(tidied(tidies, naps), naps, hold))
    history = await _history(flow)
    records = history.whole()
    entries: list[tuple[int, JournalEntry]] = []
    for sequence_, entry in records.entries:
        if isinstance(entry, Note) and entry.what == SCOPE_LEFT:
            continue
        if isinstance(entry, CallDone) and entry.call is CallKind.SCOPE:
            entry = entry._replace(payload=entry.payload[:2])
        entries.append((sequence_, entry))
    assert len(entries) == len(records.entries) - 1
    earlier = History(attrs.evolve(records, entries=tuple(entries)))
    assert (await replay(earlier, flow)).state is State.RUNNING


async def test_a_step_that_failed_in_an_expired_block_is_handled_behind_it(
    autojump_clock: MockClock,
) -> None:
    @step(retry=Retry.none())
    async def sensitive() -> None:
        raise PermanentError("never")

    async def code(ctx: Context) -> None:
        with suppress(StepFailed):
            await tidied(lambda ctx: ctx.step(sensitive))(ctx)
        await naps(ctx)
        await hold(ctx)

    flow = make("function", code)
    assert (await drive(flow, flow, crash=False))[0] is State.WAITING


async def test_a_child_that_took_too_long_is_left_like_a_block(autojump_clock: MockClock) -> None:
    def code(inside: Code, behind: Code) -> Code:
        @workflow(name="part", limits=Limits(run_timeout=1))
        async def part(ctx: Context) -> None:
            await inside(ctx)

        async def parent(ctx: Context) -> None:
            with suppress(ChildFailed):
                await ctx.child(part)
            await behind(ctx)

        return parent

    old = make("function", code(BEGUN["timer"], hold))
    assert (await drive(old, old, crash=False))[0] is State.WAITING
    new = make("function", code(BEGUN["timer"], go))
    assert (await drive(old, new, crash=False))[0] is State.QUARANTINED
    assert effects == []


BESIDE = ["signal", "approval", "timer", "child", "step between attempts", "gather"]


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("nested", [False, True])
async def test_changed_code_is_found_while_a_branch_beside_it_waits(
    autojump_clock: MockClock, beside: str, nested: bool
) -> None:
    """What the branch beside it waits for does not bring the call back that is missing."""

    def branches(code: Code) -> Workflow[Any, Any]:
        async def outer(ctx: Context) -> None:
            await ctx.gather(ENDED["step"], code)

        return make("function", lambda ctx: ctx.gather(BEGUN[beside], outer if nested else code))

    old = branches(sequence(move_on(BEGUN["gather"]), hold))
    new = branches(sequence(move_on(deaf), hold, go))
    assert (await drive(old, old, crash=False))[0] is State.WAITING
    state, reason = await drive(old, new, crash=False)
    assert state is State.QUARANTINED
    assert "g1.0/quick' next, but " in reason
    assert effects == []


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("cut", ["signal", "timer", "interrupted step"])
async def test_a_trio_scope_in_an_expired_block_cuts_the_same_call_off_again(
    autojump_clock: MockClock, cut: str, crash: bool
) -> None:
    async def code(ctx: Context) -> None:
        with ctx.move_on_after(10):
            with trio.move_on_after(1):
                await BEGUN[cut](ctx)
            await ENDED["step"](ctx)
            await ctx.sleep(1000)
        await hold(ctx)

    async def beside(ctx: Context) -> None:
        await ctx.sleep(2)
        await ctx.gather(ENDED["step"], hold)

    for flow in (make("function", code), make("function", lambda ctx: ctx.gather(code, beside))):
        state, reason = await drive(flow, flow, crash=crash)
        assert state is State.WAITING, reason
        assert effects == []
