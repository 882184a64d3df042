"""Runtimes of asyncio and of threads lose the store that they share, and own it again."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import trio

from keyrun.events import EventKind, Missed
from keyrun.testing import AsyncioHost, SyncHost
from tests.control.joiners import Account, tell_resources, wait_for_go
from tests.control.leased_places import Town


def test_an_asyncio_host_is_owner_and_client_and_owner_in_one_block() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        log.append("entered")
        try:
            yield "a"
        finally:
            log.append("left")

    async def main() -> None:
        host, town = AsyncioHost(), Town()
        one, other = town.store("a"), town.store("b")
        options: Any = {**town.options, "lifespan": lifespan}
        rival: Any = town.options
        async with host.open_test_runtime(one, **options) as a:
            run = await a.submit(wait_for_go, key="k", run_id="r")
            seen: list[Any] = []

            async def follow() -> None:
                async with a.events(run_id="r") as events:
                    begun.set()
                    async for event in events:
                        seen.append(event)
                        if event.kind is EventKind.RUN_SUCCEEDED:
                            return

            async def watch() -> list[Any]:
                return [each.state async for each in a.watch("r")]

            begun = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(follow())
                result = tasks.create_task(run.result())
                states = tasks.create_task(watch())
                await begun.wait()
                async with host.open_test_runtime(other, **rival) as b:
                    assert await a.entity(Account, "k2").deposit(1) == 1
                    one.cut()
                    while town.database.holder is not other:
                        await host.sleep(1)
                    one.mend()
                    while log != ["entered", "left"]:
                        await host.sleep(1)
                    assert await a.entity(Account, "k2").deposit(1) == 2
                    assert await b.entity(Account, "k2").deposit(1) == 3
                assert await a.entity(Account, "k2").deposit(1) == 4
                assert town.database.holder is one
                await a.signal("r", "go", "now")
            assert result.result() == "now"
            assert states.result()[-1] == "succeeded"
            assert any(isinstance(each, Missed) for each in seen)
            tell = await a.submit(tell_resources, key="k")
            assert await tell.result() == "a"
        assert log == ["entered", "left"] * 2

    asyncio.run(main())


def test_threads_live_through_the_loss_of_the_store() -> None:
    log: list[str] = []

    @contextmanager
    def lifespan() -> Iterator[str]:
        thread = threading.get_ident()
        log.append("entered")
        try:
            yield "a"
        finally:
            assert threading.get_ident() == thread
            log.append("left")

    host, town = SyncHost(), Town()
    store = town.store("a")
    # Virtual time passes while a lifespan is entered in its thread.
    options: Any = {**town.options, "lifespan": lifespan, "lock_timeout": 1e6}
    with host.open_test_runtime(store, **options) as rt, ThreadPoolExecutor(4) as pool:

        def lose() -> None:
            store.lose()
            # Another process has the records for a while.
            town.database.holder, town.database.expires = store, trio.current_time() + 20

        run = rt.submit(wait_for_go, key="k", run_id="r")
        result = pool.submit(run.result)
        assert rt.entity(Account, "k2").deposit(1) == 1
        rt._bridge.now(lose)
        deposit = pool.submit(rt.entity(Account, "k2").deposit, 1)
        while log[:2] != ["entered", "left"]:
            host.sleep(1)
        assert deposit.result(10) == 2
        rt.signal("r", "go", "now")
        assert result.result(10) == "now"
        assert rt.submit(tell_resources, key="k").result() == "a"
        assert town.database.epoch == 3
    assert log == ["entered", "left"] * 2
