"""Whatever user code raises, wherever Keyrun calls it: a failure of its own run, and no more.

Only `KeyboardInterrupt` ends the runtime. In a step every other exception is a failed attempt; in
workflow code it is a `workflow_error`.
"""

import asyncio
import logging
import threading
import types
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from math import inf
from typing import Any, NoReturn

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Entity,
    FailureKind,
    Graph,
    NodeInput,
    Retry,
    RunFailed,
    Runtime,
    Succeed,
    Turn,
    Workflow,
    entity,
    machine,
    step,
    workflow,
)
from keyrun.graphs import durable
from keyrun.runtime.user_errors import has
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime

Raise = Callable[[], NoReturn]
TWICE = Retry.fixed(max_attempts=2, delay=1)


class Bare(BaseException):
    """No `Exception`, and unknown to everybody."""


def foreign_cancellation() -> BaseException:
    """A `trio.Cancelled` of a scope that is long gone, as a task that was cancelled leaves it."""
    found: list[BaseException] = []

    async def be_cancelled() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as error:
                found.append(error)

    # Another loop in a thread: this also works inside of a plain function.
    thread = threading.Thread(target=trio.run, args=(be_cancelled,))
    thread.start()
    thread.join()
    return found[0]


class Closed(ExceptionGroup[Exception]):
    """A group that does not show its exceptions."""

    @property
    def exceptions(self) -> NoReturn:
        raise OSError("closed")


class Nameless(type):
    @property
    def __name__(cls) -> NoReturn:  # type: ignore[override]
        raise OSError("no name")

    @property
    def __module__(cls) -> NoReturn:  # type: ignore[override]
        raise OSError("no module")


class NamelessError(Exception, metaclass=Nameless): ...


EXCEPTIONS: dict[str, Callable[[], BaseException]] = {
    "what a bug of Keyrun raises": lambda: KeyError("x"),
    "GeneratorExit": GeneratorExit,
    "SystemExit": lambda: SystemExit(3),
    "asyncio.CancelledError": asyncio.CancelledError,
    "a BaseException": lambda: Bare("bare"),
    "StopIteration": lambda: StopIteration(3),
    "StopAsyncIteration": StopAsyncIteration,
    "a foreign trio.Cancelled": foreign_cancellation,
    "a group of them": lambda: BaseExceptionGroup(
        "several",
        [GeneratorExit(), BaseExceptionGroup("more", [SystemExit(3), asyncio.CancelledError()])],
    ),
    "a group with an error": lambda: BaseExceptionGroup("two", [Bare("bare"), ValueError("no")]),
    "a group with a foreign trio.Cancelled": lambda: BaseExceptionGroup(
        "two", [foreign_cancellation(), ValueError("no")]
    ),
    "a group that does not show its exceptions": lambda: Closed("closed", [ValueError("no")]),
    "an exception without a name": NamelessError,
}


@attrs.frozen
class Place:
    """One place where Keyrun calls user code: a workflow that gets there."""

    make: Callable[[Raise], Workflow[Any, Any]]
    step: str | None = None
    """The step whose attempt fails; None where the workflow does."""
    kind: FailureKind = FailureKind.WORKFLOW_ERROR
    calls: int = 1
    """How often the code is called until the run has failed."""
    except_for: tuple[str, ...] = ()
    """Exceptions that do not get there."""


def in_workflow(body: Callable[[Raise], Callable[[Context], Any]]) -> Place:
    return Place(lambda fail: workflow(name="job")(body(fail)))


def in_step(make: Callable[[Raise], Any], *, how: str = "plain", **options: Any) -> Place:
    """A step with two attempts, called from a workflow in one of several ways."""

    def job(fail: Raise) -> Workflow[Any, Any]:
        made = step(name="fail", retry=TWICE, **options)(make(fail))

        async def plain(ctx: Context) -> None:
            await ctx.step(made)

        async def branch(ctx: Context) -> None:
            await ctx.gather(ctx.step(made), lambda ctx: ctx.sleep(100))

        async def scope(ctx: Context) -> None:
            with ctx.move_on_after(1000):
                await ctx.step(made)

        return workflow(name="job")({"plain": plain, "branch": branch, "scope": scope}[how])

    ident = {"plain": "fail", "branch": "g1.0/fail", "scope": "fail"}[how]
    return Place(job, step=ident, kind=FailureKind.STEP_FAILED, calls=2)


