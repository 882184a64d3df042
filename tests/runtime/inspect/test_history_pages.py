"""The pages of a history are the history, cut into pieces."""

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Continue,
    Limits,
    PermanentError,
    Reader,
    Retry,
    Succeed,
    TransientError,
    Turn,
    current_step,
    machine,
    open_reader,
    step,
    workflow,
)
from keyrun.status import Happening
from keyrun.testing import open_test_runtime
from tests.runtime.inspect.test_pages import MOST, CountingStore, Steps

failing = {"down"}


@step(retry=Retry.fixed(delay=1, max_attempts=5, jitter=0))
async def shaky(number: int) -> int:
    await trio.sleep(0.5)
    if current_step().attempt == 1:
        raise TransientError("once")
    if number == 3 and failing:
        raise PermanentError("down")
    return number


@step
async def quick(number: int) -> int:
    return number


@workflow
async def work(ctx: Context) -> None:
    for number in range(5):
        await ctx.step(shaky, number)
    await ctx.sleep(5)


@workflow(limits=Limits(max_iterations=100_000))
async def long(ctx: Context, steps: int) -> None:
    for number in range(steps):
        await ctx.step(quick, number)


@machine()
async def turns(turn: Turn) -> Continue | Succeed:
    return Succeed(None) if turn.number == 3 else Continue(turn.number, after=1)


async def paged(reader: Reader, run_id: str, limit: int) -> list[list[Happening]]:
    pages, cursor = [], None
    while True:
        page = await reader.history_page(run_id, limit=limit, cursor=cursor)
        pages.append(list(page.events))
        cursor = page.cursor
        if cursor is None:
            return pages


async def test_the_pages_of_a_history_are_the_history(autojump_clock: MockClock) -> None:
    store = CountingStore()
    async with open_test_runtime(store, workflows=[work, turns]) as rt:
        await rt.submit(work, key="a", run_id="a")
        await rt.submit(turns, key="b", run_id="b")
        await trio.sleep(3)
        async with open_reader(store) as reader:
            for moment in range(3):
                for source in (rt, reader):
                    for run_id in ("a", "b"):
                        whole = list(await source.history(run_id))
                        for limit in (1, 2, 3, 7, 1000):
                            pages = await paged(source, run_id, limit)
                            found = [each for page in pages for each in page]
                            assert found == whole
                            assert all(len(page) <= limit + 3 for page in pages)
                if moment == 0:
                    await trio.sleep(20)  # the run has failed
                elif moment == 1:
                    failing.clear()
                    await rt.redrive("a")
                    await trio.sleep(20)
        assert [each.event for each in await rt.history("a")].count("started") == 2
        assert (await rt.history_page("nobody")).events == ()
        with pytest.raises(ValueError, match="cursor must be the cursor of a page"):
            await rt.history_page("a", cursor="x")


async def test_a_page_of_a_long_history_is_bounded(autojump_clock: MockClock) -> None:
    store = CountingStore()
    async with open_test_runtime(store, workflows=[long]) as rt:
        await (await rt.submit(long, 20_000, key="a", run_id="a")).result()
        async with open_reader(store) as reader:
            store.read = 0
            longest = []
            for _ in range(3):
                with Steps() as steps:
                    page = await reader.history_page("a", limit=10_000)
                longest.append(steps.longest)
            assert store.read < 3 * MOST
            # The whole page takes many times as long.
            assert min(longest) < 0.02
            assert len(page.events) > 5000
            pages = await paged(reader, "a", 5000)
            assert sum(map(len, pages)) == len(await reader.history("a"))
