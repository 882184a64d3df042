"""Several runtimes share a store: roles, and how calls and streams live through a take-over."""

import fcntl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import keyrun.web
from keyrun import RunOutcome, State
from keyrun.errors import NoOwner, StoreClosed, StoreFull, UnknownWorkflow
from keyrun.events import EventKind, Missed
from keyrun.groups import Member
from keyrun.storage import LmdbStore
from tests.control.joiners import (
    Account,
    append,
    crowd,
    hold,
    member,
    other_owner,
    owns,
    tell_resources,
    until_owner,
    wait_for_go,
)


async def test_the_first_owns_the_store_and_the_others_forward_their_calls(tmp_path: Path) -> None:
    async with crowd(tmp_path) as members:
        owner = await members.join()
        client = await members.join()
        assert owns(owner.rt)
        assert not owns(client.rt)
        run = await client.rt.submit(append, [str(tmp_path / "lines"), "a"], key="k")
        assert await run.result() == "a"
        status = await owner.rt.run(run.run_id).status()
        assert status.state is State.SUCCEEDED
        assert await client.rt.entity(Account, "k").deposit(5) == 5
        assert await owner.rt.entity(Account, "k").deposit(5) == 10


async def test_a_client_takes_over_when_the_owner_leaves(tmp_path: Path) -> None:
    async with crowd(tmp_path) as members:
        owner, client = await members.join(), await members.join()
        run = await client.rt.submit(wait_for_go, key="k", run_id="r")
        await owner.leave()
        await until_owner(client.rt)
        await client.rt.signal("r", "go", "now")
        assert await run.result() == "now"


async def test_exactly_one_of_many_clients_takes_over(tmp_path: Path) -> None:
    async with crowd(tmp_path) as members:
        first = await members.join()
        others = [await members.join() for _ in range(4)]
        await first.leave()
        with trio.fail_after(20):
            while not any(owns(each.rt) for each in others):
                await trio.sleep(0.002)
        for each in others:
            run = await each.rt.submit(append, [str(tmp_path / "lines"), "a"], key="k")
            assert await run.result() == "a"
        assert [owns(each.rt) for each in others].count(True) == 1


