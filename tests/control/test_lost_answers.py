"""A lost answer: each write is repeated against a new owner, applied once and answered the same.

The connection breaks when the answer of the write arrives. Then the owner is closed or killed, and
another one opens the store. The client repeats the call with the same operation id.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from keyrun import InputMismatch, RunFailed, Runtime
from keyrun.control.background import beside
from keyrun.control.frames import ANSWER, ERROR, Frames
from keyrun.control.loopback import Loopback
from keyrun.control.operation import Operation
from keyrun.control.owner import Owner
from keyrun.control.remote import RemoteRuntime
from keyrun.control.requests import NewRun
from keyrun.control.roles import ITSELF
from keyrun.control.shapes import CODEC, Payload
from keyrun.control.table import CALLS
from keyrun.control.target import Target
from keyrun.control.transport import Transport
from keyrun.groups import Member
from keyrun.schedules import Every
from keyrun.storage import MemoryStore
from keyrun.testing import CrashingMemoryStore, open_test_runtime
from tests.control.world import WORKFLOWS, Account, greet, wait_for_boss, wait_for_go

OPTIONS: dict[str, Any] = {"workflows": WORKFLOWS, "entities": [Account]}
HOUR = 3600.0
WRITES = {name: each for name, each in CALLS.items() if each.writes}


class Losing(Loopback):
    """A connection that breaks when the first answer arrives, and keeps it."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner)
        self._seen = Frames()
        self.lost: list[Any] = []
        self.broke = trio.Event()

    def _feed(self, data: bytes) -> None:
        if not self.broken:
            self.lost = [each for each in self._seen.feed(data) if each and each[0] and each[1] < 2]
            if self.lost:
                self._break()
                self.broke.set()


