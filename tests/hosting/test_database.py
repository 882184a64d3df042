"""An asyncio host and a host with threads share a namespace of a real PostgreSQL, at its URL."""

import asyncio
import threading

import keyrun.asyncio
import keyrun.sync
from tests.control.joiners import OPTIONS, Account, wait_for_go
from tests.postgres import run_sql, server


def test_an_asyncio_host_that_loses_its_namespace_is_a_client_of_a_host_with_threads() -> None:
    reached, lost = threading.Event(), threading.Event()

    def in_thread(url: str) -> str:
        with keyrun.sync.open_runtime(url, namespace="shop", **OPTIONS) as rt:
            assert rt.entity(Account, "a").deposit(1) == 1
            reached.set()
            assert lost.wait(30)
            assert rt.entity(Account, "a").deposit(1) == 2
            rt.signal("r", "go", "now")
            return str(rt.run("r").result(timeout=30))

    async def main(url: str) -> None:
        async with keyrun.asyncio.open_runtime(url, namespace="shop", **OPTIONS) as rt:
            run = await rt.submit(wait_for_go, key="k", run_id="r")
            waiting = asyncio.create_task(run.result())
            other = asyncio.create_task(asyncio.to_thread(in_thread, url))
            assert await asyncio.to_thread(reached.wait, 30)
            # As if its lease had run out, and another owner had been there.
            run_sql(
                url,
                "update keyrun.part set epoch = epoch + 1, owner = null, expires = null, "
                "locked = false where namespace = 'shop'",
            )
            lost.set()
            assert await other == await waiting == "now"
            assert await rt.entity(Account, "a").deposit(1) == 3

    # A URL accepts no server that could lose commits.
    with server(fsync="on") as database:
        asyncio.run(main(database.url()))
