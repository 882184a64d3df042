"""A store as an earlier Keyrun left it when it was killed, and the code that its runs need.

`python -m tests.runtime.golden format FILE` writes one with the Keyrun of today. The files that are
there are never written again: what is in them must stay readable. `locations` has a larger one.
"""

import json
from pathlib import Path
from typing import Any

import attrs
import trio

from keyrun import (
    Context,
    Continue,
    PermanentError,
    Retry,
    Succeed,
    TransientError,
    Turn,
    Workflow,
    current_step,
    machine,
    step,
    workflow,
)
from keyrun.groups import Member
from keyrun.schedules import Every
from keyrun.storage import Batch, MemoryStore, Store
from keyrun.testing import RecordingHook, open_test_runtime


@attrs.frozen
class Order:
    """An input and a result that is no plain value."""

    number: int
    lines: list[str]


@step
async def count(by: int) -> int:
    state = current_step().state
    state["count"] = state.get("count", 0) + by
    return int(state["count"])


@step(retry=Retry.fixed(max_attempts=5, delay=100, jitter=0))
async def stumble(times: int) -> int:
    memo = current_step().memo
    memo["tries"] = memo.get("tries", 0) + 1
    if memo["tries"] <= times:
        raise TransientError("not yet")
    return int(memo["tries"])


@step
async def refuse() -> None:
    raise PermanentError("never")


@step
async def hang(seconds: float) -> str:
    await trio.sleep(seconds)
    return "hung"


@workflow
async def plain(ctx: Context, order: Order) -> Order:
    first = await ctx.step(count, order.number)
    return Order(await ctx.step(count, first), [*order.lines, ctx.now().isoformat()])


@workflow
async def stumbles(ctx: Context) -> int:
    return await ctx.step(stumble, 2) + await ctx.step(count, 1)


@workflow
async def fails(ctx: Context) -> None:
    await ctx.step(count, 1)
    await ctx.step(refuse)


@workflow
async def sleeps(ctx: Context) -> tuple[int, str]:
    before = await ctx.step(count, 1)
    with ctx.move_on_after(10) as scope:
        await ctx.step(hang, 1000)
    await ctx.sleep(500)
    return before, f"{scope.expired} {await ctx.step(hang, 1)}"


@workflow
async def gathers(ctx: Context) -> list[Any]:
    async def slow(ctx: Context) -> int:
        await ctx.sleep(400)
        return await ctx.step(count, 10)

    return list(await ctx.gather(ctx.step(hang, 1), slow, ctx.step(hang, 250)))


@machine()
async def turns(turn: Turn) -> Any:
    turn.state["turns"] = turn.number + 1
    if turn.number == 4:
        return Succeed(turn.payload)
    return Continue([turn.number, turn.payload], after=100)


WORKFLOWS: list[Workflow[Any, Any]] = [plain, stumbles, fails, sleeps, gathers, turns]


async def leave_behind(store: MemoryStore) -> None:
    """Have runs in all kinds of states, and crash."""
    hook = RecordingHook(failures=1000)
    async with open_test_runtime(store, workflows=WORKFLOWS, on_terminal=hook) as rt:
        await rt.submit(plain, Order(1, ["a"]), key="done", run_id="done", headers={"h": "1"})
        await rt.submit(fails, key="dead", run_id="dead", tags=["x"])
        await rt.submit(sleeps, key="cancelled", run_id="cancelled")
        await rt.submit(sleeps, key="sleeps", run_id="sleeps")
        await rt.submit(plain, Order(2, []), key="sleeps", run_id="behind")
        await rt.submit(stumbles, key="stumbles", run_id="stumbles")
        await rt.submit(gathers, key="gathers", run_id="gathers")
        await rt.submit(turns, None, key="turns", run_id="turns")
        await rt.submit(plain, Order(3, []), key="delayed", run_id="delayed", delay=300)
        await rt.pause_key("held")
        await rt.submit(plain, Order(4, []), key="held", run_id="held")
        await rt.submit_group("group", [Member(plain, Order(5, []), key="g", member_id="one")])
        await rt.schedule("hourly", stumbles, key="hourly", when=Every(3600))
        await trio.sleep(150)
        await rt.cancel("cancelled")
        await rt.pause("turns")
        await trio.sleep(1)
        store.crash()


def dump(store: MemoryStore) -> dict[str, dict[str, str]]:
    """All records."""
    return {
        name: {key.hex(): table.records[key].hex() for key in table.keys}
        for name, table in sorted(store._tables.items())
    }


async def load(path: Path) -> MemoryStore:
    """A store with the records of a file."""
    store = MemoryStore()
    await restore(store, json.loads(path.read_text()))
    return store


async def restore(store: Store, tables: dict[str, dict[str, str]]) -> None:
    """Fill a store with what `dump` returned."""
    batch = Batch()
    for table, records in tables.items():
        for key, value in records.items():
            batch.put(table, bytes.fromhex(key), bytes.fromhex(value))
    async with store:
        await store.commit(batch)
