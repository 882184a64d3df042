"""What a user's code raises, whatever it is, ends its own run at most: no actor crashes by it."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, NoReturn

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Cancel,
    Context,
    Fail,
    FailureKind,
    PermanentError,
    Retry,
    RunCancelled,
    RunFailed,
    RunQuarantined,
    Runtime,
    State,
    Succeed,
    TransientError,
    Turn,
    Workflow,
    current_step,
    machine,
    step,
    workflow,
)
from keyrun.storage import MemoryStore, StoreCorrupt, StoreFull
from keyrun.testing import open_test_runtime


class Unspeakable(Exception):
    """Whatever is asked of it, it raises."""

    def __str__(self) -> NoReturn:
        raise ValueError("no str")

    def __repr__(self) -> NoReturn:
        raise ValueError("no repr")

    def __eq__(self, other: object) -> NoReturn:
        raise ValueError("no eq")

    def __hash__(self) -> NoReturn:
        raise ValueError("no hash")

    def __bool__(self) -> NoReturn:
        raise ValueError("no bool")


class Unsayable(Exception):
    """Raises what is no Exception when it is asked what it says."""

    def __str__(self) -> NoReturn:
        raise Odd("odd")

    __repr__ = __str__


class Talking(Exception):
    """Has notes that cannot be had."""

    @property
    def __notes__(self) -> NoReturn:  # type: ignore[override]
        raise ValueError("no notes")


class Odd(BaseException):
    """Not an Exception, and not one of those that are meant to end the program."""


class Evasive(Exception):
    """Does not even say what it is."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise ValueError("no class")


def chained() -> Exception:
    error: Exception = Unspeakable()
    for _ in range(2000):
        following = ValueError("and so on")
        following.__cause__ = error
        error = following
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: ValueError("no"),
    "empty": lambda: Exception(),
    "transient": lambda: TransientError("no"),
    "permanent": lambda: PermanentError("no"),
    "unspeakable": Unspeakable,
    "unsayable": Unsayable,
    "talking": Talking,
    "evasive": Evasive,
    "surrogates": lambda: FileNotFoundError("caf\udce9.txt"),
    "huge": lambda: ValueError("x" * 1_000_000),
    "chained": chained,
    "group": lambda: ExceptionGroup("several", [ValueError("a"), Unspeakable()]),
    "base": lambda: Odd("odd"),
    "base group": lambda: BaseExceptionGroup("several", [Odd("odd"), ValueError("a")]),
    "stop": lambda: StopIteration(3),
    "async stop": lambda: StopAsyncIteration(),
    "recursion": lambda: RecursionError("deep"),
    "memory": lambda: MemoryError(),
    "assertion": lambda: AssertionError(),
    "store": lambda: StoreFull("the user's own store"),
    "corrupt": lambda: StoreCorrupt("the user's own", table="t", key=b"k"),
    "syntax": lambda: SyntaxError("bad", ("file", "line", None, "text")),  # type: ignore[arg-type]
    "cancelled too late": lambda: trio.TooSlowError(),
    "odd type": type("T", (Exception,), {"__module__": 7}),
}

SILENT = ("unspeakable", "unsayable", "group")
each_error = pytest.mark.parametrize("name", ERRORS)


@workflow
async def healthy(ctx: Context) -> str:
    return "well"


@contextmanager
def nothing_crashed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO)
    yield
    crashes = [r for r in caplog.records if getattr(r, "event", "") == "key_crashed"]
    assert crashes == []
    assert "crashed" not in caplog.text


async def check_failed(
    rt: Runtime, job: "Workflow[Any, Any]", *, kinds: set[FailureKind] | None = None
) -> None:
    """The run fails, and its key and the others go on."""
    run = await rt.submit(job, key="k", run_id="r")
    with pytest.raises(RunFailed) as caught:
        await run.result()
    assert kinds is None or caught.value.failure.kind in kinds
    status = await rt.status("r")
    assert status is not None
    assert status.state is State.FAILED
    assert [letter.run_id for letter in await rt.dead_letters()] == ["r"]
    assert await rt.history("r")
    assert await (await rt.submit(healthy, key="k")).result() == "well"
    assert await (await rt.submit(healthy, key="other")).result() == "well"


