"""Operations from outside: applied once, answered the same, and kept in the audit log."""

import re
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
import trio

from keyrun import (
    Context,
    GateNotWaiting,
    InputMismatch,
    PermanentError,
    Retention,
    RunEnded,
    RunFailed,
    Runtime,
    UnknownRun,
    entity,
    open_operator,
    open_reader,
    step,
    workflow,
)
from keyrun.groups import GroupHandle, Member
from keyrun.runtime.errors import Backpressure
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.inspect.reader import Reader
from keyrun.runtime.records.operation import SINGLE_WRITES, Write, WriteRequest
from keyrun.schedules import Every, ScheduleStatus
from keyrun.storage import MemoryStore
from keyrun.testing import CrashingLmdbStore, crash_points, open_test_runtime, virtual_wall
from tests.storage.processes import run_python

HOUR = 3600.0


@workflow
async def waits(ctx: Context) -> None:
    await ctx.wait_signal("go")
    await ctx.approval("manager")
    await ctx.wait_signal("never")


@workflow
async def ends(ctx: Context) -> str:
    return "done"


@step
async def breaks() -> None:
    raise PermanentError("no")


@workflow
async def fails(ctx: Context) -> None:
    await ctx.step(breaks)


@entity
class Account:
    key: str
    state: dict[str, Any]

    async def deposit(self, amount: int) -> int:
        self.state["balance"] = self.state.get("balance", 0) + amount
        return int(self.state["balance"])

    async def balance(self) -> int:
        return int(self.state.get("balance", 0))


OPTIONS: dict[str, Any] = {"workflows": [waits, ends, fails], "entities": [Account]}


def text(answer: object) -> str:
    """Return an answer as text, which is the same for the same answer."""
    if isinstance(answer, RunHandle):
        return f"{answer.run_id} {answer.newly_submitted}"
    if isinstance(answer, GroupHandle):
        return f"{answer.group_id} {answer.newly_submitted}"
    if isinstance(answer, ScheduleStatus):
        return f"{answer.schedule_id} {answer.next_at} {answer.paused}"
    return str(answer)


async def perform(
    rt: Runtime,
    write: Write,
    function: Callable[[], Awaitable[object]],
    *,
    operation_id: str = "op-1",
    who: str = "alice",
    **about: Any,
) -> str:
    operation = WriteRequest(
        operation_id=operation_id, write=write, who=who, role="operate", **about
    )
    answer = await rt._operations.perform(
        operation, function, encode=lambda each: text(each).encode(), decode=bytes.decode
    )
    return text(answer)


@attrs.frozen
class Case:
    """A write: what has to be there before, the write, and what shows how often it was applied."""

    prepare: Callable[[Runtime], Awaitable[object]]
    act: Callable[[Runtime], Awaitable[object]]
    applied: Callable[[Runtime], Awaitable[object]]
    expected: object
    about: dict[str, Any] = attrs.field(factory=dict)


async def nothing(rt: Runtime) -> None: ...


async def waiting(rt: Runtime) -> None:
    await rt.submit(waits, key="k", run_id="r")
    await trio.sleep(0.01)


async def at_gate(rt: Runtime) -> None:
    await waiting(rt)
    await rt.signal("r", "go", signal_id="first")
    await trio.sleep(0.01)


async def paused(rt: Runtime) -> None:
    await waiting(rt)
    if not await entries(rt):
        await rt.pause("r")


async def failed(rt: Runtime) -> None:
    with pytest.raises(RunFailed):
        await (await rt.submit(fails, key="k", run_id="r")).result()


async def ended(rt: Runtime) -> None:
    await (await rt.submit(ends, key="k", run_id="r")).result()


async def scheduled(rt: Runtime) -> object:
    return await rt.schedule("s", ends, key="k", when=Every(86_400))


async def unscheduled(rt: Runtime) -> None:
    await scheduled(rt)
    if not await entries(rt):
        await rt.pause_schedule("s")


async def signals(rt: Runtime) -> object:
    await trio.sleep(0.01)
    history = await rt.history("r")
    return sum(each.event == "signal_received" for each in history), len(
        await rt._partition.signals.stored(await rt._number("r"))
    )


async def decisions(rt: Runtime) -> object:
    return sum(each.event in ("approved", "rejected") for each in await rt.history("r"))


async def notes(rt: Runtime) -> object:
    history = [each.event for each in await rt.history("r")]
    return history.count("paused"), history.count("resumed")