def at_once(fail: Raise) -> Any:
    async def function() -> None:
        fail()

    return function


def after_a_wait(fail: Raise) -> Any:
    async def function() -> None:
        await trio.sleep(1)
        fail()

    return function


def in_a_generator(fail: Raise) -> Any:
    async def wait() -> None:
        await trio.sleep(1)

    @types.coroutine
    def generator() -> Generator[Any, Any, None]:
        yield from wait().__await__()
        fail()

    async def function() -> None:
        await generator()

    return function


def in_a_thread(fail: Raise) -> Any:
    def function() -> None:
        fail()

    return function


def in_asyncio(fail: Raise) -> Any:
    async def function() -> None:
        await asyncio.sleep(0)
        fail()

    return function


def in_an_asyncio_task(fail: Raise) -> Any:
    async def inner() -> None:
        fail()

    async def function() -> None:
        await asyncio.create_task(inner())

    return function


def a_turn(fail: Raise) -> Workflow[Any, Any]:
    @machine(name="job", retry=TWICE)
    async def job(turn: Turn) -> Succeed:
        fail()

    return job


def a_node(make: Callable[[Raise], Any], **options: Any) -> Place:
    def job(fail: Raise) -> Workflow[Any, Any]:
        function = make(fail)
        graph = Graph("job")
        if asyncio.iscoroutinefunction(function):

            async def target(given: NodeInput) -> None:
                await function()

            graph.node("fail", target, retry=TWICE, **options)
        else:
            graph.node("fail", lambda given: function(), retry=TWICE, **options)
        graph.node("after", returns_nothing)
        graph.edge("fail", "after")
        return graph

    return Place(job, step="fail", kind=FailureKind.STEP_FAILED, calls=2)


async def returns_nothing(given: object) -> None: ...


def a_durable_node(fail: Raise) -> Workflow[Any, Any]:
    @durable
    async def code(ctx: Context, given: NodeInput) -> None:
        fail()

    graph = Graph("job")
    graph.node("code", code)
    return graph


def a_condition(fail: Raise) -> Workflow[Any, Any]:
    @attrs.define
    class Output:
        amount: int = 7
        looks: int = 0

        def __getattribute__(self, name: str) -> Any:
            if name == "amount":
                looks = object.__getattribute__(self, "looks") + 1
                object.__setattr__(self, "looks", looks)
                if looks > 1:  # the codec was first
                    fail()
            return object.__getattribute__(self, name)

    async def first(given: NodeInput) -> Output:
        return Output()

    first.__annotations__["return"] = Output
    graph = Graph("job")
    graph.node("first", first)
    graph.node("second", returns_nothing)
    graph.edge("first", "second", when="output.amount > 3")
    return graph


def a_value_of_a_step(fail: Raise) -> Workflow[Any, Any]:
    made = attrs.make_class("Made", {"amount": attrs.field(type=int)})

    class Odd(made):  # type: ignore[misc, valid-type]
        def __getattribute__(self, name: str) -> Any:
            if name == "amount":
                fail()
            return object.__getattribute__(self, name)

    async def odd() -> Any:
        return Odd(7)

    odd.__annotations__["return"] = Odd
    step_ = step(name="fail", retry=TWICE)(odd)

    @workflow(name="job")
    async def job(ctx: Context) -> None:
        await ctx.step(step_)

    return job


def a_result(fail: Raise) -> Workflow[Any, Any]:
    made = attrs.make_class("Made", {"amount": attrs.field(type=int)})

    class Odd(made):  # type: ignore[misc, valid-type]
        def __getattribute__(self, name: str) -> Any:
            if name == "amount":
                fail()
            return object.__getattribute__(self, name)

    async def job(ctx: Context) -> Any:
        return Odd(7)

    job.__annotations__["return"] = Odd
    return workflow(name="job")(job)


def a_str_of_an_error(fail: Raise) -> Any:
    class Unsayable(Exception):
        def __str__(self) -> str:
            fail()

        __repr__ = __str__

    async def function() -> None:
        try:
            str(Unsayable())
        finally:
            raise Unsayable

    return function