@each_error
async def test_an_error_of_the_workflow_itself_ends_its_run_only(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        raise ERRORS[name]()

    with nothing_crashed(caplog):
        async with open_test_runtime(workflows=[job, healthy]) as rt:
            await check_failed(rt, job, kinds={FailureKind.WORKFLOW_ERROR})


@each_error
@pytest.mark.parametrize("how", ["at once", "later", "in a thread", "in a branch"])
async def test_an_error_of_a_step_ends_its_run_only(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, name: str, how: str
) -> None:
    @step(retry=Retry.fixed(max_attempts=2, delay=1))
    async def fail() -> None:
        current_step().state["touched"] = True
        if how != "at once":
            await trio.sleep(1)
        raise ERRORS[name]()

    @step(retry=Retry.fixed(max_attempts=2, delay=1))
    def fail_in_thread() -> None:
        raise ERRORS[name]()

    @step
    async def count() -> int:
        state = current_step().state
        state["n"] = state.get("n", 0) + 1
        return int(state["n"])

    @workflow
    async def job(ctx: Context) -> None:
        if how == "in a branch":
            await ctx.gather(ctx.step(fail), ctx.step(fail.options(name="other")))
        elif how == "in a thread":
            await ctx.step(fail_in_thread)
        else:
            await ctx.step(fail)

    @workflow
    async def counting(ctx: Context) -> int:
        return await ctx.step(count)

    with nothing_crashed(caplog):
        async with open_test_runtime(workflows=[job, healthy, counting]) as rt:
            await check_failed(rt, job)
            assert await (await rt.submit(counting, key="k")).result() == 1
            assert rt.statistics().running_steps == 0


@pytest.mark.parametrize("name", [name for name in ERRORS if name not in SILENT])
async def test_an_error_in_a_nursery_of_the_workflow_ends_its_run_only(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Except for those that Trio itself cannot stand: it calls `repr` of what a child raised."""

    async def fail() -> None:
        raise ERRORS[name]()

    @workflow
    async def job(ctx: Context) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()

    with nothing_crashed(caplog):
        async with open_test_runtime(workflows=[job, healthy]) as rt:
            await check_failed(rt, job, kinds={FailureKind.WORKFLOW_ERROR})


class Stubborn:
    """A value that can be neither stored nor shown nor compared."""

    __str__ = __repr__ = Unspeakable.__str__
    __eq__ = Unspeakable.__eq__
    __hash__ = Unspeakable.__hash__


@pytest.mark.parametrize("where", ["result", "step", "argument", "memo", "state", "turn"])
async def test_a_value_that_refuses_everything_ends_its_run_only(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    @step(retry=Retry.fixed(max_attempts=2, delay=1))
    async def odd(value: Any = None) -> Any:
        current = current_step()
        if where == "memo":
            current.memo["a"] = []
            current.memo["a"].append(Stubborn())
            raise TransientError("with a memo that cannot be stored")
        if where == "state":
            current.state["a"] = []
            current.state["a"].append(Stubborn())
        if where == "argument":
            raise PermanentError("it is allowed to take anything")
        return Stubborn() if where == "step" else None

    @workflow
    async def job(ctx: Context) -> Any:
        await ctx.step(odd, Stubborn() if where == "argument" else None)
        return Stubborn()

    @machine(name="turning", retry=Retry.none())
    async def turning(turn: Turn) -> Any:
        return Stubborn()

    with nothing_crashed(caplog):
        async with open_test_runtime(workflows=[job, turning, healthy]) as rt:
            await check_failed(rt, turning if where == "turn" else job)


class Cipher:
    """A transform whose key service can be away, and then raises whatever it likes."""

    away: "Callable[[], BaseException] | None" = None
    only = b""
    """It is away only for what contains this."""

    def wrap(self, data: bytes) -> bytes:
        if self.away is not None and self.only in data:
            raise self.away()
        return data[::-1]

    def unwrap(self, data: bytes) -> bytes:
        return self.wrap(data[::-1])[::-1]


@pytest.mark.parametrize("name", ["plain", "unspeakable", "surrogates", "base", "store"])
@pytest.mark.parametrize("when", ["input", "step", "result"])
async def test_a_codec_that_fails_ends_or_quarantines_the_run_only(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, name: str, when: str
) -> None:
    cipher = Cipher()

    @step(retry=Retry.none())
    async def work() -> str:
        if when == "step":
            cipher.away = ERRORS[name]
        return "done"

    @workflow(name="job")
    async def job(ctx: Context, text: str = "") -> str:
        await ctx.step(work)
        cipher.away = ERRORS[name]
        return "done"

    with nothing_crashed(caplog):
        async with open_test_runtime(workflows=[job], transform=cipher) as rt:
            await rt.pause_all()
            run = await rt.submit(job, "x", key="k", run_id="r")
            if when == "input":
                cipher.away = ERRORS[name]
            await rt.resume_all()
            with pytest.raises(RunQuarantined if when == "input" else RunFailed):
                await run.result()
            cipher.away = None
            (status,) = await rt.runs()
            assert status.state is (State.QUARANTINED if when == "input" else State.FAILED)


@pytest.mark.parametrize("name", ["plain", "unspeakable", "surrogates"])
async def test_a_codec_that_fails_when_a_run_is_driven_again_quarantines_it_until_it_works(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """The workflow itself never sees it, so it cannot take another way because of it."""
    store, cipher = MemoryStore(), Cipher()

    @step
    async def work() -> str:
        return "done"

    @workflow
    async def job(ctx: Context) -> str:
        try:
            done = await ctx.step(work)
        except Exception:
            return "astray"
        await ctx.sleep(10)
        return done

    with nothing_crashed(caplog):
        async with open_test_runtime(
            store, workflows=[job], transform=cipher, evict_after=inf
        ) as rt:
            await rt.submit(job, key="k", run_id="r")
            await trio.sleep(5)
        cipher.away, cipher.only = ERRORS[name], b"done"
        async with open_test_runtime(store, workflows=[job], transform=cipher) as rt:
            run = await rt.submit(job, key="k", run_id="r")
            await trio.sleep(1)
            status = await run.status()
            assert status is not None
            assert status.state is State.QUARANTINED
            assert "an outcome of 'work' that its declared type cannot read" in str(status.reason)
            cipher.away = None
            assert await rt.redrive("r") == 1
            assert await run.result() == "done"


@pytest.mark.parametrize("reason", [7, None, Stubborn(), b"bytes"])
@pytest.mark.parametrize("verdict", ["fail", "cancel"])
async def test_a_reason_must_be_a_string(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, reason: Any, verdict: str
) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        getattr(ctx, verdict)(reason)

    @machine(name="turning", retry=Retry.none())
    async def turning(turn: Turn) -> Fail | Cancel | Succeed:
        return Fail(reason) if verdict == "fail" else Cancel(reason)

    with nothing_crashed(caplog):
        async with open_test_runtime(workflows=[job, turning]) as rt:
            for kind in (job, turning):
                run = await rt.submit(kind, key="k")
                with pytest.raises(RunFailed, match="reason must be a string"):
                    await run.result()


async def test_a_reason_may_hold_what_is_no_unicode(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    async def failing(ctx: Context) -> None:
        ctx.fail("caf\udce9")

    @workflow
    async def leaving(ctx: Context) -> None:
        ctx.cancel("caf\udce9")

    with nothing_crashed(caplog):
        async with open_test_runtime(workflows=[failing, leaving]) as rt:
            with pytest.raises(RunFailed, match=r"caf\\udce9"):
                await (await rt.submit(failing, key="k")).result()
            with pytest.raises(RunCancelled, match=r"caf\\udce9"):
                await (await rt.submit(leaving, key="k")).result()


async def test_a_log_handler_that_raises_disturbs_nobody(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> NoReturn:
            raise OSError("the log is full")

    @step(retry=Retry.fixed(max_attempts=2, delay=1))
    async def fail() -> None:
        raise ValueError("no")

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(fail)

    def raise_unspeakable(run: object) -> NoReturn:
        raise Unspeakable

    logger, handler = logging.getLogger("keyrun.runtime"), Broken()
    logger.addHandler(handler)
    try:
        async with open_test_runtime(workflows=[job, healthy]) as rt:
            await check_failed(rt, job)
            monkeypatch.setattr("keyrun.runtime.execution.driver._start", raise_unspeakable)
            await rt.submit(healthy, key="k")
            await trio.sleep(100)
            assert [key.key for key in await rt.keys(quarantined=True)] == ["k"]
    finally:
        logger.removeHandler(handler)


async def test_a_step_or_a_workflow_that_calls_exit_fails_by_itself(
    autojump_clock: MockClock,
) -> None:
    @step(retry=Retry.fixed(max_attempts=2, delay=1))
    async def leave(wait: bool) -> None:
        if wait:
            await trio.sleep(1)
        sys.exit(3)

    @workflow
    async def in_step(ctx: Context, wait: bool) -> None:
        await ctx.step(leave, wait)

    @workflow
    async def in_workflow(ctx: Context) -> None:
        sys.exit(4)

    async with open_test_runtime(workflows=[in_step, in_workflow]) as rt:
        for wait in (False, True):
            with pytest.raises(RunFailed, match=r"attempt 2 of 2.*sys\.exit\(3\)"):
                await (await rt.submit(in_step, wait, key="k")).result()
        with pytest.raises(RunFailed, match="SystemExit: 4"):
            await (await rt.submit(in_workflow, key="k")).result()


async def test_what_is_meant_for_the_program_ends_it(autojump_clock: MockClock) -> None:
    ending = KeyboardInterrupt

    @workflow
    async def job(ctx: Context) -> None:
        raise ending

    store = MemoryStore()
    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_test_runtime(store, workflows=[job]) as rt:
            await rt.submit(job, key="k", run_id="r")
            await trio.sleep_forever()
    assert caught.value.subgroup(ending) is not None


async def test_the_reason_names_what_is_in_a_group(autojump_clock: MockClock) -> None:
    @step(retry=Retry.none())
    async def crowd() -> None:
        inner = ExceptionGroup("inner", [KeyError("b"), OSError("c"), TypeError("d")])
        raise ExceptionGroup("outer", [ValueError("a"), inner])

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(crowd)

    async with open_test_runtime(workflows=[job]) as rt:
        with pytest.raises(RunFailed) as caught:
            await (await rt.submit(job, key="k")).result()
    assert caught.value.failure.reason.endswith("[ValueError: a; KeyError: 'b'; OSError: c, ...]")
