"""The log: transitions at INFO, dead letters at ERROR, and the same fields in every line."""

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Limits,
    PermanentError,
    Retry,
    RunCancelled,
    RunFailed,
    RunOutcome,
    TransientError,
    current_step,
    step,
    workflow,
)
from keyrun.runtime.events.logs import log_key
from keyrun.storage import LmdbStore, MemoryStore
from keyrun.testing import CrashingMemoryStore, open_test_runtime

ROOT = Path(__file__).parents[3]
FIELDS = ("run", "key", "workflow", "step", "attempt", "event")
SOON = Retry.fixed(max_attempts=2, delay=3, jitter=0)


@step
async def quick() -> None: ...


@step(retry=SOON)
async def flaky() -> None:
    if current_step().attempt == 1:
        raise TransientError("again")


@step
async def refuse() -> None:
    raise PermanentError("out of stock")


@workflow
async def checkout(ctx: Context) -> None:
    await ctx.step(quick)
    await ctx.sleep(5)
    await ctx.step(quick)


@workflow
async def refused(ctx: Context) -> None:
    await ctx.step(refuse)


@workflow
async def parent(ctx: Context) -> None:
    await ctx.child(refused, key="other")


def of_runs(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [
        each
        for each in caplog.records
        if each.name == "keyrun.runtime" and getattr(each, "run", None) is not None
    ]


def transitions(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in of_runs(caplog) if each.levelno == logging.INFO]


@pytest.mark.parametrize("evict_after", [1.0, 60.0])
async def test_the_start_the_waits_and_the_end_of_a_run_are_logged_at_info(
    evict_after: float, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_test_runtime(workflows=[checkout], evict_after=evict_after) as runtime:
        await (await runtime.submit(checkout, key="ann", run_id="r")).result()
    assert transitions(caplog) == [
        "checkout run r (key ann): started",
        "checkout run r (key ann): waits for a timer, for 5.000 s",
        "checkout run r (key ann): resumed",
        "checkout run r (key ann): succeeded after 5.000 s and 2 steps",
    ]
    fields = [{name: getattr(each, name) for name in FIELDS} for each in of_runs(caplog)]
    assert [each["event"] for each in fields] == [
        "run_started",
        "run_waiting",
        "run_resumed",
        "run_succeeded",
    ]
    assert all((each["run"], each["key"]) == ("r", "ann") for each in fields)
    assert all(each["workflow"] == "checkout" for each in fields)


async def test_pauses_cancellations_redrives_and_restarts_are_logged_at_info(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[checkout, refused]) as runtime:
        run = await runtime.submit(checkout, key="k", run_id="r")
        await trio.sleep(0.1)
        await runtime.pause("r")
        await store.durable()
        store.crash()
    async with open_test_runtime(store, workflows=[checkout, refused]) as runtime:
        await runtime.resume("r")
        run = await runtime.submit(checkout, key="k", run_id="r")
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        dead = await runtime.submit(refused, key="k", run_id="dead")
        with pytest.raises(RunFailed):
            await dead.result()
        await runtime.redrive("dead")
        await trio.sleep(1)
    said = transitions(caplog)
    for each in ("paused", "resumed after a restart", "resumed", "is being cancelled"):
        assert f"checkout run r (key k): {each}" in said
    assert any(each.startswith("checkout run r (key k): cancelled after") for each in said)
    assert "refused run dead (key k): redriven in generation 2" in said
    assert "refused run dead (key k): started in generation 2" in said


async def test_without_info_nothing_is_built(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with open_test_runtime(workflows=[checkout]) as runtime:
        await (await runtime.submit(checkout, key="k", run_id="r")).result()
        assert runtime._partition.state.feed is None
    assert caplog.records == []


async def test_a_level_that_is_changed_while_the_runtime_is_open_counts(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_test_runtime(workflows=[checkout]) as runtime:
        await (await runtime.submit(checkout, key="k", run_id="silent")).result()
        caplog.set_level(logging.INFO)
        await (await runtime.submit(checkout, key="k", run_id="told")).result()
        caplog.set_level(logging.WARNING)
        await (await runtime.submit(checkout, key="k", run_id="silent-again")).result()
        assert runtime._partition.state.feed is None
    said = transitions(caplog)
    assert said[0] == "checkout run told (key k): started"
    assert {getattr(each, "run", None) for each in of_runs(caplog)} == {"told"}


async def test_an_end_is_not_logged_before_it_is_durable(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    @workflow
    async def short(ctx: Context, *_: Any) -> None:
        await ctx.step(quick)

    for flow in (short, refused):
        caplog.clear()
        store = CrashingMemoryStore()
        async with open_test_runtime(store, workflows=[flow]) as runtime:
            run = await runtime.submit(flow, key="k", run_id="r")
            store.crash_at(1, applied=False)
            await run.result()
        events = {getattr(each, "event", None) for each in of_runs(caplog)}
        assert not events & {"run_succeeded", "run_failed"}


async def test_a_dead_letter_is_logged_as_an_error_with_the_traceback_of_its_cause(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    async def broken(ctx: Context) -> None:
        raise KeyError("no such thing")

    async with open_test_runtime(workflows=[refused, parent, broken]) as runtime:
        for flow in (refused, parent, broken):
            with pytest.raises(RunFailed):
                await (await runtime.submit(flow, key="k", run_id=flow.name)).result()
    errors = {
        str(getattr(each, "run", None)): each
        for each in of_runs(caplog)
        if each.levelno == logging.ERROR
    }
    for name, last in (
        ("refused", "PermanentError: out of stock"),
        ("parent", "PermanentError: out of stock"),
        ("broken", "KeyError: 'no such thing'"),
    ):
        lines = errors[name].getMessage().splitlines()
        assert lines[0].startswith(
            f"{name} run {name} (key k): the run failed and is a dead letter"
        )
        assert "Traceback (most recent call last):" in lines
        assert lines[-1].endswith(last)
        assert getattr(errors[name], "event", None) == "run_failed"
    assert getattr(errors["refused"], "step", None) == "refuse"
    assert getattr(errors["refused"], "attempt", None) == 1


async def test_every_line_about_a_run_names_its_workflow(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    @step(timeout=1, retry=Retry.none())
    async def late() -> None:
        await trio.sleep(100)

    @workflow(limits=Limits(run_timeout=60))
    async def eventful(ctx: Context) -> None:
        await ctx.step(flaky)
        await ctx.step(late.options(timeout=300, retry=Retry.none()))

    async def hook(outcome: RunOutcome) -> None:
        raise RuntimeError("the hook fails")

    async with open_test_runtime(
        workflows=[eventful, refused], on_terminal=hook, drain_timeout=0
    ) as runtime:
        for flow in (eventful, refused):
            with pytest.raises(RunFailed):
                await (await runtime.submit(flow, key=flow.name, run_id=f"r-{flow.name}")).result()
        await trio.sleep(1)
    records = of_runs(caplog)
    assert {getattr(each, "event", None) for each in records} >= {
        "run_started",
        "run_waiting",
        "step_retrying",
        "step_failed",
        "timeout_clamped",
        "run_timeout",
        "run_failed",
        "hook_failed",
    }
    for each in records:
        name = str(getattr(each, "workflow", None))
        assert name in ("eventful", "refused")
        assert f"{name} run r-{name} (key {name})" in each.getMessage()


@pytest.mark.parametrize("reason", ["unregistered_workflows", "outcomes_waiting", "key_crashed"])
async def test_lines_that_are_not_about_one_run_have_the_same_fields(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    async def hook(outcome: RunOutcome) -> None: ...

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[checkout], on_terminal=hook) as rt:
        await rt.submit(checkout, key="k")
        await trio.sleep(1)
    caplog.clear()
    async with open_test_runtime(store, workflows=[]):
        if reason == "key_crashed":
            log_key("k", reason, "the key crashed")
    (record,) = [each for each in caplog.records if getattr(each, "event", None) == reason]
    formatter = logging.Formatter(" ".join(f"%({name})s" for name in FIELDS))
    key = "k" if reason == "key_crashed" else "None"
    assert formatter.format(record) == f"None {key} None None None {reason}"


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """The calls in a file that log a line, with the name of the function."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Name(id="log" | "log_key" | "fields" as name)):
                yield name, node
            case ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id="logger"))) if (
                name in LEVELS
            ):
                yield "logger", node


LEVELS = {"debug", "info", "warning", "error", "exception", "log"}
SOURCES = [
    path
    for folder in ("runtime", "keyrun/control", "keyrun/cli", "keyrun")
    for path in (ROOT / folder).glob("*.py" if folder == "keyrun" else "**/*.py")
]


def test_every_line_has_an_event_and_the_page_on_logs_lists_it() -> None:
    page = (ROOT / "docs/logs.md").read_text()
    table = page.partition("## Levels and events")[2].partition("## Fields")[0]
    listed = set(re.findall(r"`(\w+)`", table))
    words: dict[str, str] = {}
    for path in SOURCES:
        for name, call in calls(path):
            where = f"{path.relative_to(ROOT)}:{call.lineno}"
            extra = {each.arg: each.value for each in call.keywords}.get("extra")
            assert name != "logger" or extra is not None, f"{where} logs a line without an event"
            found = call.args[name != "fields"] if name != "logger" else None
            if isinstance(extra, ast.Dict):
                keys = [each.value for each in extra.keys if isinstance(each, ast.Constant)]
                assert "event" in keys, f"{where} logs a line without an event"
                found = extra.values[keys.index("event")]
            if isinstance(found, ast.Constant) and isinstance(found.value, str):
                words[found.value] = where
    assert len(words) > 50
    missing = {word: where for word, where in words.items() if word not in listed}
    assert missing == {}


async def test_lines_of_the_store_and_of_actors_have_the_fields_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    for name in ("keyrun.storage", "keyrun.actors"):
        logging.getLogger(name).warning("a line")
    formatter = logging.Formatter(" ".join(f"%({name})s" for name in FIELDS))
    assert [formatter.format(each) for each in caplog.records] == [" ".join(["None"] * 6)] * 2


async def test_an_open_its_recovery_and_its_drain_are_one_line_each(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    @workflow
    async def waits(ctx: Context) -> None:
        await ctx.wait_signal("go", timeout=1e6)

    @step
    async def slow() -> None:
        await trio.sleep(2)

    @workflow
    async def works(ctx: Context) -> None:
        await ctx.step(slow)

    def said() -> list[dict[str, Any]]:
        names = ("event", "store", "namespace", "workflows", "runs", "seconds")
        return [
            {name: getattr(record, name) for name in names if hasattr(record, name)}
            for record in caplog.records
            if str(record.event).startswith("runtime_")  # type: ignore[attr-defined]
        ]

    path = tmp_path / "state"
    async with open_test_runtime(LmdbStore(path), workflows=[waits]) as rt:
        for number in range(3):
            await rt.submit(waits, key=f"k{number}")
    assert said() == []
    caplog.set_level(logging.INFO, "keyrun.runtime")
    async with open_test_runtime(LmdbStore(path), workflows=[works, waits]) as rt:
        await rt.submit(works, key="w")
        await trio.sleep(1)
    opened, recovered, drained = said()
    assert opened == {
        "event": "runtime_opened",
        "store": str(path),
        "namespace": "default",
        "workflows": ["waits", "works"],
        "runs": 3,
    }
    seconds = recovered.pop("seconds")
    assert 0 <= seconds < 1
    assert recovered == {"event": "runtime_recovered", "namespace": "default", "runs": 3}
    assert drained == {"event": "runtime_drained", "namespace": "default", "seconds": 1.0}
    first = next(each for each in caplog.records if each.event == "runtime_opened")  # type: ignore[attr-defined]
    assert first.getMessage() == (
        f"opened {path}, namespace 'default', with 3 unfinished runs; workflows: waits, works"
    )