async def state(rt: Runtime) -> object:
    status = await rt.status("r")
    return status and (str(status.state), status.generation)


async def number_of_runs(rt: Runtime) -> object:
    return len(await rt.runs())


async def held(rt: Runtime) -> object:
    ledger = rt._ledger
    return [key[len(ledger.prefix) :] for key, _ in await ledger.scan("held", ledger.prefix)]


async def schedules(rt: Runtime) -> object:
    return [(each.schedule_id, each.paused) for each in await rt.schedules()]


async def entries(rt: Reader) -> list[Any]:
    return list((await rt.audit()).entries)


MEMBERS = [Member(ends, key=f"k{each}") for each in range(3)]
RUN = {"run_id": "r"}
CASES: dict[Write, Case] = {
    Write.SUBMIT: Case(nothing, lambda rt: rt.submit(ends, key="k"), number_of_runs, 1),
    Write.SUBMIT_GROUP: Case(
        nothing, lambda rt: rt.submit_group("g", MEMBERS), number_of_runs, 3, {"target": "g"}
    ),
    Write.SUBMIT_OR_SIGNAL: Case(
        waiting,
        lambda rt: rt.submit_or_signal(waits, key="k", run_id="r", name="go"),
        signals,
        (1, 0),
        RUN,
    ),
    Write.CALL: Case(
        nothing,
        lambda rt: rt.call(Account, "k", "deposit", 5),
        lambda rt: rt.call(Account, "k", "balance"),
        5,
        {"key": "k"},
    ),
    Write.SIGNAL: Case(waiting, lambda rt: rt.signal("r", "go"), signals, (1, 0), RUN),
    Write.APPROVE: Case(
        at_gate, lambda rt: rt.approve("r", "manager", by="alice"), decisions, 1, RUN
    ),
    Write.REJECT: Case(
        at_gate, lambda rt: rt.reject("r", "manager", by="alice"), decisions, 1, RUN
    ),
    Write.CANCEL: Case(waiting, lambda rt: rt.cancel("r"), state, ("cancelled", 1), RUN),
    Write.PAUSE: Case(waiting, lambda rt: rt.pause("r"), notes, (1, 0), RUN),
    Write.RESUME: Case(paused, lambda rt: rt.resume("r"), notes, (1, 1), RUN),
    Write.PAUSE_KEY: Case(nothing, lambda rt: rt.pause_key("k"), held, [b"k"], {"key": "k"}),
    Write.RESUME_KEY: Case(nothing, lambda rt: rt.resume_key("k"), held, [], {"key": "k"}),
    Write.PAUSE_ALL: Case(nothing, lambda rt: rt.pause_all(), held, [b""]),
    Write.RESUME_ALL: Case(nothing, lambda rt: rt.resume_all(), held, []),
    Write.REDRIVE: Case(failed, lambda rt: rt.redrive("r"), state, ("failed", 2), RUN),
    Write.FORGET: Case(ended, lambda rt: rt.forget("r"), nothing, None, RUN),
    Write.RELEASE_KEY: Case(nothing, lambda rt: rt.release_key("k"), nothing, None, {"key": "k"}),
    Write.SCHEDULE: Case(nothing, scheduled, schedules, [("s", False)], {"target": "s"}),
    Write.PAUSE_SCHEDULE: Case(
        scheduled, lambda rt: rt.pause_schedule("s"), schedules, [("s", True)], {"target": "s"}
    ),
    Write.RESUME_SCHEDULE: Case(
        unscheduled, lambda rt: rt.resume_schedule("s"), schedules, [("s", False)], {"target": "s"}
    ),
    Write.DELETE_SCHEDULE: Case(
        scheduled, lambda rt: rt.delete_schedule("s"), nothing, None, {"target": "s"}
    ),
    Write.DISCARD_OUTCOMES: Case(nothing, lambda rt: rt.discard_outcomes(), nothing, None),
}
FIRST: dict[Write, str] = {
    Write.SUBMIT_GROUP: "g True",
    Write.SUBMIT_OR_SIGNAL: "r False",
    Write.CALL: "5",
    Write.SIGNAL: "delivered",
    Write.CANCEL: "True",
    Write.PAUSE: "True",
    Write.RESUME: "True",
    Write.REDRIVE: "2",
    Write.PAUSE_SCHEDULE: "True",
    Write.RESUME_SCHEDULE: "True",
    Write.DELETE_SCHEDULE: "True",
    Write.RELEASE_KEY: "False",
    Write.DISCARD_OUTCOMES: "0",
}
"""Answers of writes that are not None and do not depend on the time."""

