"""The five walks of the page about the architecture: their functions are called in this order."""

import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Entity,
    Retry,
    Runtime,
    TransientError,
    current_step,
    entity,
    step,
    workflow,
)
from keyrun.storage import MemoryStore, StoreError
from keyrun.testing import open_test_runtime

TEXT = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
Call = tuple[str, str]
"""A file and the qualified name of a function."""


def rows_of(title: str) -> list[Call]:
    """Return the table of one walk."""
    section = TEXT.partition(f"\n### {title}\n")[2].partition("\n### ")[0]
    return re.findall(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", section, re.MULTILINE)


class Tracer:
    """A profile function that notes which functions of Keyrun begin."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        # The argument of the instruction RESUME is 0 if the function begins.
        if event == "call" and not code.co_code[frame.f_lasti + 1]:
            path = code.co_filename.rpartition("/keyrun/")[2]
            self.calls.append((path, code.co_qualname))


@step
async def quick() -> int:
    return 1


@step
async def slow() -> None:
    await trio.sleep(100)


@workflow
async def checkout(ctx: Context) -> int:
    return await ctx.step(quick)


@workflow
async def crashing(ctx: Context) -> None:
    await ctx.step(quick)
    await ctx.step(slow)


@workflow
async def receiving(ctx: Context) -> int:
    return int(await ctx.wait_signal("go"))


@step(retry=Retry.fixed(max_attempts=2, delay=1000))
async def flaky() -> None:
    if current_step().attempt == 1:
        raise TransientError("busy")


@workflow
async def retrying(ctx: Context) -> None:
    await ctx.step(flaky)


@entity
class Account(Entity):
    async def deposit(self, amount: int) -> int:
        balance: int = self.state.get("balance", 0) + amount
        self.state["balance"] = balance
        return balance


async def run(rt: Runtime) -> None:
    await (await rt.submit(checkout, key="k")).result()


async def retry(rt: Runtime) -> None:
    await (await rt.submit(retrying, key="k")).result()


async def recover(rt: Runtime) -> None:
    await rt.run("r").result()


async def signal(rt: Runtime) -> None:
    await rt.submit(receiving, key="k", run_id="r")
    await trio.sleep(50)
    await rt.signal("r", "go", 5)
    await rt.run("r").result()


async def call(rt: Runtime) -> None:
    await rt.entity(Account, "k").deposit(5)


async def crash(store: MemoryStore) -> None:
    """Kill a runtime while the second step of a run is running."""
    with suppress(StoreError, ExceptionGroup):
        async with open_test_runtime(store, workflows=[crashing]) as rt:
            await rt.submit(crashing, key="k", run_id="r")
            await trio.sleep(50)
            store.crash()
            await trio.sleep_forever()


WALKS: dict[str, Callable[[Runtime], Awaitable[None]]] = {
    "A run": run,
    "A retry": retry,
    "A recovery after a crash": recover,
    "A signal to an evicted run": signal,
    "An entity call": call,
}


def test_the_page_has_no_other_walk() -> None:
    section = TEXT.partition("\n## Five walks\n")[2].partition("\n## ")[0]
    assert re.findall(r"^### (.*)$", section, re.MULTILINE) == list(WALKS)


@pytest.mark.parametrize("title", WALKS)
async def test_the_functions_of_a_walk_are_called_in_this_order(
    autojump_clock: MockClock, title: str
) -> None:
    store = MemoryStore()
    if WALKS[title] is recover:
        await crash(store)
    tracer = Tracer()
    sys.setprofile(tracer)
    try:
        async with open_test_runtime(
            store,
            workflows=[checkout, crashing, receiving, retrying],
            entities=[Account],
            evict_after=5,
        ) as rt:
            if WALKS[title] is not recover:
                tracer.calls.clear()
            await WALKS[title](rt)
    finally:
        sys.setprofile(None)
    rows = rows_of(title)
    assert len(rows) >= 10
    calls = iter(tracer.calls)
    missing = [row for row in rows if row not in calls]
    assert missing == []
