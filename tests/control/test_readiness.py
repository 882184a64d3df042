"""`/readyz` says that a runtime cannot do its work, or soon cannot."""

import asyncio
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import keyrun.asyncio
import keyrun.web
from keyrun import Context, Retry, State, step, workflow
from keyrun.control.performer import Performer
from keyrun.runtime.tuning import Tuning
from keyrun.storage import LmdbStore, MemoryStore, Store
from tests.control.world import Client, served
from tests.storage.committers import stopped


@workflow
async def flow(ctx: Context) -> None: ...


async def ready(client: Client) -> tuple[int, bytes]:
    answer = await client.call("GET", "/readyz")
    return answer.status, answer.body


@pytest.mark.parametrize(("spare", "expected"), [(-1, (503, b"disk")), (1, (200, b"ok"))])
async def test_a_runtime_whose_disk_is_nearly_full_is_not_ready_and_still_works(
    spare: int, expected: Any, autojump_clock: MockClock, tmp_path: Path
) -> None:
    class OnDisk(LmdbStore):
        def disk_free(self) -> int:
            return Tuning().least_disk + spare

    async with served(options={"store": OnDisk(tmp_path / "state"), "workflows": [flow]}) as client:
        run = await client.rt.submit(flow, key="k")
        await run.result()
        assert await ready(client) == expected
        assert (await client.call("GET", "/livez")).body == b"ok"
        assert (await client.rt.status(run.run_id)).state is State.SUCCEEDED


async def test_the_free_space_is_that_of_the_disk_of_the_store(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    store: Store = LmdbStore(tmp_path / "state")
    options = {"store": store, "tuning": Tuning(least_disk=2**62)}
    async with served(options=options) as client:
        await trio.testing.wait_all_tasks_blocked()
        assert await ready(client) == (503, b"disk")


async def test_a_store_without_a_disk_is_ready(autojump_clock: MockClock) -> None:
    async with served(options={"tuning": Tuning(least_disk=2**62)}) as client:
        await trio.testing.wait_all_tasks_blocked()
        assert await ready(client) == (200, b"ok")


async def test_a_runtime_whose_event_loop_was_late_is_not_ready_until_it_answers_in_time(
    mock_clock: MockClock,
) -> None:
    async with served() as client:
        await trio.testing.wait_all_tasks_blocked()
        performer = client.api._performer
        loop = client.rt._partition.state.host.watchdog.loop

        def ask() -> None:
            now = trio.current_time()
            loop.look(now, now)

        ask()
        mock_clock.jump(10)
        assert performer.trouble() is None
        mock_clock.jump(0.5)
        # The loop has not answered yet.
        assert performer.trouble() == "stalled"
        await trio.testing.wait_all_tasks_blocked()
        assert await ready(client) == (503, b"stalled")
        ask()
        assert await ready(client) == (503, b"stalled")
        await trio.testing.wait_all_tasks_blocked()
        assert await ready(client) == (200, b"ok")


async def test_a_runtime_whose_commit_does_not_return_is_not_ready(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "state", committer="process")
    tuning = Tuning(stalled_after=0.2)
    async with served(options={"store": store, "workflows": [flow], "tuning": tuning}) as client:
        with trio.fail_after(60):
            while await ready(client) != (200, b"ok"):
                await trio.sleep(0.01)
            async with trio.open_nursery() as nursery:
                with stopped(store):  # it writes nothing, like a broken disk
                    nursery.start_soon(partial(client.rt.submit, flow, key="k"))
                    while await ready(client) != (503, b"commit"):
                        await trio.sleep(0.01)
                    scraped = (await client.call("GET", "/metrics")).body.decode()
            assert await ready(client) == (200, b"ok")
    found = re.search(r"keyrun_commit_running_seconds\{.*?\} (\S+)", scraped)
    assert found is not None
    assert 0.2 < float(found[1]) < 60


def test_the_api_on_another_loop_says_that_the_loop_of_the_runtime_is_held() -> None:
    release = threading.Event()

    @step(retry=Retry.none())
    async def holds_the_loop() -> None:
        release.wait(60)

    @workflow
    async def blocks(ctx: Context) -> None:
        await ctx.step(holds_the_loop)

    async def becomes(word: str | None, owner: Performer) -> None:
        async with asyncio.timeout(60):
            while owner.trouble() != word:
                await asyncio.sleep(0.01)

    async def main() -> None:
        tuning = Tuning(watchdog_period=0.01, stalled_after=0.2)
        async with keyrun.asyncio.open_runtime(
            MemoryStore(), workflows=[blocks], thread=True, tuning=tuning
        ) as rt:
            owner = keyrun.web.app(rt, authorize=lambda request: None)._performer
            await becomes(None, owner)
            run = await rt.submit(blocks, key="k")
            await becomes("stalled", owner)
            release.set()
            await run.result()
            await becomes(None, owner)

    asyncio.run(main())