def a_type_in_retry_on(fail: Raise) -> Workflow[Any, Any]:
    class Meta(type):
        def __subclasscheck__(cls, other: type) -> bool:
            fail()

        __instancecheck__ = __subclasscheck__

    class Odd(Exception, metaclass=Meta): ...

    @step(name="fail", retry=Retry.fixed(max_attempts=2, delay=1, retry_on=(Odd,)))
    async def raising() -> None:
        raise ValueError("no")

    @workflow(name="job")
    async def job(ctx: Context) -> None:
        await ctx.step(raising)

    return job


def directly(fail: Raise) -> Any:
    async def job(ctx: Context) -> None:
        fail()

    return job


def after_a_timer(fail: Raise) -> Any:
    async def job(ctx: Context) -> None:
        await ctx.sleep(10)
        fail()

    return job


def in_finally(fail: Raise) -> Any:
    async def job(ctx: Context) -> None:
        try:
            await ctx.step(work)
            raise ValueError("first")
        finally:
            fail()

    return job


def in_a_nursery(fail: Raise) -> Any:
    async def inner() -> None:
        fail()

    async def job(ctx: Context) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inner)

    return job


def in_a_branch(fail: Raise) -> Any:
    async def bad(ctx: Context) -> None:
        await ctx.step(work)
        fail()

    async def job(ctx: Context) -> None:
        await ctx.gather(bad, lambda ctx: ctx.sleep(100))

    return job


def in_a_scope(fail: Raise) -> Any:
    async def job(ctx: Context) -> None:
        with ctx.move_on_after(1000):
            await ctx.step(work)
            fail()

    return job


def in_a_child(key: str | None) -> Callable[[Raise], Workflow[Any, Any]]:
    def make(fail: Raise) -> Workflow[Any, Any]:
        @workflow(name="part")
        async def part(ctx: Context) -> None:
            fail()

        @workflow(name="job")
        async def job(ctx: Context) -> None:
            await ctx.child(part, key=key)

        job.registers = part  # type: ignore[attr-defined]
        return job

    return make


@step
async def work() -> int:
    return 1


IN_NURSERY = ("a foreign trio.Cancelled", "a group with a foreign trio.Cancelled")
"""Trio itself swallows these: a nursery that one of its tasks failed in is cancelled."""

PLACES: dict[str, Place] = {
    "a step": in_step(at_once),
    "a step that waited": in_step(after_a_wait),
    "a step on a generator": in_step(in_a_generator),
    "a step in a branch": in_step(at_once, how="branch"),
    "a step in a branch that waited": in_step(after_a_wait, how="branch"),
    "a step in a scope": in_step(after_a_wait, how="scope"),
    "a shielded step": in_step(after_a_wait, shield=True),
    "a guarded step": in_step(at_once, max_concurrent=1),
    "a sync step": in_step(in_a_thread, timeout=None),
    "an abandoned sync step": in_step(in_a_thread, abandon=True, timeout=None),
    "an asyncio step": in_step(in_asyncio, asyncio=True),
    "a task of an asyncio step": in_step(in_an_asyncio_task, asyncio=True),
    "a turn": Place(a_turn, step="turn-0", kind=FailureKind.STEP_FAILED, calls=2),
    "a node": a_node(at_once),
    "a node that waited": a_node(after_a_wait),
    "a sync node": a_node(in_a_thread, timeout=None),
    "a guarded node": a_node(at_once, max_concurrent=1),
    "a value of a step": Place(
        a_value_of_a_step, step="fail", kind=FailureKind.PERMANENT_ERROR, calls=2
    ),
    "the text of an error": attrs.evolve(in_step(a_str_of_an_error), calls=4),
    "a type in retry_on": Place(a_type_in_retry_on),
    "a workflow": in_workflow(directly),
    "a workflow that waited": in_workflow(after_a_timer),
    "a workflow's finally": in_workflow(in_finally),
    "a workflow's nursery": attrs.evolve(in_workflow(in_a_nursery), except_for=IN_NURSERY),
    "a branch": in_workflow(in_a_branch),
    "a scope": in_workflow(in_a_scope),
    "a durable node": Place(a_durable_node, step="code"),
    "a condition": Place(a_condition),
    "a result": Place(a_result, calls=2),
    "a child": Place(in_a_child(None), step="child()", kind=FailureKind.CHILD_FAILED),
    "a child under another key": Place(
        in_a_child("elsewhere"), step="child()", kind=FailureKind.CHILD_FAILED
    ),
}


