"""Runtimes of asyncio and of threads share a store with another process, which is killed."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import keyrun.asyncio
import keyrun.sync
from keyrun.errors import UnknownWorkflow
from keyrun.events import EventKind, Missed
from keyrun.groups import Member
from tests.control.joiners import OPTIONS, Account, append, other_owner, tell_resources, wait_for_go
from tests.hosting.hosts import GUEST, HOSTS, Host

JOIN: dict[str, Any] = {**OPTIONS, "when_locked": "join"}


def members() -> list[Member[Any, Any]]:
    """The members of a group."""
    return [Member(wait_for_go, None, key=f"k{at}", member_id=str(at)) for at in range(3)]


@pytest.mark.parametrize("host", [GUEST, HOSTS["thread"]], ids=["guest", "thread"])
def test_all_calls_of_an_asyncio_host_live_through_the_death_of_the_owner(
    tmp_path: Path, host: Host
) -> None:
    async def main() -> None:
        with other_owner(tmp_path) as owner:
            async with keyrun.asyncio.open_runtime(tmp_path, thread=host.thread, **JOIN) as rt:
                await use(rt, owner.kill)

    async def use(rt: keyrun.asyncio.Runtime, kill: Callable[[], None]) -> None:
        run = await rt.submit(wait_for_go, key="k", run_id="r")
        group = await rt.submit_group("g", members())
        account = rt.entity(Account, "account")
        assert await account.deposit(1) == 1
        seen: list[Any] = []

        async def follow() -> None:
            async with rt.events(run_id="r") as events:
                begun.set()
                async for event in events:
                    seen.append(event)
                    if event.kind is EventKind.RUN_SUCCEEDED:
                        return

        async def watch() -> list[Any]:
            return [each.state async for each in rt.watch("r")]

        async def iterate() -> list[str]:
            return sorted([each.member_id async for each in group])

        begun = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(follow())
            result = tasks.create_task(run.result())
            states = tasks.create_task(watch())
            ended = tasks.create_task(iterate())
            await begun.wait()
            abandoned = asyncio.create_task(rt.run("r").result())
            await asyncio.sleep(0.1)
            kill()
            abandoned.cancel()
            calls = [rt.submit(append, [str(lines), str(at)], key=f"s{at}") for at in range(10)]
            handles = await asyncio.gather(*calls)
            assert await account.deposit(1) == 2
            assert await asyncio.gather(*[each.result() for each in handles])
            while not any(isinstance(each, Missed) for each in seen):
                await asyncio.sleep(0.002)
            for at in range(3):
                await rt.signal(f"g-{at}", "go")
            await rt.signal("r", "go", "now")
        assert result.result() == "now"
        assert states.result()[-1] == "succeeded"
        assert ended.result() == ["0", "1", "2"]
        assert abandoned.cancelled()

    lines = tmp_path / "lines"
    host.run(main())
    assert sorted(map(int, lines.read_text().split())) == list(range(10))


def test_all_calls_of_threads_live_through_the_death_of_the_owner(tmp_path: Path) -> None:
    lines = tmp_path / "lines"

    def submit(at: int) -> str:
        run = rt.submit(append, [str(lines), str(at)], key=f"s{at}")
        return run.result(timeout=30)

    def follow() -> list[Any]:
        seen = []
        with rt.events(run_id="r") as events:
            begun.set()
            for event in events:
                seen.append(event)
                if isinstance(event, Missed):
                    missed.set()
                if event.kind is EventKind.RUN_SUCCEEDED:
                    break
        return seen

    begun, missed = threading.Event(), threading.Event()
    with (
        other_owner(tmp_path) as owner,
        keyrun.sync.open_runtime(tmp_path, **JOIN) as rt,
        ThreadPoolExecutor(20) as pool,
    ):
        run = rt.submit(wait_for_go, key="k", run_id="r")
        group = rt.submit_group("g", members())
        account = rt.entity(Account, "account")
        assert account.deposit(1) == 1
        events = pool.submit(follow)
        result = pool.submit(run.result)
        ended = pool.submit(lambda: sorted(each.member_id for each in group))
        assert begun.wait(10)
        time.sleep(0.1)
        owner.kill()
        assert list(pool.map(submit, range(10))) == list(map(str, range(10)))
        assert account.deposit(1) == 2
        assert missed.wait(10)
        for at in range(3):
            rt.signal(f"g-{at}", "go")
        rt.signal("r", "go", "now")
        assert result.result(10) == "now"
        assert ended.result(10) == ["0", "1", "2"]
        assert events.result(10)[-1].kind is EventKind.RUN_SUCCEEDED
    assert sorted(map(int, lines.read_text().split())) == list(range(10))


@pytest.mark.parametrize("host", [GUEST, HOSTS["thread"]], ids=["guest", "thread"])
def test_the_lifespan_is_entered_on_the_loop_by_the_owner_only(tmp_path: Path, host: Host) -> None:
    log: list[str] = []
    loop: Any = None

    @asynccontextmanager
    async def first() -> AsyncIterator[str]:
        log.append("first entered")
        yield "first"
        log.append("first left")

    @asynccontextmanager
    async def second() -> AsyncIterator[str]:
        assert asyncio.get_running_loop() is loop
        task = asyncio.current_task()
        await asyncio.sleep(0)
        log.append("second entered")
        yield "second"
        await asyncio.sleep(0)
        assert asyncio.current_task() is task
        log.append("second left")

    async def main() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        opened = {"thread": host.thread, **JOIN}
        outer = keyrun.asyncio.open_runtime(tmp_path, lifespan=first, **opened)
        inner = keyrun.asyncio.open_runtime(tmp_path, lifespan=second, **opened)
        rt = await outer.__aenter__()
        try:
            run = await rt.submit(tell_resources, key="k")
            assert await run.result() == "first"
            async with inner as heir:
                await outer.__aexit__(None, None, None)
                run = await heir.submit(tell_resources, key="k")
                assert await run.result() == "second"
        finally:
            if "first left" not in log:
                await outer.__aexit__(None, None, None)

    host.run(main())
    assert log == ["first entered", "first left", "second entered", "second left"]


def test_a_lifespan_that_fails_at_the_take_over_ends_the_block(tmp_path: Path) -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        if tmp_path.exists():
            raise ValueError("no pool")
        yield

    async def main() -> None:
        owner = keyrun.sync.start(tmp_path, **JOIN)
        async with keyrun.asyncio.open_runtime(tmp_path, lifespan=broken, **JOIN) as rt:
            assert await rt.status("none") is None
            owner.stop()
            await asyncio.sleep(20)

    with pytest.raises(ValueError, match="no pool"):
        GUEST.run(main())


def test_a_plain_lifespan_is_entered_in_a_thread_by_the_owner_only(tmp_path: Path) -> None:
    log: list[Any] = []

    @contextmanager
    def pool(name: str) -> Iterator[str]:
        thread = threading.get_ident()
        log.append(f"{name} entered")
        yield name
        assert threading.get_ident() == thread
        log.append(f"{name} left")

    owner = keyrun.sync.start(tmp_path, lifespan=lambda: pool("owner"), **JOIN)
    with keyrun.sync.open_runtime(tmp_path, lifespan=lambda: pool("heir"), **JOIN) as rt:
        assert rt.submit(tell_resources, key="k").result() == "owner"
        owner.stop()
        assert rt.submit(tell_resources, key="k").result() == "heir"
    assert log == ["owner entered", "owner left", "heir entered", "heir left"]


def test_the_error_of_a_take_over_ends_the_block(tmp_path: Path) -> None:
    refusing: dict[str, Any] = {
        "workflows": [append],
        "when_locked": "join",
        "on_unregistered": "refuse",
    }

    async def main() -> None:
        owner = keyrun.sync.start(tmp_path, **JOIN)
        async with keyrun.asyncio.open_runtime(tmp_path, **refusing) as rt:
            await rt.submit(wait_for_go, key="k")
            owner.stop()
            await asyncio.sleep(20)

    with pytest.raises(UnknownWorkflow, match="wait_for_go"):
        GUEST.run(main())


def in_child(call: Callable[[], object]) -> str:
    """Return the error of a call in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
            os.write(write, b"no error")
        except Exception as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