class Keeping(Loopback):
    """A connection that keeps all answers."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner)
        self._seen = Frames()
        self.answers: list[Any] = []

    def _feed(self, data: bytes) -> None:
        self.answers += [each for each in self._seen.feed(data) if each and each[0]]
        super()._feed(data)


@attrs.frozen
class Write:
    """A write: what has to be there before, the call of the client, and what shows its effect."""

    call: Callable[[RemoteRuntime], Awaitable[Any]]
    prepare: Callable[[Runtime], Awaitable[Any]]
    effect: Callable[[Runtime], Awaitable[Any]]
    expected: Any
    entries: int = 1
    """The number of entries that the write has in the audit log."""


async def nothing(rt: Runtime) -> None: ...


async def waiting(rt: Runtime) -> None:
    for each in ("r", "r2"):
        await rt.submit(wait_for_go, key=each, run_id=each)
    await trio.sleep(1)


async def at_gate(rt: Runtime) -> None:
    await rt.submit(wait_for_boss, key="r", run_id="r")
    await trio.sleep(1)


async def paused(rt: Runtime) -> None:
    await waiting(rt)
    await rt.pause("r")
    await rt.pause_key("k")
    await rt.pause_all()


async def failed(rt: Runtime) -> None:
    with pytest.raises(RunFailed):
        await (await rt.submit(greet, "broken", key="r", run_id="r")).result()


async def ended(rt: Runtime) -> None:
    await (await rt.submit(greet, "ann", key="r", run_id="r")).result()


async def grouped(rt: Runtime) -> None:
    await rt.submit_group("g", [Member(wait_for_go, key="a"), Member(wait_for_go, key="b")])


async def scheduled(rt: Runtime) -> None:
    await rt.schedule("s", greet, "ann", key="k", when=Every(86_400))


async def unscheduled(rt: Runtime) -> None:
    await scheduled(rt)
    await rt.pause_schedule("s")


async def count(rt: Runtime) -> int:
    return len(await rt.runs())


async def state(rt: Runtime) -> Any:
    status = await rt.status("r")
    return None if status is None else (str(status.state), status.generation)


async def states(rt: Runtime) -> list[str]:
    return [str(each.state) for each in await rt.runs()]


async def events(rt: Runtime) -> list[str]:
    kinds = ("paused", "resumed", "approved", "rejected", "signal_received")
    return [each.event for each in await rt.history("r") if each.event in kinds]


async def held(rt: Runtime) -> list[bytes]:
    ledger = rt._ledger
    return [key[len(ledger.prefix) :] for key, _ in await ledger.scan("held", ledger.prefix)]


async def schedules(rt: Runtime) -> list[Any]:
    return [(each.schedule_id, each.paused) for each in await rt.schedules()]


async def balance(rt: Runtime) -> Any:
    return await rt.call(Account, "k", Account.deposit, 0)


def deposit(**options: Any) -> Callable[[RemoteRuntime], Awaitable[Any]]:
    return lambda client: client.call(Account, "k", "deposit", 5, **options)


async def together(client: RemoteRuntime, *keys: str) -> None:
    async with trio.open_nursery() as nursery:
        for key in keys:
            nursery.start_soon(partial(client.submit, wait_for_go, key=key))


RUNS = [NewRun(workflow="wait_for_go", key=each) for each in ("a", "b", "c")]
MEMBERS = [Member(wait_for_go, key="a"), Member(wait_for_go, key="b")]

CASES: dict[str, Write | list[Write]] = {
    "submit": [
        Write(lambda it: it.submit(greet, "ann", key="k"), nothing, count, 1),
        Write(lambda it: it.submit(greet, "ann", key="k", run_id="r"), nothing, count, 1),
        Write(lambda it: it.submit_nowait(greet, "ann", key="k"), nothing, count, 1),
    ],
    "submit_many": Write(lambda it: it._do("submit_many", runs=RUNS), nothing, count, 3),
    "submit_together": [
        Write(lambda it: it._do("submit_together", runs=RUNS), nothing, count, 3),
        Write(lambda it: together(it, "a", "b", "c"), nothing, count, 3),
    ],
    "submit_or_signal": [
        Write(
            lambda it: it.submit_or_signal(wait_for_go, key="r", run_id="r", name="x"),
            waiting,
            count,
            2,
        ),
        Write(
            lambda it: it.submit_or_signal(wait_for_boss, key="k", run_id="k", name="x"),
            nothing,
            count,
            1,
        ),
    ],
    "signal": Write(lambda it: it.signal("r", "go"), waiting, events, ["signal_received"]),
    "approve": Write(lambda it: it.approve("r", "boss", by="a"), at_gate, events, ["approved"]),
    "reject": Write(lambda it: it.reject("r", "boss", by="a"), at_gate, events, ["rejected"]),
    "cancel": Write(lambda it: it.cancel("r"), waiting, state, ("cancelled", 1)),
    "pause": Write(lambda it: it.pause("r"), waiting, events, ["paused"]),
    "resume": Write(lambda it: it.resume("r"), paused, events, ["paused", "resumed"]),
    "redrive": Write(lambda it: it.redrive("r"), failed, state, ("failed", 2)),
    "forget": Write(lambda it: it.forget("r"), ended, state, None),
    "pause_key": Write(lambda it: it.pause_key("k"), nothing, held, [b"k"]),
    "resume_key": Write(lambda it: it.resume_key("k"), paused, held, [b""]),
    "pause_all": Write(lambda it: it.pause_all(), nothing, held, [b""]),
    "resume_all": Write(lambda it: it.resume_all(), paused, held, [b"k"]),
    "release_key": Write(lambda it: it.release_key("k"), nothing, count, 0),
    "call": [
        Write(deposit(), nothing, balance, 5),
        Write(deposit(request_id="mine"), nothing, balance, 5),
    ],
    "bulk": Write(
        lambda it: it._do("bulk", action="cancel", key="r", preview=False),
        waiting,
        states,
        ["cancelled", "waiting"],
        entries=2,
    ),
    "submit_group": Write(lambda it: it.submit_group("g", MEMBERS), nothing, count, 2),
    "cancel_group": Write(
        lambda it: it._do("cancel_group", group_id="g"), grouped, states, ["cancelled"] * 2
    ),
    "schedule": Write(
        lambda it: it.schedule("s", greet, "ann", key="k", when=Every(86_400)),
        nothing,
        schedules,
        [("s", False)],
    ),
    "pause_schedule": Write(lambda it: it.pause_schedule("s"), scheduled, schedules, [("s", True)]),
    "resume_schedule": Write(
        lambda it: it.resume_schedule("s"), unscheduled, schedules, [("s", False)]
    ),
    "delete_schedule": Write(lambda it: it.delete_schedule("s"), scheduled, schedules, []),
    "discard_outcomes": Write(lambda it: it.discard_outcomes(), nothing, count, 0),
}


def test_each_operation_that_writes_has_a_case() -> None:
    assert CASES.keys() == WRITES.keys()


def each_case() -> list[Any]:
    return [
        pytest.param(each, id=f"{name}-{at}" if at else name)
        for name, cases in CASES.items()
        for at, each in enumerate(cases if isinstance(cases, list) else [cases])
    ]


@asynccontextmanager
async def owning(store: MemoryStore) -> AsyncIterator[Runtime]:
    async with open_test_runtime(store, **OPTIONS) as rt:
        yield rt


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("write", each_case())
async def test_a_write_whose_answer_is_lost_is_applied_once_and_answered_the_same(
    write: Write, killed: bool, autojump_clock: trio.testing.MockClock
) -> None:
    store = CrashingMemoryStore()
    transport = Transport(Target())
    client = RemoteRuntime(transport)
    answered = trio.Event()

    async def call() -> None:
        await write.call(client)
        answered.set()

    async with trio.open_nursery() as nursery:
        async with owning(store) as rt:
            await write.prepare(rt)
            losing = Losing(Owner(rt))
            async with beside(lambda: transport.use(losing)):
                nursery.start_soon(call)
                with trio.fail_after(30):
                    await losing.broke.wait()
            entries = (await rt.audit()).entries
            if killed:
                store.crash()
                await trio.sleep_forever()
        assert not answered.is_set()
        async with owning(store) as rt:
            keeping = Keeping(Owner(rt))
            async with beside(lambda: transport.use(keeping)):
                with trio.fail_after(30):
                    await answered.wait()
            ((_, kind, lost),), ((_, again, found),) = losing.lost, keeping.answers
            assert (kind, lost) == (again, found)
            assert kind == ANSWER
            assert (await rt.audit()).entries == entries
            assert len(entries) == write.entries
            await trio.sleep(10)
            assert await write.effect(rt) == write.expected


async def test_a_rejection_whose_answer_is_lost_is_raised_by_the_repeat(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = MemoryStore()
    transport = Transport(Target())
    client = RemoteRuntime(transport)
    errors: list[Exception] = []

    async def call() -> None:
        with pytest.raises(InputMismatch) as caught:
            await client.submit(greet, "bob", key="k", run_id="r")
        errors.append(caught.value)

    async with trio.open_nursery() as nursery:
        async with owning(store) as rt:
            await rt.submit(greet, "ann", key="k", run_id="r")
            losing = Losing(Owner(rt))
            async with beside(lambda: transport.use(losing)):
                nursery.start_soon(call)
                await losing.broke.wait()
                # Without the answer, the repeat would succeed now.
                await trio.sleep(1)
                await rt.forget("r")
        async with owning(store) as rt:
            async with beside(lambda: transport.use(Loopback(Owner(rt)))):
                while not errors:
                    await trio.sleep(1)
            assert await rt.runs() == []
    assert losing.lost[0][1] == ERROR
    assert losing.lost[0][2][1] == str(errors[0])


def perform(owner: Owner, name: str, operation_id: str, **arguments: Any) -> Awaitable[Any]:
    operation: Operation = CALLS[name]
    return owner.perform(operation, arguments, ITSELF, operation_id)


@pytest.mark.parametrize("name", ["submit", "submit_many"])
async def test_a_repeat_with_other_arguments_is_rejected(
    name: str, autojump_clock: trio.testing.MockClock
) -> None:
    def given(key: str) -> dict[str, Any]:
        word = Payload("input", encoded=CODEC.encode("a"))
        if name == "submit":
            return {"workflow": "greet", "input": word, "key": key}
        return {"runs": [NewRun(workflow="greet", input=word, key=key)]}

    async with owning(MemoryStore()) as rt:
        owner = Owner(rt)
        first = await perform(owner, name, "op", **given("k"))
        assert await perform(owner, name, "op", **given("k")) == first
        with pytest.raises(InputMismatch, match="make a new id for each operation"):
            await perform(owner, name, "op", **given("k2"))
        assert await count(rt) == 1


async def test_arguments_with_the_same_values_under_other_names_are_other_arguments(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with owning(MemoryStore()) as rt:
        owner = Owner(rt)
        given = {"workflow": "wait_for_go", "schedule_id": "s", "key": "k"}
        when = {"when": CALLS["schedule"].read_json({"when": {"every": 60}})["when"]}
        await perform(owner, "schedule", "op", overlap=True, **given, **when)
        with pytest.raises(InputMismatch):
            await perform(owner, "schedule", "op", paused=True, **given, **when)


async def test_a_repeat_of_a_call_that_is_under_way_waits_for_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A client whose connection broke repeats a call that the owner still performs."""
    async with open_test_runtime(**OPTIONS, max_pending_per_key=1) as rt:
        owner = Owner(rt)
        await rt.submit(wait_for_go, key="k", run_id="r")
        await trio.sleep(1)
        await rt.submit(wait_for_go, key="k")
        answers: list[Any] = []

        async def submit() -> None:
            answers.append(await perform(owner, "submit", "op", workflow="wait_for_go", key="k"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit)
            nursery.start_soon(submit)
            await trio.sleep(1)
            assert not answers
            await rt.signal("r", "go")
        assert answers[0] == answers[1]
        assert await count(rt) == 3


async def test_the_runs_of_a_batch_are_submitted_once_also_if_the_owner_is_killed_in_the_middle(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The batch waits for room after its first run, so it has several commits."""
    store = CrashingMemoryStore()
    options = {**OPTIONS, "max_pending_per_key": 1}
    runs = [NewRun(workflow="wait_for_go", key="k") for _ in range(3)]
    async with open_test_runtime(store, **options) as rt:
        await rt.submit(wait_for_go, key="k", run_id="r")
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: perform(Owner(rt), "submit_many", "op", runs=runs))
            await trio.sleep(1)
            assert await count(rt) == 2
            store.crash()
            await trio.sleep_forever()
    async with open_test_runtime(store, **OPTIONS) as rt:
        answer = await perform(Owner(rt), "submit_many", "op", runs=runs)
        assert await count(rt) == 4
        assert await perform(Owner(rt), "submit_many", "op", runs=runs) == answer


async def test_the_answer_of_a_write_is_stored_only_if_its_caller_can_repeat_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with owning(MemoryStore()) as rt:
        owner, pause = Owner(rt), CALLS["pause_key"]
        await owner.perform(pause, {"key": "k"}, ITSELF)
        assert await rt._ledger.scan("operations", rt._ledger.prefix) == []
        await owner.perform(pause, {"key": "k2"}, ITSELF, "op")
        assert len(await rt._ledger.scan("operations", rt._ledger.prefix)) == 1
        assert [each.key for each in (await rt.audit()).entries] == ["k", "k2"]


async def test_the_number_of_kept_answers_is_bounded_by_time_and_their_removal_is_cheap(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with owning(MemoryStore()) as rt:
        owner = Owner(rt)

        async def operations() -> int:
            return len(await rt._ledger.scan("operations", rt._ledger.prefix))

        async def pause(at: int) -> None:
            await perform(owner, "pause_key", f"op-{at}", key="k")

        async with trio.open_nursery() as nursery:
            for at in range(1000):
                nursery.start_soon(pause, at)
        assert await operations() == 1000
        commits = rt.statistics().commits.commits
        await trio.sleep(HOUR - 60)
        assert await operations() == 1000
        await trio.sleep(120)
        assert await operations() == 0
        # One commit removes 200 answers.
        assert rt.statistics().commits.commits - commits < 20
        await perform(owner, "pause_key", "op-1", key="other")