each_write = pytest.mark.parametrize("write", SINGLE_WRITES)


def test_every_write_of_the_runtime_takes_part() -> None:
    """A new method of `Runtime` that writes needs a member of `Write`, and a case here."""
    reads = {
        *("entity", "events", "find_submission", "group", "policies", "run", "statistics"),
        *("status", "status_of", "wait_for_end", "watch"),
    }
    public = {name for name in vars(Runtime) if not name.startswith("_")}
    assert public - reads - {"submit_nowait"} == {*SINGLE_WRITES} == {*CASES}


def scenario(write: Write) -> Callable[[Runtime], Awaitable[None]]:
    case = CASES[write]

    async def act(rt: Runtime) -> None:
        await case.prepare(rt)
        first = await perform(rt, write, lambda: case.act(rt), **case.about)
        again = await perform(rt, write, lambda: case.act(rt), **case.about)
        assert again == first
        expected = FIRST.get(write)
        assert expected in (None, first)
        await trio.sleep(0.1)
        assert await case.applied(rt) == case.expected
        (entry,) = await entries(rt)
        assert (entry.operation, entry.who, entry.operation_id) == (write, "alice", "op-1")
        assert entry.error is None

    return act


@each_write
async def test_a_repeat_after_a_crash_at_any_commit_is_applied_once_with_the_same_answer(
    autojump_clock: trio.testing.MockClock, write: Write
) -> None:
    crashed = 0
    for point in crash_points():
        await point.run(scenario(write), **OPTIONS)
        crashed += point.crashes
    assert crashed >= 4


@each_write
async def test_the_same_holds_on_lmdb(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, write: Write
) -> None:
    stores = iter(range(1000))
    for point in crash_points(lambda: CrashingLmdbStore(tmp_path / str(next(stores))), every=3):
        await point.run(scenario(write), **OPTIONS)


KILLED = """
    import os, signal, sys, trio, keyrun
    from keyrun.runtime.records.operation import SINGLE_WRITES, WriteRequest, Write

    @keyrun.workflow
    async def ends(ctx: keyrun.Context) -> None: ...

    async def main() -> None:
        async with keyrun.open_runtime(sys.argv[1], workflows=[ends]) as rt:
            operation = WriteRequest(operation_id="op-1", write=Write.SUBMIT, who="alice")
            answer = await rt._operations.perform(
                operation,
                lambda: rt.submit(ends, key="k"),
                encode=lambda run: f"{run.run_id} {run.newly_submitted}".encode(),
                decode=bytes.decode,
            )
            if sys.argv[2] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            print(answer, len(await rt.runs()), len((await rt.audit()).entries))

    trio.run(main)
"""


def test_an_operation_whose_process_was_killed_before_it_answered_is_answered_by_the_next(
    tmp_path: Path,
) -> None:
    assert run_python(KILLED, tmp_path / "state", "kill").returncode == -signal.SIGKILL
    told = [run_python(KILLED, tmp_path / "state", "answer").stdout.split() for _ in range(2)]
    assert told[0] == told[1]
    assert told[0][1:] == ["True", "1", "1"]