async def test_each_kind_of_call_that_waits_lives_through_a_take_over(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    async with crowd(tmp_path) as members:
        owner, client = await members.join(), await members.join()
        rt = client.rt
        run = await rt.submit(wait_for_go, key="k", run_id="r")
        group = await rt.submit_group(
            "g", [Member(wait_for_go, None, key=f"k{at}", member_id=str(at)) for at in range(3)]
        )
        account = rt.entity(Account, "account")
        assert await account.deposit(1) == 1
        begun = trio.Event()

        async def wait_for_result() -> None:
            found["result"] = await run.result()

        async def follow_events() -> None:
            seen = found["events"] = []
            async with rt.events(run_id="r") as events:
                begun.set()
                async for event in events:
                    seen.append(event)
                    if event.kind is EventKind.RUN_SUCCEEDED:
                        return

        async def watch() -> None:
            found["watch"] = [each.state async for each in rt.watch("r")]

        async def iterate() -> None:
            found["group"] = sorted([each.member_id async for each in group])

        async with trio.open_nursery() as nursery:
            for each in (wait_for_result, follow_events, watch, iterate):
                nursery.start_soon(each)
            await begun.wait()
            await trio.sleep(0.1)
            await owner.leave()
            await until_owner(rt)
            assert await account.deposit(1) == 2
            while not any(isinstance(each, Missed) for each in found["events"]):
                await trio.sleep(0.002)
            for at in range(3):
                await rt.signal(f"g-{at}", "go")
            await rt.signal("r", "go", 7)
    assert found["result"] == "7"
    assert found["events"][-1].run_id == "r"
    assert found["watch"][-1] is State.SUCCEEDED
    assert found["group"] == ["0", "1", "2"]


async def test_calls_without_an_owner_are_delayed_and_then_answered(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    async with crowd(tmp_path / "store") as members:
        with other_owner(tmp_path / "store") as owner:
            client = await members.join()
            await client.rt.submit(wait_for_go, key="w", run_id="w")
            answers: list[Any] = []

            async def call(function: Callable[[], Any]) -> None:
                answers.append(await function())

            async def submit(at: int) -> str:
                run = await client.rt.submit(append, [str(lines), str(at)], key=f"k{at}")
                return str(await run.result())

            async with trio.open_nursery() as nursery:
                owner.kill()
                for at in range(20):
                    nursery.start_soon(call, partial(submit, at))
                nursery.start_soon(call, partial(client.rt.signal, "w", "go"))
                nursery.start_soon(call, client.rt.entity(Account, "a").deposit)
            assert len(answers) == 22
        assert sorted(map(int, lines.read_text().split())) == list(range(20))


async def test_the_lifespan_and_the_hook_are_those_of_the_owner(tmp_path: Path) -> None:
    log: list[str] = []

    def options(name: str) -> dict[str, Any]:
        @asynccontextmanager
        async def lifespan() -> AsyncIterator[str]:
            log.append(f"{name} entered")
            yield name
            log.append(f"{name} left")

        async def on_terminal(outcome: RunOutcome) -> None:
            log.append(f"{name} hook {outcome.run_id}")

        return {"lifespan": lifespan, "on_terminal": on_terminal}

    async with crowd(tmp_path) as members:
        first = await members.join(**options("first"))
        second = await members.join(**options("second"))
        run = await second.rt.submit(tell_resources, key="k", run_id="r1")
        assert await run.result() == "first"
        with trio.fail_after(10):
            while "first hook r1" not in log:
                await trio.sleep(0.002)
        await first.leave()
        await until_owner(second.rt)
        run = await second.rt.submit(tell_resources, key="k", run_id="r2")
        assert await run.result() == "second"
    assert log == [
        "first entered",
        "first hook r1",
        "first left",
        "second entered",
        "second hook r2",
        "second left",
    ]


async def test_an_owner_that_drains_accepts_runs_for_the_next_owner(tmp_path: Path) -> None:
    async with crowd(tmp_path) as members:
        owner, client = await members.join(), await members.join()
        busy = await client.rt.submit(hold, 0.5, key="h")
        while (await busy.status()).step is None:
            await trio.sleep(0.002)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owner.leave)
            await trio.sleep(0.1)
            with trio.fail_after(0.3):
                run = await client.rt.submit(wait_for_go, key="k", run_id="r")
                assert (await run.status()).state is State.PENDING
            deposits = trio.Event()

            async def deposit() -> None:
                # An entity call needs an owner that does not drain.
                assert await client.rt.entity(Account, "a").deposit(1) == 1
                assert owns(client.rt)
                deposits.set()

            nursery.start_soon(deposit)
            await busy.result()
        assert deposits.is_set()
        await client.rt.signal("r", "go", 1)
        assert await run.result() == "1"


async def test_a_client_that_leaves_closes_only_itself(tmp_path: Path) -> None:
    async with crowd(tmp_path) as members:
        owner, client = await members.join(), await members.join()
        run = await client.rt.submit(wait_for_go, key="k")
        errors: list[Exception] = []

        async def wait() -> None:
            try:
                await run.result()
            except StoreClosed as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(0.05)
            await client.leave()
        assert errors
        with pytest.raises(StoreClosed):
            await run.status()
        assert (await owner.rt.run(run.run_id).status()).state is State.WAITING


async def test_a_call_finds_no_owner_in_time(tmp_path: Path) -> None:
    with other_owner(tmp_path) as owner:
        async with member(tmp_path, lock_timeout=0.3) as rt:
            await rt.status("none")
            with (tmp_path / "owner.lock").open() as lock:
                owner.kill()
                fcntl.flock(lock, fcntl.LOCK_EX)
                with pytest.raises(NoOwner, match="has the store open"):
                    await rt.status("none")
            # As soon as the store is free, this process owns it.
            assert await rt.status("none") is None


async def test_if_the_engine_of_the_owner_fails_its_block_ends_and_another_takes_over(
    tmp_path: Path,
) -> None:
    async with crowd(tmp_path) as members:
        store = FullStore(tmp_path)
        owner = await members.join(store=store)
        client = await members.join()
        run = await client.rt.submit(wait_for_go, key="k", run_id="r")
        waiting: list[str] = []

        async def wait() -> None:
            waiting.append(await run.result())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(0.05)
            store.is_full = True
            with pytest.raises(StoreFull):
                await owner.rt.submit(wait_for_go, key="k2")
            assert isinstance(await owner.failed(), StoreFull)
            await until_owner(client.rt)
            await client.rt.signal("r", "go", 1)
    assert waiting == ["1"]


class FullStore(LmdbStore):
    """A store on a disk that becomes full."""

    is_full = False

    async def _commit(self, tables: Any) -> None:
        if self.is_full:
            raise StoreFull("the disk is full")
        await super()._commit(tables)


async def test_a_process_that_cannot_take_over_says_why_and_leaves_the_store(
    tmp_path: Path,
) -> None:
    async with crowd(tmp_path) as members:
        owner = await members.join()
        await owner.rt.submit(wait_for_go, key="k", run_id="r")
        poor = await members.join(workflows=[append], on_unregistered="refuse")
        await owner.leave()
        error = await poor.failed()
        assert isinstance(error, UnknownWorkflow)
        assert "wait_for_go" in str(error)
        heir = await members.join()
        await heir.rt.signal("r", "go", 1)
        assert await heir.rt.run("r").result() == "1"


async def test_a_payload_that_is_encrypted_is_read_before_and_after_a_take_over(
    tmp_path: Path,
) -> None:
    async with crowd(tmp_path) as members:
        owner = await members.join(transform=Reversed())
        client = await members.join(transform=Reversed())
        found: list[Any] = []
        run = await client.rt.submit(wait_for_go, key="k", run_id="r")

        async def wait() -> None:
            found.append(await run.result())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(0.05)
            await owner.leave()
            await until_owner(client.rt)
            await client.rt.signal("r", "go", "secret")
        assert found == ["secret"]
        assert await run.result() == "secret"
        again = await client.rt.submit(append, [str(tmp_path / "lines"), "b"], key="k")
        assert await again.result() == "b"


class Reversed:
    """A transform that is no encoding of msgpack."""

    def wrap(self, data: bytes) -> bytes:
        return b"\xc1" + data[::-1]

    def unwrap(self, data: bytes) -> bytes:
        assert data[:1] == b"\xc1"
        return data[:0:-1]


async def test_a_block_that_is_cancelled_drains_the_engine_of_the_owner(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with member(tmp_path) as rt:
            run = await rt.submit(hold, 0.2, key="k", run_id="r")
            while (await run.status()).step is None:
                await trio.sleep(0.002)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    async with member(tmp_path) as rt:
        assert (await rt.run("r").status()).steps_done == 1


async def test_an_error_in_the_block_of_a_client_or_an_owner_is_itself(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        async with member(tmp_path):
            with pytest.raises(ZeroDivisionError):
                async with member(tmp_path):
                    raise ZeroDivisionError
            raise KeyError


async def test_a_runtime_that_shares_a_store_cannot_be_mounted(tmp_path: Path) -> None:
    async with member(tmp_path) as rt:
        with pytest.raises(TypeError, match=r"pass control=Control\(http=\.\.\.\)"):
            keyrun.web.app(rt, authorize=lambda request: None)
