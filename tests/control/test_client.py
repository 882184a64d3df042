"""A client: the runtime of another process, over its socket, from Trio, asyncio and threads."""

from pathlib import Path
from typing import Any

import pytest
import trio

import keyrun
import keyrun.asyncio
import keyrun.sync
from keyrun import NoOwner
from keyrun.control.roles import ITSELF
from keyrun.groups import Member
from keyrun.schedules import Every
from tests.control.clients import connected
from tests.control.world import WORKFLOWS, Account, greet, wait_for_go

OPTIONS: dict[str, Any] = {"workflows": WORKFLOWS, "entities": [Account], "control": True}


async def test_a_client_on_trio_does_what_a_runtime_does(tmp_path: Path) -> None:
    async with (
        keyrun.open_runtime(tmp_path / "state", **OPTIONS) as rt,
        keyrun.connect(tmp_path / "state") as client,
    ):
        run = await client.submit(greet, "ann", key="k", run_id="r")
        assert await run.result() == "ANN"
        assert (await run.status()).state == "succeeded"
        assert not (await client.submit(greet, "ann", key="k", run_id="r")).newly_submitted
        waiting = await client.submit_nowait(wait_for_go, key="k2")
        async with client.events(run_id=waiting.run_id) as events:
            await client.signal(waiting.run_id, "go", {"a": 1})
            assert await client.run(waiting.run_id).result(timeout=30) == {"a": 1}
            kinds = []
            async for event in events:
                kinds.append(event.kind)
                if event.kind == "run_succeeded":
                    break
        assert kinds == ["run_resumed", "run_succeeded"]
        assert [each.state async for each in client.watch("r")] == ["succeeded"]
        assert await client.entity(Account, "k").deposit(5) == 5
        assert await client.call(Account, "k", Account.deposit, 2) == 7
        group = await client.submit_group(
            "g", [Member(greet, "a", key="a"), Member(greet, "b", key="b")]
        )
        assert {each.result async for each in group} == {"A", "B"}
        assert [each.result for each in (await group.results()).values()] == ["A", "B"]
        status = await client.schedule("s", greet, "c", key="k", when=Every(3600))
        assert [status] == await rt.schedules() == await client.schedules()
        assert [each.run_id for each in (await client.find_runs(limit=1)).runs] == ["r"]
        assert client.statistics().keys >= 0


def test_a_client_on_asyncio_does_what_a_runtime_does(tmp_path: Path) -> None:
    import asyncio

    async def main() -> None:
        async with (
            keyrun.asyncio.open_runtime(tmp_path / "state", **OPTIONS),
            keyrun.asyncio.connect(tmp_path / "state") as client,
        ):
            run = await client.submit(greet, "ann", key="k", run_id="r")
            assert await run.result() == "ANN"
            waiting = await client.submit_nowait(wait_for_go, key="k2")
            async with client.events(run_id=waiting.run_id) as events:
                await client.signal(waiting.run_id, "go", 5)
                assert await client.run(waiting.run_id).result(timeout=30) == 5
                async for event in events:
                    if event.kind == "run_succeeded":
                        break
            assert [each.state async for each in client.watch("r")] == ["succeeded"]
            assert await client.entity(Account, "k").deposit(5) == 5
            group = await client.submit_group("g", [Member(greet, "a", key="a")])
            assert [each.result async for each in group] == ["A"]
            assert client.statistics().keys >= 0
            found: list[Any] = []
            page = await client.find_runs(limit=2)
            while page.cursor is not None:
                found += page.runs
                page = await client.find_runs(limit=2, cursor=page.cursor)
            assert [*found, *page.runs] == await client.runs()
            assert len(found) == 2
            assert {each.who for each in (await client.audit()).entries} == {ITSELF.name}

    asyncio.run(main())


def test_a_client_for_threads_does_what_a_runtime_does(tmp_path: Path) -> None:
    with (
        keyrun.sync.open_runtime(tmp_path / "state", **OPTIONS),
        keyrun.sync.connect(tmp_path / "state") as client,
    ):
        run = client.submit(greet, "ann", key="k", run_id="r")
        assert run.result() == "ANN"
        waiting = client.submit_nowait(wait_for_go, key="k2")
        with client.events(run_id=waiting.run_id) as events:
            client.signal(waiting.run_id, "go", 5)
            assert client.run(waiting.run_id).result(timeout=30) == 5
            for event in events:
                if event.kind == "run_succeeded":
                    break
        assert [each.state for each in client.watch("r")] == ["succeeded"]
        assert client.entity(Account, "k").deposit(5) == 5
        group = client.submit_group("g", [Member(greet, "a", key="a")])
        assert [each.result for each in group] == ["A"]
        assert client.statistics().keys >= 0
        found: list[Any] = []
        page = client.find_runs(limit=2)
        while page.cursor is not None:
            found += page.runs
            page = client.find_runs(limit=2, cursor=page.cursor)
        assert [*found, *page.runs] == client.runs()
        assert len(found) == 2
        assert {each.who for each in client.audit().entries} == {ITSELF.name}


async def test_a_call_waits_for_an_owner_and_raises_no_owner_after_its_timeout(
    tmp_path: Path,
) -> None:
    async with keyrun.connect(tmp_path / "state", call_timeout=0.1) as client:
        with pytest.raises(NoOwner, match=r"no process answered at .*No such file") as caught:
            await client.counts()
        assert isinstance(caught.value, TimeoutError)


async def test_calls_wait_while_the_owner_restarts(tmp_path: Path) -> None:
    async with keyrun.connect(tmp_path / "state") as client, trio.open_nursery() as nursery:
        answers: list[Any] = []

        async def submit(word: str) -> None:
            run = await client.submit(greet, word, key="k", run_id=word)
            answers.append(await run.result())

        async def wait() -> None:
            answers.append(await client.run("waiting").result())

        nursery.start_soon(submit, "before")
        async with keyrun.open_runtime(tmp_path / "state", **OPTIONS) as rt:
            await rt.submit(wait_for_go, key="w", run_id="waiting")
            await connected(client)
            nursery.start_soon(wait)
            await trio.sleep(0.05)
        nursery.start_soon(submit, "between")
        await trio.sleep(0.05)
        async with keyrun.open_runtime(tmp_path / "state", **OPTIONS) as rt:
            await connected(client)
            await client.signal("waiting", "go", "gone")
            with trio.fail_after(30):
                while len(answers) < 3:
                    await trio.sleep(0.01)
    assert sorted(answers) == ["BEFORE", "BETWEEN", "gone"]