def test_a_fork_of_a_client_or_an_owner_says_so_and_leaves_the_parent_alone(
    tmp_path: Path,
) -> None:
    with (
        keyrun.sync.open_runtime(tmp_path, **JOIN) as owner,
        keyrun.sync.open_runtime(tmp_path, **JOIN) as client,
    ):
        for rt in (owner, client):
            said = in_child(partial(rt.status, "none"))
            assert f"belongs to the parent process {os.getpid()}" in said
            run = rt.submit(append, [str(tmp_path / "lines"), "a"], key="k")
            assert run.result(timeout=10) == "a"


def test_a_fork_of_an_asyncio_host_says_so_and_leaves_the_parent_alone(tmp_path: Path) -> None:
    async def main() -> None:
        with keyrun.sync.open_runtime(tmp_path, **JOIN):
            async with keyrun.asyncio.open_runtime(tmp_path, **JOIN) as rt:
                said = in_child(lambda: rt.status("none").send(None))
                assert f"belongs to the parent process {os.getpid()}" in said
                run = await rt.submit(append, [str(tmp_path / "lines"), "a"], key="k")
                assert await run.result() == "a"

    GUEST.run(main())


def test_a_forked_child_does_not_hide_the_death_of_the_owner(tmp_path: Path) -> None:
    with (
        other_owner(tmp_path) as owner,
        keyrun.sync.open_runtime(tmp_path, **JOIN) as rt,
    ):
        assert rt.status("none") is None
        owner.fork()
        assert owner.child is not None
        owner.kill()
        began = time.monotonic()
        run = rt.submit(append, [str(tmp_path / "lines"), "a"], key="k")
        assert run.result(timeout=10) == "a"
        assert time.monotonic() - began < 10
        os.kill(owner.child, 0)  # it still runs