async def test_the_answer_is_in_the_commit_of_the_write(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A crash right after the commit of the write loses neither the write nor its answer."""
    alone = {Write.RELEASE_KEY, Write.DISCARD_OUTCOMES}  # these change nothing here
    for write in set(SINGLE_WRITES) - alone:
        case, committed = CASES[write], list[set[str]]()
        async with open_test_runtime(**OPTIONS) as rt:
            await case.prepare(rt)
            await rt._partition.state.store.durable()

            def look(group: Any, committed: list[set[str]] = committed) -> None:
                committed.append({*group.tables})

            rt._partition.state.commits.on_commit.append(look)
            await perform(rt, write, partial(case.act, rt), **case.about)
            rt._partition.state.commits.on_commit.remove(look)
        (tables,) = [each for each in committed if "audit" in each]
        assert tables - {"audit", "operations", "audited", "counter"}, write


async def test_a_write_that_changes_nothing_is_answered_the_same_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_test_runtime(**OPTIONS) as rt:
        assert await perform(rt, Write.CANCEL, lambda: rt.cancel("r"), **RUN) == "False"
        await waiting(rt)
        assert await perform(rt, Write.CANCEL, lambda: rt.cancel("r"), **RUN) == "False"
        assert await state(rt) == ("waiting", 1)
        (entry,) = await entries(rt)
        assert (entry.result, entry.run_id) == ("False", "r")


@pytest.mark.parametrize(
    ("prepare", "write", "act", "error"),
    [
        (nothing, Write.SIGNAL, lambda rt: rt.signal("r", "go"), UnknownRun),
        (ended, Write.SIGNAL, lambda rt: rt.signal("r", "go"), RunEnded),
        (waiting, Write.APPROVE, lambda rt: rt.approve("r", "x", by="a"), GateNotWaiting),
        (waiting, Write.SUBMIT, lambda rt: rt.submit(ends, key="k", run_id="r"), InputMismatch),
        (waiting, Write.FORGET, lambda rt: rt.forget("r"), RunEnded),
    ],
)
async def test_a_rejection_is_an_answer_and_is_audited(
    autojump_clock: trio.testing.MockClock,
    prepare: Callable[[Runtime], Awaitable[None]],
    write: Write,
    act: Callable[[Runtime], Awaitable[object]],
    error: type[Exception],
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, **OPTIONS) as rt:
        await prepare(rt)
        with pytest.raises(error) as first:
            await perform(rt, write, lambda: act(rt), **RUN)
    async with open_test_runtime(store, **OPTIONS) as rt:
        with pytest.raises(error) as again:
            await perform(rt, write, lambda: pytest.fail("called again"), **RUN)
        assert str(again.value) == str(first.value)
        assert vars(again.value) == vars(first.value)
        (entry,) = await entries(rt)
        assert entry.error == error.__name__
        assert entry.result == str(first.value)


async def test_backpressure_and_invalid_arguments_are_not_answers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_test_runtime(max_pending=1, backpressure_timeout=1, **OPTIONS) as rt:
        await rt.pause_all()
        await rt.submit(ends, key="k")
        with pytest.raises(Backpressure):
            await perform(rt, Write.SUBMIT, lambda: rt.submit(ends, key="k"))
        with pytest.raises(ValueError, match="key"):
            await perform(rt, Write.SUBMIT, lambda: rt.submit(ends, key=""))
        assert await entries(rt) == []
        await rt.resume_all()
        await trio.sleep(1)
        await perform(rt, Write.SUBMIT, lambda: rt.submit(ends, key="k"))
        assert await number_of_runs(rt) == 2


async def test_a_repeat_waits_for_the_first_that_is_under_way(
    autojump_clock: trio.testing.MockClock,
) -> None:
    answers: list[str] = []
    async with open_test_runtime(**OPTIONS) as rt:

        async def submit() -> None:
            answers.append(await perform(rt, Write.SUBMIT, lambda: rt.submit(ends, key="k")))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(submit)
        assert len(set(answers)) == 1
        assert await number_of_runs(rt) == 1


async def test_a_repeat_after_a_cancelled_first_finds_its_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_test_runtime(**OPTIONS) as rt:
        with trio.CancelScope() as scope:
            scope.cancel()
            await perform(rt, Write.SUBMIT, lambda: rt.submit(ends, key="k"))
        await perform(rt, Write.SUBMIT, lambda: rt.submit(ends, key="k"))
        assert await number_of_runs(rt) == 1


async def test_an_id_belongs_to_one_operation(autojump_clock: trio.testing.MockClock) -> None:
    async with open_test_runtime(**OPTIONS) as rt:
        await waiting(rt)
        await perform(rt, Write.PAUSE, lambda: rt.pause("r"), **RUN)
        for changed in ({"run_id": "other"}, {**RUN, "who": "bob"}, {**RUN, "digest": b"x"}):
            with pytest.raises(InputMismatch, match="op-1"):
                await perform(rt, Write.PAUSE, lambda: rt.pause("r"), **changed)
        with pytest.raises(InputMismatch, match="op-1"):
            await perform(rt, Write.CANCEL, lambda: rt.cancel("r"), **RUN)


async def test_writes_of_the_process_itself_leave_no_entry(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_test_runtime(**OPTIONS) as rt:
        for write in (Write.CALL, Write.SUBMIT, Write.SIGNAL, Write.PAUSE, Write.SCHEDULE):
            await CASES[write].prepare(rt)
            await CASES[write].act(rt)
        await rt.cancel("r")
        assert await entries(rt) == []
        for table in ("operations", "audited"):
            assert await rt._ledger.store.scan(table) == []


async def test_an_answer_expires_after_an_hour_and_the_entry_stays_until_retention(
    autojump_clock: trio.testing.MockClock,
) -> None:
    retention = Retention(age=10 * HOUR)
    async with open_test_runtime(retention=retention, **OPTIONS) as rt:
        await perform(rt, Write.SUBMIT, lambda: rt.submit(ends, key="k"))
        await trio.sleep(HOUR - 10)
        await perform(rt, Write.SUBMIT, lambda: rt.submit(ends, key="k"))
        assert await number_of_runs(rt) == 1
        await trio.sleep(20)
        prefix = rt._ledger.prefix
        assert await rt._ledger.store.scan("operations", prefix=prefix) == []
        assert len(await entries(rt)) == 1
        await perform(rt, Write.SUBMIT, lambda: rt.submit(ends, key="k"))
        assert await number_of_runs(rt) == 2
        await trio.sleep(HOUR + 10)
        assert await rt._ledger.store.scan("operations", prefix=prefix) == []
        await trio.sleep(12 * HOUR)
        assert await entries(rt) == []
        for table in ("audited", "operations", "runs"):
            assert await rt._ledger.store.scan(table, prefix=prefix) == []


async def test_an_answer_expires_after_an_hour_also_if_nothing_removes_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An operator's runtime removes nothing."""
    store = MemoryStore()
    async with open_test_runtime(store, **OPTIONS) as rt:
        await waiting(rt)
    said = []
    for seconds in (0, HOUR - 10, 20):
        await trio.sleep(seconds)
        async with open_operator(store, wall=virtual_wall) as rt:
            said.append(await perform(rt, Write.PAUSE, partial(rt.pause, "r"), **RUN))
    assert said == ["True", "True", "False"]


async def test_the_log_keeps_at_most_as_many_entries_as_runs(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = MemoryStore()
    for part in range(2):
        async with open_test_runtime(store, retention=Retention(count=5), **OPTIONS) as rt:
            for at in range(10):
                await perform(rt, Write.PAUSE_ALL, rt.pause_all, operation_id=f"{part}-{at}")
            await trio.sleep(1)
            assert [each.operation_id for each in await entries(rt)] == [
                f"{part}-{at}" for at in range(5, 10)
            ]


async def test_the_history_of_a_run_names_who_did_what(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, **OPTIONS) as rt:
        await waiting(rt)
        await perform(rt, Write.CANCEL, lambda: rt.cancel("r"), summary="no longer needed", **RUN)
        happenings = [each for each in await rt.history("r") if each.event == "operation"]
        (said,) = happenings
        assert (said.detail, said.who) == ("cancel by alice (no longer needed): True", "alice")
        assert [each.event for each in await rt.history("r")][-1] == "cancelled"
        await perform(rt, Write.FORGET, lambda: rt.forget("r"), operation_id="op-2", **RUN)
        assert await rt._ledger.store.scan("audited", prefix=rt._ledger.prefix) == []
        names = [each.operation for each in await entries(rt)]
        assert names == ["cancel", "forget"]
        assert [each.key for each in await entries(rt)] == ["k", "k"]
        async with open_reader(store) as reader:
            assert await entries(reader) == await entries(rt)


async def test_the_log_is_listed_by_filter_and_in_pages(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_test_runtime(**OPTIONS) as rt:
        start = rt._wall()
        for at in range(25):
            who = "bob" if at % 5 == 0 else "alice"
            name = f"op-{at}"
            act = Write.PAUSE_KEY if at % 2 else Write.RESUME_KEY
            call = partial(rt.pause_key if at % 2 else rt.resume_key, "k")
            await perform(rt, act, call, operation_id=name, who=who, key="k")
            await trio.sleep(10)
        bobs = await rt.audit(who="bob")
        assert [each.operation_id for each in bobs.entries] == [
            f"op-{at}" for at in range(0, 25, 5)
        ]
        assert bobs.cursor is None
        early = await rt.audit(until=start + 95)
        assert len(early.entries) == 10
        assert len((await rt.audit(since=start + 95)).entries) == 15
        assert len((await rt.audit(operation="pause_key", who="bob")).entries) == 2
        assert (await rt.audit(key="other")).entries == ()
        for newest_first in (False, True):
            found: list[str] = []
            cursor = None
            while True:
                page = await rt.audit(limit=7, cursor=cursor, newest_first=newest_first)
                found += [each.operation_id for each in page.entries]
                cursor = page.cursor
                if cursor is None:
                    break
            expected = [f"op-{at}" for at in range(25)]
            assert found == (expected[::-1] if newest_first else expected)
        for wrong in ({"cursor": "x"}, {"limit": 0}, {"operation": "explode"}):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                await rt.audit(**wrong)


ACTS: dict[Write, Callable[[Runtime], Awaitable[object]]] = {
    Write.CALL: lambda rt: rt.call(Account, "k", "deposit", 1),
    Write.SIGNAL: lambda rt: rt.signal("r", "x"),
    Write.SUBMIT: lambda rt: rt.submit(ends, key="k"),
}


def random_world(
    plan: list[tuple[Write, str, float]], answers: dict[str, set[str]]
) -> Callable[[Runtime], Awaitable[object]]:
    """Return a scenario in which two callers make each operation of a plan at random times."""

    async def world(rt: Runtime) -> object:
        await rt.submit(waits, key="w", run_id="r")

        async def one(write: Write, name: str, delay: float) -> None:
            await trio.sleep(delay)
            answer = await perform(rt, write, lambda: ACTS[write](rt), operation_id=name)
            answers[name].add(answer)

        async with trio.open_nursery() as nursery:
            for each in plan:
                nursery.start_soon(one, *each)
                nursery.start_soon(one, *each)
        stored = await rt._partition.signals.stored(await rt._number("r"))
        return {
            Write.CALL: await rt.call(Account, "k", "balance"),
            Write.SIGNAL: len(stored),
            Write.SUBMIT: len(await rt.runs(workflow="ends")),
        }

    return world


@pytest.mark.parametrize("seed", range(12))
async def test_operations_in_any_order_with_crashes_are_each_applied_once(
    autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    random = Random(seed)
    plan = [(random.choice([*ACTS]), f"op-{at}", random.random()) for at in range(8)]
    expected = {write: sum(write is each for each, _, _ in plan) for write in ACTS}
    for point in crash_points(crashes=2, every=2):
        answers: dict[str, set[str]] = {name: set() for _, name, _ in plan}
        assert await point.run(random_world(plan, answers), **OPTIONS) == expected, point
        assert all(len(given) == 1 for given in answers.values()), point


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize(
    ("write", "pause", "holder", "says"),
    [
        (Write.PAUSE, lambda rt: rt.pause("r"), "run", "is paused{} until it is resumed."),
        (
            Write.PAUSE_KEY,
            lambda rt: rt.pause_key("k"),
            "key",
            "is paused, because its key is paused{}.",
        ),
        (
            Write.PAUSE_ALL,
            lambda rt: rt.pause_all(),
            "runtime",
            "is paused, because the runtime is paused{}.",
        ),
    ],
)
async def test_an_explanation_names_who_paused_and_since_when(
    autojump_clock: trio.testing.MockClock,
    write: Write,
    pause: Callable[[Runtime], Awaitable[object]],
    holder: str,
    says: str,
    outside: bool,
) -> None:
    """A second pause, by another caller, changes nothing."""
    store, about = MemoryStore(), RUN if write is Write.PAUSE else {}
    found: list[Any] = []
    async with open_test_runtime(store, **OPTIONS) as rt:
        await rt.pause_key("k")
        await rt.submit(ends, key="k", run_id="r")
        if holder == "key":
            await rt.resume_key("k")
            await rt.run("r").result()
            await rt.forget("r")
        if outside:
            await perform(rt, write, partial(pause, rt), **about)
        else:
            await pause(rt)
        await rt.submit(ends, key="k", run_id="r")
        if holder != "key":
            await rt.resume_key("k")
        await perform(rt, write, partial(pause, rt), operation_id="op-2", who="bob", **about)
        found.append(await rt.explain("r"))
    async with open_test_runtime(store, **OPTIONS) as rt:
        await trio.sleep(100)
        found.append(await rt.explain("r"))
    async with open_reader(store) as reader:
        found.append(await reader.explain("r"))
    for one in found:
        assert (one.holder, one.by) == (holder, "alice" if outside else None)
        since = r" by alice since 20.* UTC" if outside else ""
        assert re.fullmatch("Run r " + says.format(since), one.sentence)
