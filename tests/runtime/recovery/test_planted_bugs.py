"""A bug of Keyrun never fails a run, wherever on the path of the run the bug is.

A trace of one run of each kind finds the functions of Keyrun that are called in the tasks of the
key's actor. Then the run is repeated once for each of these functions, and the first call of the
function raises what `{}["x"]` raises. The bug must be reported, and the run must not have failed.
"""

import gc
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import keyrun
from keyrun import (
    Compensation,
    Context,
    Continue,
    Entity,
    FailureKind,
    Graph,
    NodeInput,
    Retry,
    RunFailed,
    RunQuarantined,
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
from keyrun.actors import checks
from keyrun.graphs import durable
from keyrun.runtime import internal_errors
from keyrun.runtime.events import logs
from keyrun.runtime.queue.key_actor import KeyActor
from keyrun.runtime.user_errors import has
from keyrun.storage import MemoryStore, payload
from keyrun.testing import open_test_runtime

ROOT = Path(keyrun.__file__).parent
SOON = Retry.fixed(max_attempts=3, delay=1)


@step
async def quick(number: int = 1) -> int:
    return number


@step
async def slow() -> int:
    await trio.sleep(1)
    return 1


@step(retry=SOON)
async def stateful() -> int:
    current = current_step()
    if current.attempt == 1:
        current.memo["tried"] = 1
        current.report(50, "half")
        raise OSError("away")
    current.state["count"] = 1
    return int(current.memo["tried"])


@step(max_concurrent=1)
async def limited() -> int:
    return 1


@workflow
async def steps(ctx: Context) -> int:
    ctx.report(10, "begun")
    total = await ctx.step(quick) + await ctx.step(slow)
    total += await ctx.step(stateful) + await ctx.step(limited)
    if ctx.patched("new") and ctx.now() and ctx.random() < 1 and ctx.uuid4():
        total += 1
    await ctx.checkpoint()
    return total


@workflow
async def branches(ctx: Context) -> int:
    async def branch(ctx: Context) -> int:
        await ctx.sleep(2)
        return await ctx.step(quick)

    async def losing(ctx: Context) -> None:
        await ctx.sleep(1)
        raise OSError("lost")

    total = sum(await ctx.gather(ctx.step(slow), branch))
    try:
        await ctx.gather(losing, branch)
    except OSError:
        total += 1
    return total


@workflow
async def scopes(ctx: Context) -> int:
    with ctx.move_on_after(1) as scope:
        await ctx.sleep(10)
    with ctx.fail_after(10):
        await ctx.step(slow)
    return int(scope.expired)


@workflow
async def receiving(ctx: Context) -> int:
    number = await ctx.wait_signal("number")
    await ctx.approval("manager")
    return int(number)


@workflow
async def part(ctx: Context, number: int) -> int:
    return await ctx.step(quick, number)


@workflow
async def parent(ctx: Context) -> int:
    return await ctx.child(part, 1) + await ctx.child(part, 2, key="other")


@workflow
async def looping(ctx: Context, left: int) -> int:
    await ctx.step(quick)
    if left:
        ctx.continue_as(left - 1)
    return left


async def undo(given: Compensation) -> None:
    await trio.sleep(1)


@step(compensate=undo)
async def book() -> None: ...


@workflow
async def compensating(ctx: Context) -> None:
    await ctx.step(book)
    ctx.fail("enough")


SECOND = Continue(1, after=1)
THIRD = Continue(2, on_signal="go", timeout=5)
LAST = Succeed(3)


@machine(name="turning")
async def turning(turn: Turn) -> Any:
    return (SECOND, THIRD, LAST)[turn.number]


async def first(given: NodeInput) -> dict[str, int]:
    return {"amount": 7}


async def second(given: NodeInput) -> int:
    await trio.sleep(1)
    return int(given.output["amount"])


@durable
async def code(ctx: Context, given: NodeInput) -> int:
    return await ctx.step(quick)


def graph() -> Workflow[Any, Any]:
    made = Graph("graph")
    made.node("first", first)
    made.node("second", second)
    made.node("code", code)
    made.edge("first", "second", when="output.amount > 3")
    made.edge("first", "code", when="output.amount + size(outputs) > 3")
    return made


@entity
class Account(Entity):
    async def set(self, amount: int) -> int:
        self.state["sum"] = amount
        return int(self.state["sum"])

    async def wait(self) -> int:
        await trio.sleep(1)
        return int(self.state["sum"])


WORKFLOWS: list[Workflow[Any, Any]] = [
    steps,
    branches,
    scopes,
    receiving,
    part,
    parent,
    looping,
    compensating,
    turning,
    graph(),
]


async def submit(rt: Runtime, name: str, input_: Any = None) -> Any:
    flow = next(flow for flow in WORKFLOWS if flow.name == name)
    return await (await rt.submit(flow, input_, key="k", run_id="r")).result()


async def receive(rt: Runtime) -> Any:
    run = await rt.submit(receiving, key="k", run_id="r")
    await rt.signal("r", "number", 7, signal_id="once")
    while (status := await rt.status("r")) is None or status.waiting_on != "approval manager":
        await trio.sleep(1)
    await rt.approve("r", "manager", by="me")
    return await run.result()


async def compensate(rt: Runtime) -> str:
    try:
        await submit(rt, "compensating")
    except RunFailed as error:
        return f"{error.failure.kind} {error.failure.reason} {error.failure.left}"
    return "not compensated"


async def call(rt: Runtime) -> Any:
    account = rt.entity(Account, "k", request_id="once")
    return [await account.set(2), await rt.entity(Account, "k").wait()]


KINDS: dict[str, tuple[Callable[[Runtime], Awaitable[Any]], Any]] = {
    "steps": (lambda rt: submit(rt, "steps"), 5),
    "branches": (lambda rt: submit(rt, "branches"), 3),
    "scopes": (lambda rt: submit(rt, "scopes"), 1),
    "signals": (receive, 7),
    "children": (lambda rt: submit(rt, "parent"), 3),
    "continue_as": (lambda rt: submit(rt, "looping", 2), 0),
    "compensation": (compensate, "verdict enough ()"),
    "machine": (lambda rt: submit(rt, "turning"), 3),
    "graph": (lambda rt: submit(rt, "graph"), {"second": 7, "code": 1}),
    "entity": (call, [2, 2]),
}


class Planted(KeyError):
    """What a bug of Keyrun raises."""


RECEIVE = KeyActor.receive.__code__


@attrs.define
class Tracer:
    """A profile function. It notes which functions of Keyrun are called on the path of a run, or
    raises in the first call of `target`."""

    target: CodeType | None = None
    found: dict[CodeType, None] = attrs.Factory(dict)
    hit: bool = False
    _actors: set[trio.lowlevel.Task] = attrs.Factory(set)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or (
            self.target is not None and code is not self.target and code is not RECEIVE
        ):
            return
        if self.hit or not _is_ours(code) or not _begins(frame):
            return
        try:
            task = trio.lowlevel.current_task()
        except RuntimeError:
            return
        if code is RECEIVE:
            self._actors.add(task)
        elif self._is_on_the_path(frame, task) and _is_behind_a_guard(frame):
            self.found[code] = None
            if code is self.target:
                self.hit = True
                raise Planted("x")

    def _is_on_the_path(self, frame: FrameType | None, task: trio.lowlevel.Task | None) -> bool:
        """Return whether the actor of a key makes the call, or a task that it started."""
        if task in self._actors:
            while frame is not None and frame.f_code is not RECEIVE:
                frame = frame.f_back
            return frame is not None
        while task is not None and task not in self._actors:
            task = task.parent_nursery and task.parent_nursery.parent_task
        return task is not None


@cache
def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(f"{ROOT}/")


def _begins(frame: FrameType) -> bool:
    """Return whether a frame is at its start, and not resumed after an `await` or a `yield`."""
    # The argument of the instruction RESUME.
    return frame.f_code.co_code[frame.f_lasti + 1] == 0


def _is_behind_a_guard(frame: FrameType) -> bool:
    """Return whether what a call raises has to be taken for Keyrun's own.

    It has not in a function that user code calls or that has a guard itself, and in its checks of
    arguments. Nor in the guard, in the log, which drops its own errors, in the codec, which calls
    classes of users, and in `unseal`, which takes every error for a damaged record.
    """
    back = frame.f_back
    if back is None or back.f_code.co_filename == __file__:
        return False
    if not GUARDS.isdisjoint(frame.f_code.co_names):
        return False
    each: FrameType | None = frame
    while each is not None and each.f_code.co_filename != __file__:
        name = each.f_code.co_qualname
        if name.startswith("check") or name in CHECKS or name in SPECIAL or "Guard." in name:
            return False
        if each.f_globals["__name__"] in EXEMPT:
            return False
        each = each.f_back
    return True


GUARDS = frozenset({"INTERNAL_CODE", "guard", "guarded", "check_internal"})
CHECKS = ("a_reason", "as_step", "CurrentStep._check")
SPECIAL = ("<module>", "Run.guard", "Run.guarded", "unseal")
EXEMPT = (internal_errors.__name__, logs.__name__, payload.__name__, checks.__name__)


@attrs.define
class Outcome:
    """How a run came out that met a planted bug."""

    result: Any = None
    """None if the run did not end."""
    failures: set[FailureKind] = attrs.Factory(set)
    letters: int = 0
    """How many dead letters there are."""
    raised: bool = False
    """Whether the runtime ended with the bug, or the caller of an entity got it."""


async def _run(scenario: Callable[[Runtime], Awaitable[Any]], outcome: Outcome) -> None:
    store = MemoryStore()
    for _ in range(3):
        try:
            async with open_test_runtime(store, workflows=WORKFLOWS, entities=[Account]) as rt:
                with trio.move_on_after(1000), suppress(RunFailed, RunQuarantined):
                    outcome.result = await scenario(rt)
                ended = await rt.runs(state=State.FAILED)
                outcome.failures = {each.failure.kind for each in ended if each.failure}
                outcome.letters = len(await rt.dead_letters())
                return
        except BaseException as error:
            if not has(error, Planted):
                raise
            outcome.raised = True


def play(kind: str, tracer: Tracer) -> Outcome:
    """Run the scenario of a kind once, on virtual time."""
    outcome = Outcome()
    sys.setprofile(tracer)
    try:
        trio.run(_run, KINDS[kind][0], outcome, clock=MockClock(autojump_threshold=0))
    finally:
        sys.setprofile(None)
    return outcome


def is_report(record: logging.LogRecord) -> bool:
    """Return whether a line of the log tells of the bug as an error of Keyrun."""
    error = None if record.exc_info is None else record.exc_info[1]
    return error is not None and has(error, Planted)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("kind", KINDS)
def test_a_bug_in_any_function_on_the_path_of_a_run_is_never_a_failure_of_the_run(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    traced = Tracer()
    expected = play(kind, traced)
    assert expected.result == KINDS[kind][1]
    assert not expected.letters
    assert len(traced.found) > 30
    wrong = {}
    for code in traced.found:
        caplog.clear()
        tracer = Tracer(code)
        found = play(kind, tracer)
        name = f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_qualname}"
        if (
            found.letters
            or not found.failures <= expected.failures
            or found.result not in (expected.result, None)
        ):
            wrong[name] = str(found)
        elif tracer.hit and not found.raised and not any(map(is_report, caplog.records)):
            wrong[name] = "not reported"
    # Coroutines that a bug left behind are not to be reported in another test.
    gc.collect()
    assert not wrong
