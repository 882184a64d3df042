"""Changed code that contradicts a journal is found out before any of it has an effect.

Each kind of call is replaced, removed, moved, or gets another in front of it, after it has its
outcome and while it has only begun, in each place where a workflow can ask for it.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Continue,
    Graph,
    NodeInput,
    PermanentError,
    Retry,
    Runtime,
    State,
    StepFailed,
    Succeed,
    TransientError,
    Turn,
    Workflow,
    machine,
    step,
    workflow,
)
from keyrun.graphs import durable
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime

Code = Callable[[Context], Awaitable[Any]]
effects: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    effects.clear()


def effect(name: str) -> Any:
    """A step that has an effect."""

    @step(name=name)
    async def act(given: Any = None) -> str:
        effects.append(name)
        return name

    return act


first, ship, invoice, quick = map(effect, ("first", "ship", "invoice", "quick"))


@step(retry=Retry.fixed(max_attempts=5, delay=500, jitter=0))
async def flaky() -> None:
    raise TransientError("later")


@step(retry=Retry.none())
async def refuse() -> None:
    raise PermanentError("refused")


@step
async def long() -> None:
    await trio.sleep(500)


@step(compensate=effect("undo"))
async def undoable() -> None:
    pass


@workflow
async def nap(ctx: Context, seconds: float) -> None:
    await ctx.sleep(seconds)


async def a_block(ctx: Context, seconds: float) -> None:
    with ctx.move_on_after(1000):
        await ctx.sleep(seconds)


async def a_strict_block(ctx: Context, seconds: float) -> None:
    with ctx.fail_after(1000):
        await ctx.sleep(seconds)


async def an_expired_block(ctx: Context) -> None:
    with ctx.move_on_after(1):
        await ctx.sleep(100)


async def branches(ctx: Context, seconds: float) -> None:
    async def waits(ctx: Context) -> None:
        await ctx.sleep(seconds)

    await ctx.gather(ctx.step(quick), waits)


async def failed_branches(ctx: Context) -> None:
    async def waits(ctx: Context) -> None:
        await ctx.sleep(100)

    with suppress(StepFailed):
        await ctx.gather(waits, ctx.step(refuse))


async def refused(ctx: Context) -> None:
    with suppress(StepFailed):
        await ctx.step(refuse)


async def the_time(ctx: Context) -> None:
    ctx.now()


ENDED: dict[str, Code] = {
    "step": lambda ctx: ctx.step(quick),
    "step that failed": refused,
    "step with a compensation": lambda ctx: ctx.step(undoable),
    "timer": lambda ctx: ctx.sleep(1),
    "signal": lambda ctx: ctx.wait_signal("sent"),
    "approval": lambda ctx: ctx.approval("open"),
    "child": lambda ctx: ctx.child(nap, 1, key="other"),
    "child inside": lambda ctx: ctx.child(nap, 1),
    "gather": lambda ctx: branches(ctx, 1),
    "gather that failed": failed_branches,
    "move_on_after": lambda ctx: a_block(ctx, 1),
    "move_on_after that expired": an_expired_block,
    "fail_after": lambda ctx: a_strict_block(ctx, 1),
    "now": the_time,
}
BEGUN: dict[str, Code] = {
    "step between attempts": lambda ctx: ctx.step(flaky),
    "interrupted step": lambda ctx: ctx.step(long),
    "timer": lambda ctx: ctx.sleep(500),
    "signal": lambda ctx: ctx.wait_signal("never sent"),
    "approval": lambda ctx: ctx.approval("shut"),
    "child": lambda ctx: ctx.child(nap, 500, key="other"),
    "child inside": lambda ctx: ctx.child(nap, 500),
    "gather": lambda ctx: branches(ctx, 500),
    "move_on_after": lambda ctx: a_block(ctx, 500),
    "fail_after": lambda ctx: a_strict_block(ctx, 500),
}


async def hold(ctx: Context) -> None:
    await ctx.wait_signal("hold")


async def go(ctx: Context) -> None:
    await ctx.step(ship)
    await ctx.step(invoice)


def sequence(*calls: Code) -> Code:
    async def code(ctx: Context) -> None:
        for call in calls:
            await call(ctx)

    return code


async def begin(ctx: Context) -> None:
    await ctx.step(first)


def changes(call: Code, *, ended: bool) -> dict[str, Code]:
    """The code as it was, and what is made of it."""
    after = (hold,) if ended else ()
    new: Code = lambda ctx: ctx.step(ship)  # noqa: E731
    return {
        "as it was": sequence(begin, call, *after),
        "replaced": sequence(begin, new, *after, go),
        "replaced by a timer": sequence(begin, lambda ctx: ctx.sleep(0), *after, go),
        "removed": sequence(begin, go),
        "removed at the end": sequence(begin),
        "moved": sequence(call, begin, *after, go),
        "inserted": sequence(begin, new, call, *after, go),
        "inserted in branches": sequence(begin, lambda ctx: ctx.gather(go, go), call),
        "inserted in a child": sequence(begin, lambda ctx: ctx.child(_going), call),
        "in a branch": sequence(begin, lambda ctx: ctx.gather(call, go)),
        "continued": sequence(begin, _continue),
    }


@workflow
async def _going(ctx: Context) -> None:
    await go(ctx)


async def _continue(ctx: Context) -> None:
    ctx.continue_as()


CHANGES = [name for name in changes(go, ended=True) if name != "as it was"]


def in_function(code: Code) -> Code:
    return code


def in_branch(code: Code) -> Code:
    async def beside(ctx: Context) -> None:
        await ctx.step(quick)
        await ctx.wait_signal("beside")

    return lambda ctx: ctx.gather(beside, code)


def in_block(code: Code) -> Code:
    async def block(ctx: Context) -> None:
        with ctx.move_on_after(5000):
            await code(ctx)

    return block


def in_loop(code: Code) -> Code:
    async def loop(ctx: Context) -> None:
        for turn in range(3):
            await ctx.step(quick, turn)
            if turn == 2:
                await code(ctx)

    return loop


def in_child(code: Code) -> Code:
    @workflow(name="part")
    async def part(ctx: Context) -> None:
        await code(ctx)

    return lambda ctx: ctx.child(part)


PLACES = {"function": in_function, "branch": in_branch, "block": in_block, "loop": in_loop}
PLACES["child"] = in_child


def make(place: str, code: Code) -> Workflow[Any, Any]:
    if place == "node":
        graph = Graph("flow")

        @durable
        async def node(ctx: Context, given: NodeInput) -> None:
            await code(ctx)

        graph.node("quick", quick)
        graph.node("node", node)
        graph.edge("quick", "node")
        return graph
    placed = PLACES[place](code)

    @workflow(name="flow")
    async def flow(ctx: Context) -> None:
        await placed(ctx)

    return flow


async def drive(
    old: Workflow[Any, Any], new: Workflow[Any, Any], *, crash: bool
) -> tuple[State, str]:
    """How a run stands that was begun by one workflow and then driven by another."""
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[old, nap], evict_after=1e6) as runtime:
        await runtime.submit(old, key="k", run_id="r")
        await trio.sleep(0.5)
        await _open_all(runtime)
        await trio.sleep(20)
        if crash:
            store.crash()
    effects.clear()
    async with open_test_runtime(store, workflows=[new, nap]) as runtime:
        await trio.sleep(100)
        status = await runtime.status("r")
    assert status is not None
    return status.state, status.reason or ""


async def _open_all(runtime: Runtime) -> None:
    await runtime.signal("r", "sent")
    status = await runtime.status("r")
    if status is not None and "approval" in (status.waiting_on or ""):
        gate = (status.waiting_on or "").partition("approval ")[2].split(",")[0]
        if "open" in gate:
            await runtime.approve("r", gate, by="me")


@pytest.mark.parametrize("place", [*PLACES, "node"])
@pytest.mark.parametrize("when", ["ended", "begun", "begun, crashed"])
async def test_code_that_was_not_changed_resumes(
    autojump_clock: MockClock, place: str, when: str
) -> None:
    ended = when == "ended"
    for name, call in (ENDED if ended else BEGUN).items():
        code = changes(call, ended=ended)["as it was"]
        state, reason = await drive(
            make(place, code), make(place, code), crash=when == "begun, crashed"
        )
        assert state in (State.WAITING, State.RUNNING), (name, reason)
        assert effects == [], name


@pytest.mark.parametrize("place", [*PLACES, "node"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["ended", "begun"])
async def test_changed_code_has_no_effect_before_it_is_found_out(
    autojump_clock: MockClock, place: str, change: str, when: str
) -> None:
    ended = when == "ended"
    for name, call in (ENDED if ended else BEGUN).items():
        if change == "continued" and (place == "child" or "compensation" in name):
            continue  # `continue_as` is refused there
        if name == "timer" and change == "replaced by a timer":
            continue  # the same call
        codes = changes(call, ended=ended)
        old, new = make(place, codes["as it was"]), make(place, codes[change])
        state, reason = await drive(old, new, crash=name == "interrupted step")
        assert state is State.QUARANTINED, (name, reason)
        assert "the journal" in reason, name
        assert effects == [], (name, reason)


@pytest.mark.parametrize(
    "other",
    [
        lambda ctx: ctx.child(nap, 500, key="elsewhere"),
        lambda ctx: ctx.child(nap, 501, key="other"),
        lambda ctx: ctx.child(_going, key="other"),
        lambda ctx: ctx.child(nap, 500),
    ],
    ids=["key", "input", "workflow", "inside"],
)
async def test_another_child_is_a_contradiction(autojump_clock: MockClock, other: Code) -> None:
    old = make("function", sequence(begin, BEGUN["child"]))
    new = make("function", sequence(begin, other, go))
    state, reason = await drive(old, new, crash=False)
    assert state is State.QUARANTINED
    assert "'child()'" in reason
    assert effects == []


async def test_a_gather_with_fewer_branches_is_a_contradiction(autojump_clock: MockClock) -> None:
    async def waits(ctx: Context) -> None:
        await ctx.sleep(500)

    old = make("function", lambda ctx: ctx.gather(waits, waits, waits))
    new = make("function", lambda ctx: ctx.gather(waits, waits))
    state, reason = await drive(old, new, crash=False)
    assert state is State.QUARANTINED
    assert "'g1.2/sleep()', which has begun, next" in reason


async def test_what_lost_a_race_may_be_removed(autojump_clock: MockClock) -> None:
    def losing(losers: Code) -> Code:
        async def code(ctx: Context) -> None:
            with suppress(StepFailed):
                await ctx.gather(ctx.step(refuse), losers)
            with ctx.move_on_after(1):
                await losers(ctx)
            await ctx.wait_signal("hold")

        return code

    async def asleep(ctx: Context) -> None:
        await ctx.sleep(100)

    async def deaf(ctx: Context) -> None:
        await ctx.approval("other")

    for old, new in ((asleep, deaf), (deaf, asleep)):
        state, reason = await drive(
            make("function", losing(old)), make("function", losing(new)), crash=False
        )
        assert state is State.WAITING, reason


async def test_a_step_that_a_trio_scope_cut_off_may_be_asked_for_again(
    autojump_clock: MockClock,
) -> None:
    async def code(ctx: Context) -> None:
        with trio.move_on_after(1):
            await ctx.step(long)
        await ctx.step(first)
        await ctx.wait_signal("hold")

    for crash in (False, True):
        state, reason = await drive(make("function", code), make("function", code), crash=crash)
        assert state is State.WAITING, reason
        assert effects == []


def turning() -> Workflow[Any, Any]:
    @machine(name="flow")
    async def turn(t: Turn) -> Any:
        effects.append("turn")
        return Continue(after=500) if t.number < 5 else Succeed()

    return turn


@pytest.mark.parametrize("when", ["ended", "begun"])
async def test_a_machine_is_no_function_and_no_graph(autojump_clock: MockClock, when: str) -> None:
    graph = Graph("flow")
    graph.node("ship", ship)
    flow = make("function", sequence(begin, BEGUN["timer"] if when == "begun" else hold))
    going = make("function", go)
    for old, new in ((turning(), going), (turning(), graph), (flow, turning()), (flow, graph)):
        state, reason = await drive(old, new, crash=False)
        assert state is State.QUARANTINED, reason
        assert effects == []


async def test_a_machine_takes_its_next_turn_with_the_code_of_today(
    autojump_clock: MockClock,
) -> None:
    assert (await drive(turning(), turning(), crash=False))[0] is State.WAITING


def graph_of(nodes: dict[str, Any], edges: list[tuple[str, str]]) -> Graph:
    graph = Graph("flow")
    for name, target in nodes.items():
        graph.node(name, target)
    for source, target in edges:
        graph.edge(source, target)
    return graph


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(
    ("nodes", "edges"),
    [
        ({"a": quick, "other": ship}, [("a", "other")]),
        ({"a": quick, "ship": ship, "b": flaky}, [("a", "ship"), ("ship", "b")]),
        ({"a": quick, "ship": ship}, []),
        ({"b": flaky, "a": quick, "ship": ship}, [("b", "a"), ("a", "ship")]),
        ({"a": quick}, []),
    ],
    ids=["replaced", "inserted", "removed", "moved", "ended"],
)
@pytest.mark.parametrize("begun", [flaky, long], ids=["between attempts", "interrupted"])
async def test_a_node_that_has_begun_is_expected(
    autojump_clock: MockClock, nodes: dict[str, Any], edges: Any, begun: Any, crash: bool
) -> None:
    @step(retry=Retry.fixed(max_attempts=5, delay=500, jitter=0))
    async def failing(given: NodeInput) -> None:
        raise TransientError("later")

    @step
    async def slow(given: NodeInput) -> None:
        await trio.sleep(500)

    target = failing if begun is flaky else slow
    if begun is long and not crash:
        return  # a drain leaves nothing of it in the journal
    old = graph_of({"a": quick, "b": target}, [("a", "b")])
    new = graph_of({name: target if each is flaky else each for name, each in nodes.items()}, edges)
    state, reason = await drive(old, new, crash=crash)
    assert state is State.QUARANTINED, reason
    assert "'b'" in reason or "'a'" in reason
    assert effects == []
    assert (await drive(old, old, crash=crash))[0] is not State.QUARANTINED


async def test_branches_hold_what_is_new_until_all_have_caught_up(
    autojump_clock: MockClock,
) -> None:
    """A branch that contradicts the journal late stops a branch beside it that does not."""

    def code(last: Code) -> Code:
        async def contradicts(ctx: Context) -> None:
            for _ in range(5):
                await ctx.step(quick)
            await last(ctx)

        async def agrees(ctx: Context) -> None:
            await ctx.step(quick)
            await ctx.step(ship)

        async def both(ctx: Context) -> None:
            await ctx.gather(agrees, contradicts)

        return both

    @step(name="ship")
    async def stuck() -> None:
        await trio.sleep_forever()

    def before(ctx: Context) -> Awaitable[Any]:
        async def agrees(ctx: Context) -> None:
            await ctx.step(quick)
            await trio.sleep_forever()

        async def waits(ctx: Context) -> None:
            for _ in range(5):
                await ctx.step(quick)
            await ctx.sleep(500)

        return ctx.gather(agrees, waits)

    new = make("function", code(lambda ctx: ctx.wait_signal("other")))
    state, _ = await drive(make("function", before), new, crash=True)
    assert state is State.QUARANTINED
    assert effects == []


async def test_a_step_that_its_block_cut_off_may_be_removed(autojump_clock: MockClock) -> None:
    def block(inside: Code) -> Code:
        async def code(ctx: Context) -> None:
            with ctx.move_on_after(1):
                await inside(ctx)
            await ctx.sleep(50)

        return code

    before = make("function", block(lambda ctx: ctx.step(long)))
    after = make("function", block(lambda ctx: ctx.wait_signal("never sent")))
    state, _ = await drive(before, after, crash=True)
    assert state is State.SUCCEEDED
