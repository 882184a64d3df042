"""Each record of a store damaged in turn: whose it is may need a person, and all others finish."""

from collections.abc import Callable
from copy import deepcopy
from random import Random

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    PermanentError,
    Retry,
    Runtime,
    State,
    TransientError,
    current_step,
    step,
    workflow,
)
from keyrun.storage import MemoryStore, StoreCorrupt
from keyrun.testing import RecordingHook, open_test_runtime
from tests.faults.simulated.peek import Peek
from tests.faults.soaking import amount

PLANNED = Retry.fixed(max_attempts=3, delay=5)


@step(retry=PLANNED)
async def add(amount: int, failures: int = 0) -> int:
    here = current_step()
    here.memo["tried"] = here.attempt
    if here.attempt <= failures:
        raise TransientError("as planned")
    await trio.sleep(1)
    here.state["total"] = here.state.get("total", 0) + amount
    return amount


@step
async def refuse() -> None:
    raise PermanentError("as planned")


@workflow
async def sums(ctx: Context, amount: int) -> int:
    ctx.report(10, "begun")
    total = await ctx.step(add, amount)
    total += await ctx.step(add, amount, failures=2)
    await ctx.sleep(50)
    total += await ctx.step(add, amount)
    return total


@workflow
async def doomed(ctx: Context) -> None:
    await ctx.step(refuse)


EXPECTED: dict[str, tuple[State, int | None]] = {
    "ended": (State.SUCCEEDED, 3),
    "dead": (State.FAILED, None),
    "asleep": (State.SUCCEEDED, 6),
    "behind": (State.SUCCEEDED, 9),
    "last": (State.SUCCEEDED, 12),
    "backing-off": (State.SUCCEEDED, 15),
    "delayed": (State.SUCCEEDED, 18),
    "alone": (State.SUCCEEDED, 21),
}


async def fill(runtime: Runtime) -> None:
    """Runs in every state that a run can be in."""
    await runtime.submit(doomed, key="z", run_id="dead")
    await (await runtime.submit(sums, 1, key="a", run_id="ended")).result()
    await runtime.submit(sums, 2, key="a", run_id="asleep")
    await runtime.submit(sums, 3, key="a", run_id="behind")
    await runtime.submit(sums, 4, key="a", run_id="last")
    await trio.sleep(30)
    await runtime.submit(sums, 5, key="b", run_id="backing-off")
    await runtime.submit(sums, 6, key="b", run_id="delayed", delay=300)
    await runtime.submit(sums, 7, key="c", run_id="alone")
    await trio.sleep(1.5)


def flipped(random: Random, raw: bytes) -> bytes:
    at = random.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ 1 << random.randrange(8)]) + raw[at + 1 :]


WAYS: dict[str, Callable[[Random, bytes], bytes]] = {
    "a bit": flipped,
    "cut": lambda random, raw: raw[: random.randrange(len(raw))],
    "zeros": lambda random, raw: bytes(len(raw)),
    "other bytes": lambda random, raw: random.randbytes(len(raw)),
}


@attrs.frozen
class Blow:
    """One record, and whose it is: a run, or all runs of a key."""

    table: str
    record: bytes
    run_id: str | None
    key: str | None


def blows(store: MemoryStore) -> list[Blow]:
    """All records of the store."""
    peek = Peek(store)
    numbers = {peek.number(run_id): run_id for run_id in EXPECTED}
    keys = {peek.ledger.key_prefix(key): key for key in "abcz"}
    found = []
    for table, content in store._tables.items():
        for record in content.keys:
            run_id = key = None
            if table in ("runs", "status", "journal", "begun", "memo", "reports", "dead", "outbox"):
                run_id = numbers[peek.ledger.split_number(record)[0]]
            elif table == "outcomes":
                run_id = numbers[int.from_bytes(record[-12:-4], "big")]
            elif table in ("delayed", "ended", "timers"):
                run_id = numbers[peek.ledger.split_timed(record)[1]]
            elif table == "queue":
                run_id = numbers[peek.ledger.split_place(record)[1]]
            elif table == "ids":
                run_id = record[len(peek.ledger.prefix) :].decode()
            elif table == "state":
                key = keys[record]
            found.append(Blow(table, record, run_id, key))
    return found


async def survives(store: MemoryStore, blow: Blow) -> bool:
    """Open it, and let everything go on that can. Says whether something was set aside."""
    aside = False
    hook = RecordingHook()
    async with open_test_runtime(store, workflows=[sums, doomed], on_terminal=hook) as runtime:
        await trio.sleep(1000)
        for run_id, (state, result) in EXPECTED.items():
            try:
                status = await runtime.status(run_id)
            except StoreCorrupt:
                assert run_id == blow.run_id, f"{run_id} cannot be read"
                aside = True
                continue
            mine = run_id == blow.run_id or (status is not None and status.key == blow.key)
            if status is None or status.state is State.QUARANTINED:
                assert mine, f"{run_id} is {status and status.state}"
                aside = True
            elif status.state is State.PENDING and status.key == blow.key:
                # It waits behind the first run of a key that is quarantined, and says so.
                assert "quarantined" in str(status.waiting_on)
            else:
                assert status.state is state, f"{run_id} is {status.state}: {status.reason}"
                if not blow.key:
                    assert status.result == result
        fresh = await runtime.submit(sums, 8, key="new")
        assert await fresh.result() == 24
    told = [(outcome.run_id, outcome.generation) for outcome in hook.outcomes]
    assert len(set(told)) == len(told)
    return aside


@pytest.fixture(scope="module")
def filled() -> MemoryStore:
    store = MemoryStore()

    async def main() -> None:
        broken = RecordingHook(failures=1_000_000)
        async with open_test_runtime(
            store, workflows=[sums, doomed], on_terminal=broken
        ) as runtime:
            await fill(runtime)
            store.crash()
            await trio.sleep_forever()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return store


@pytest.mark.parametrize("way", WAYS)
def test_whichever_record_is_damaged_the_others_finish(filled: MemoryStore, way: str) -> None:
    aside = 0
    for seed in range(amount(1, 40)):
        random = Random(seed)
        assert len(blows(filled)) > 40
        for blow in blows(filled):
            store = MemoryStore()
            store._tables = deepcopy(filled._tables)
            records = store._tables[blow.table].records
            raw = records[blow.record]
            damaged = WAYS[way](random, raw)
            if damaged == raw:
                continue
            records[blow.record] = damaged
            try:
                aside += trio.run(survives, store, blow, clock=MockClock(autojump_threshold=0))
            except BaseException as error:
                where = f"{way} of {blow} (seed {seed})"
                raise AssertionError(f"{where}: {damaged!r} instead of {raw!r}") from error
    assert aside > 10
