"""`when_locked="wait"`: a runtime that takes a store over when the one before it has ended."""

import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, step, workflow
from keyrun.runtime.open import open_runtime
from keyrun.storage import LmdbStore, MemoryStore, Store, StoreLocked
from keyrun.testing import open_test_runtime
from tests.storage.processes import line, running_python, say

SERVICE = """
    import logging, sys, trio
    from pathlib import Path
    import keyrun
    from keyrun import Context, step, workflow
    from keyrun.storage import LmdbStore

    @step
    async def ship(order: str) -> None:
        with Path(sys.argv[2]).open("a") as log:
            log.write(f"{order}\\n")

    @workflow
    async def fulfil(ctx: Context, order: str) -> str:
        await ctx.step(ship, f"{order} packed")
        await ctx.wait_signal("go")
        await ctx.step(ship, f"{order} sent")
        return order

    async def main():
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
        logging.getLogger("keyrun.runtime").setLevel(logging.ERROR)
        store = LmdbStore(sys.argv[1], committer=sys.argv[3])
        async with keyrun.open_runtime(
            store, workflows=[fulfil], when_locked="wait", lock_timeout=60
        ) as rt:
            print("open", flush=True)
            while command := (await trio.to_thread.run_sync(sys.stdin.readline)).split():
                if command[0] == "submit":
                    await rt.submit(fulfil, command[1], key="k", run_id=command[1])
                if command[0] == "send":
                    await rt.signal(command[1], "go")
                    print(await rt.run(command[1]).result(), flush=True)
                if command[0] == "stop":
                    break
                print("done", flush=True)

    trio.run(main)
"""


def service(tmp_path: Path, committer: str) -> "AbstractContextManager[Popen[str]]":
    return running_python(SERVICE, tmp_path / "store", tmp_path / "effects", committer)


@pytest.mark.parametrize("committer", ["inline", "process"])
@pytest.mark.parametrize("killed", [False, True], ids=["drained", "killed"])
def test_a_waiting_process_takes_over_when_the_owner_has_ended(
    tmp_path: Path, killed: bool, committer: str
) -> None:
    with service(tmp_path, committer) as old:
        assert line(old) == "open"
        say(old, "submit one")
        assert line(old) == "done"
        with service(tmp_path, committer) as new:
            waits = line(new)
            assert waits.startswith("waiting up to 60 s for a lock")
            assert f"process {old.pid} has it open" in waits
            say(old, "submit two")
            assert line(old) == "done"
            if killed:
                os.kill(old.pid, signal.SIGKILL)
            else:
                say(old, "stop")
            assert line(new).startswith("got the lock of ")
            assert line(new) == "open"
            for order in ("one", "two"):
                say(new, f"send {order}")
                assert line(new) == order
                assert line(new) == "done"
            say(new, "stop")
            new.wait(30)
            assert new.returncode == 0
    effects = (tmp_path / "effects").read_text().splitlines()
    assert effects == ["one packed", "one sent", "two packed", "two sent"]


async def test_a_process_that_waits_in_vain_says_how_long_and_for_whom(tmp_path: Path) -> None:
    with service(tmp_path, "inline") as old:
        assert line(old) == "open"
        began = trio.current_time()
        with pytest.raises(StoreLocked, match=r"waited 0\.\d s \(lock_timeout=0.3\)") as raised:
            async with open_runtime(tmp_path / "store", when_locked="wait", lock_timeout=0.3):
                pass
        assert raised.value.pid == old.pid
        assert 0.3 <= raised.value.waited <= trio.current_time() - began
        assert f"process {old.pid} has it open" in str(raised.value)


@step
async def long_step() -> None:
    await trio.sleep(5)


@workflow
async def toil(ctx: Context) -> str:
    await ctx.step(long_step)
    return "done"


def stores(kind: str, path: Path) -> tuple[Store, Store]:
    """The store as two blocks of one process open it: the same object, or two of one path."""
    if kind == "one object of LMDB":
        store: Store = LmdbStore(path)
        return store, store
    if kind == "two objects of LMDB":
        return LmdbStore(path), LmdbStore(path)
    memory = MemoryStore()
    return memory, memory


KINDS = ["one object of LMDB", "two objects of LMDB", "memory"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_second_runtime_of_a_process_waits_for_the_first(
    kind: str, tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = stores(kind, tmp_path)
    order: list[str] = []

    async def wait_and_finish() -> None:
        async with open_test_runtime(second, workflows=[toil], when_locked="wait") as rt:
            order.append("second opens")
            assert await rt.run("r").result() == "done"

    async with trio.open_nursery() as nursery:
        async with open_test_runtime(first, workflows=[toil]) as rt:
            await rt.submit(toil, key="k", run_id="r")
            nursery.start_soon(wait_and_finish)
            await trio.sleep(3)
            order.append("first drains")
        order.append("first has ended")
    assert order[0] == "first drains"
    assert "second opens" in order
    waits = [each for each in caplog.records if "waiting up to 30 s" in each.getMessage()]
    assert len(waits) == 1
    assert waits[0].name == "keyrun.storage"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_wait_can_be_cancelled_and_leaves_nothing_behind(
    kind: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    first, second = stores(kind, tmp_path)
    async with open_test_runtime(first, workflows=[toil]):
        with trio.move_on_after(2) as scope:
            async with open_test_runtime(second, when_locked="wait"):
                pytest.fail("opened")
        assert scope.cancelled_caught
        assert trio.current_time() == pytest.approx(2, abs=0.1)
    async with open_test_runtime(second, workflows=[toil]):
        pass


@pytest.mark.parametrize("kind", KINDS)
async def test_a_wait_ends_at_its_timeout(
    kind: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    first, second = stores(kind, tmp_path)
    async with open_test_runtime(first):
        for timeout in (0, 2.5):
            began = trio.current_time()
            with pytest.raises(StoreLocked, match=f"lock_timeout={timeout:g}") as raised:
                async with open_test_runtime(second, when_locked="wait", lock_timeout=timeout):
                    pytest.fail("opened")
            assert raised.value.waited == pytest.approx(timeout)
            assert trio.current_time() - began == pytest.approx(timeout)


async def test_the_event_loop_goes_on_during_a_wait(tmp_path: Path) -> None:
    with service(tmp_path, "inline") as old:
        assert line(old) == "open"
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                await trio.sleep(0.01)
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn)
            with pytest.raises(StoreLocked):
                async with open_runtime(tmp_path / "store", when_locked="wait", lock_timeout=1):
                    pytest.fail("opened")
            nursery.cancel_scope.cancel()
        assert turns > 5


async def test_an_open_fails_at_once_unless_it_is_told_to_wait(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store):
        with pytest.raises(StoreLocked, match="belongs to another runtime") as raised:
            async with open_test_runtime(store, lock_timeout=5):
                pytest.fail("opened")
        assert raised.value.waited == 0
        assert trio.current_time() == 0
    assert not caplog.records