@workflow
async def healthy(ctx: Context) -> int:
    return await ctx.step(work)


class Fault:
    """Raises what it is told to, and counts."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        self._error = error
        self.calls = 0

    def __call__(self) -> NoReturn:
        self.calls += 1
        raise self._error()


def registered(job: Workflow[Any, Any]) -> list[Workflow[Any, Any]]:
    more = getattr(job, "registers", None)
    return [job, healthy] if more is None else [job, more, healthy]


@asynccontextmanager
async def nothing_crashes(
    caplog: pytest.LogCaptureFixture, **options: Any
) -> AsyncIterator[Runtime]:
    """A runtime that still serves the same key and others at its end, and never had to restart."""
    async with open_test_runtime(**options) as rt:
        yield rt
        for key in ("k", "other"):
            assert await (await rt.submit(healthy, key=key)).result() == 1
        assert rt.statistics().running_steps == 0
        assert not await rt.keys(quarantined=True)
    assert "key_crashed" not in {getattr(record, "event", "") for record in caplog.records}


@pytest.mark.parametrize("exception", EXCEPTIONS)
@pytest.mark.parametrize("place", PLACES)
async def test_any_exception_fails_its_own_run_only(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, place: str, exception: str
) -> None:
    at, fault = PLACES[place], Fault(EXCEPTIONS[exception])
    job = at.make(fault)
    if exception in at.except_for:
        return
    async with nothing_crashes(caplog, workflows=registered(job)) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        with pytest.raises(RunFailed) as caught:
            await run.result()
        failure = caught.value.failure
        assert (failure.step, failure.kind) == (at.step, at.kind), failure.reason
        assert fault.calls >= at.calls
        letters = {letter.run_id for letter in await rt.dead_letters()}
        assert "r" in letters


@pytest.mark.parametrize("place", PLACES)
async def test_a_keyboard_interrupt_ends_the_runtime(autojump_clock: MockClock, place: str) -> None:
    at, fault = PLACES[place], Fault(KeyboardInterrupt)
    job = at.make(fault)
    with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)) as caught:
        async with open_test_runtime(workflows=registered(job)) as rt:
            await rt.submit(job, key="k", run_id="r")
            await trio.sleep_forever()
    assert has(caught.value, KeyboardInterrupt)


@pytest.mark.parametrize("exception", EXCEPTIONS)
@pytest.mark.parametrize("request_id", [None, "once"])
@pytest.mark.parametrize("waits", [False, True])
async def test_any_exception_of_an_entity_fails_its_call_only(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    exception: str,
    request_id: str | None,
    waits: bool,
) -> None:
    fault = Fault(EXCEPTIONS[exception])

    @entity
    class Account(Entity):
        async def fail(self) -> None:
            self.state["touched"] = True
            if waits:
                await trio.sleep(1)
            fault()

        async def touched(self) -> bool:
            return "touched" in self.state

    async with nothing_crashes(caplog, workflows=[healthy], entities=[Account]) as rt:
        with pytest.raises(Exception) as caught:  # noqa: PT011 (any)
            await rt.entity(Account, "k", request_id=request_id).fail()
        kinds = ("Stop", "what a bug", "a group that", "an exception")
        itself = exception.startswith(kinds) and request_id is None
        assert itself or "Account.fail" in str(caught.value), exception
        assert not await rt.entity(Account, "k").touched()


@pytest.mark.parametrize("exception", EXCEPTIONS)
async def test_any_exception_of_a_compensation_is_a_failed_attempt_of_it(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, exception: str
) -> None:
    fault = Fault(EXCEPTIONS[exception])

    @step(name="undo", retry=TWICE)
    async def undo(given: Any) -> None:
        fault()

    @step(compensate=undo)
    async def book() -> None: ...

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(book)
        ctx.fail("no")

    async with nothing_crashes(caplog, workflows=[job, healthy]) as rt:
        with pytest.raises(RunFailed) as caught:
            await (await rt.submit(job, key="k")).result()
        assert caught.value.failure.left == ("book",)
        assert fault.calls == 2


class Cipher:
    """A transform that fails while it is armed."""

    fault: Fault | None = None

    def wrap(self, data: bytes, /) -> bytes:
        if self.fault is not None:
            self.fault()
        return data[::-1]

    unwrap = wrap


@pytest.mark.parametrize("exception", EXCEPTIONS)
@pytest.mark.parametrize("when", ["input", "step", "result", "signal"])
async def test_any_exception_of_a_transform_fails_its_own_run_only(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, exception: str, when: str
) -> None:
    cipher, fault = Cipher(), Fault(EXCEPTIONS[exception])

    @step(retry=Retry.none())
    async def break_it() -> str:
        cipher.fault = fault if when == "step" else None
        return "done"

    @workflow
    async def job(ctx: Context, text: str) -> str:
        await ctx.step(break_it)
        if when == "signal":
            await ctx.wait_signal("go")
        cipher.fault = fault
        return "done"

    options = {"transform": cipher, "evict_after": inf}
    async with nothing_crashes(caplog, workflows=[job, healthy], **options) as rt:
        await rt.pause_all()
        run = await rt.submit(job, "x", key="k", run_id="r")
        cipher.fault = fault if when == "input" else None
        await rt.resume_all()
        if when == "signal":
            await trio.sleep(10)
            await rt.signal("r", "go", "payload")
            cipher.fault = fault
        if when == "input":
            # The workflow has not begun, and the code can be fixed.
            await trio.sleep(1)
            assert await rt.keys(quarantined=True)
            cipher.fault = None
            assert await rt.redrive("r") == 1
            await trio.sleep(1)
        with pytest.raises(RunFailed):
            await run.result()
        assert fault.calls
        cipher.fault = None


@pytest.mark.parametrize("exception", EXCEPTIONS)
async def test_any_exception_of_a_log_handler_disturbs_nothing(
    autojump_clock: MockClock, exception: str
) -> None:
    fault = Fault(EXCEPTIONS[exception])

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> NoReturn:
            fault()

    @step(retry=TWICE)
    async def fail() -> None:
        raise ValueError("no")

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(fail)

    logger, handler = logging.getLogger("keyrun.runtime"), Broken()
    logger.addHandler(handler)
    try:
        async with open_test_runtime(workflows=[job, healthy]) as rt:
            with pytest.raises(RunFailed):
                await (await rt.submit(job, key="k")).result()
            assert await (await rt.submit(healthy, key="k")).result() == 1
        assert fault.calls
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("exception", EXCEPTIONS)
async def test_any_exception_of_a_context_variable_disturbs_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, exception: str
) -> None:
    """Keyrun compares contexts to give each step a clean one."""
    fault = Fault(EXCEPTIONS[exception])

    class Odd:
        def __eq__(self, other: object) -> bool:
            fault()

        __hash__ = None  # type: ignore[assignment]

    variable: ContextVar[Odd] = ContextVar("odd")
    variable.set(Odd())

    @workflow
    async def job(ctx: Context) -> None:
        variable.set(Odd())
        await ctx.sleep(1)

    async with nothing_crashes(caplog, workflows=[job, healthy]) as rt:
        for key in ("k", "k", "l"):
            await (await rt.submit(job, key=key)).result()


@pytest.mark.parametrize("exception", EXCEPTIONS)
async def test_a_dead_letter_of_any_exception_is_one_after_a_restart_too(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, exception: str
) -> None:
    store, fault = MemoryStore(), Fault(EXCEPTIONS[exception])

    @step(retry=Retry.fixed(max_attempts=2, delay=100))
    async def fail() -> None:
        fault()

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(fail)

    async with open_test_runtime(store, workflows=[job, healthy]) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep(1)
    async with nothing_crashes(caplog, store=store, workflows=[job, healthy]) as rt:
        with pytest.raises(RunFailed) as caught:
            await (await rt.submit(job, key="k", run_id="r")).result()
        assert caught.value.failure.attempt == fault.calls == 2


def test_the_default_policy_retries_every_exception() -> None:
    for make in EXCEPTIONS.values():
        assert Retry.fixed().retries(make())
    assert not Retry.fixed(retry_on=(Exception,)).retries(GeneratorExit())
    assert not Retry.fixed(never_retry_on=(SystemExit,)).retries(
        BaseExceptionGroup("", [SystemExit(), ValueError()])
    )
