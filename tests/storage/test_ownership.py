"""One owner at a time, whoever is killed."""

import os
import signal
from pathlib import Path

import pytest

from keyrun.storage import LmdbStore, StoreError, StoreLocked, writer
from keyrun.storage.conformance import batch
from keyrun.storage.ownership import OwnerLock
from tests.storage.processes import line, run_python, running_python

OWNER = """
    import sys, trio
    from keyrun.storage import Batch, LmdbStore

    async def main():
        async with LmdbStore(sys.argv[1], committer=sys.argv[2]) as store:
            staged = Batch()
            staged.put("red", b"k", b"v")
            await store.commit(staged)
            print("open", flush=True)
            await trio.sleep_forever()

    trio.run(main)
"""


@pytest.mark.parametrize("committer", ["inline", "process"])
async def test_a_second_process_is_refused_with_the_pid_of_the_owner(
    tmp_path: Path, committer: str
) -> None:
    with running_python(OWNER, tmp_path, committer) as owner:
        assert line(owner) == "open"
        with pytest.raises(StoreLocked, match=f"process {owner.pid} has it open") as caught:
            async with LmdbStore(tmp_path):
                pass
        assert caught.value.pid == owner.pid
        async with LmdbStore(tmp_path, read_only=True) as store:
            assert await store.get("red", b"k") == b"v"


@pytest.mark.parametrize("committer", ["inline", "process"])
async def test_a_killed_owner_leaves_the_store_to_the_next(tmp_path: Path, committer: str) -> None:
    for _ in range(3):
        with running_python(OWNER, tmp_path, committer) as owner:
            assert line(owner) == "open"
            owner.kill()
            owner.wait()
            async with LmdbStore(tmp_path) as store:
                assert await store.get("red", b"k") == b"v"


FORKING = """
    import os, signal, sys, trio, trio.testing
    from keyrun.storage import Batch, LmdbStore

    async def main():
        async with LmdbStore(sys.argv[1], committer="process") as store:
            staged = Batch()
            staged.put("red", b"k", b"v")
            await store.commit(staged)
            committer = store._committer.process.pid
            # A commit that is under way at the fork leads to the connection as well.
            os.kill(committer, signal.SIGSTOP)
            staged.put("red", b"under way", bytes(1_000_000))
            store.stage(staged).hasten()
            await trio.testing.wait_all_tasks_blocked()
            fork = os.fork()
            if not fork:
                os.close(1)
                while True:
                    signal.pause()
            print(committer, fork, flush=True)
            await trio.sleep_forever()

    trio.run(main)
"""


async def test_opening_twice_in_one_process_says_to_share_the_object(tmp_path: Path) -> None:
    async with LmdbStore(tmp_path):
        with pytest.raises(StoreLocked, match="or share its Store object") as caught:
            async with LmdbStore(tmp_path):
                pass
        assert caught.value.pid == os.getpid()


async def test_reading_along_in_the_process_of_the_owner_says_to_share_the_object(
    tmp_path: Path,
) -> None:
    async with LmdbStore(tmp_path):
        with pytest.raises(StoreError, match="Share that Store object"):
            async with LmdbStore(tmp_path, read_only=True):
                pass


async def test_a_lock_file_that_names_nobody_still_locks(tmp_path: Path) -> None:
    with running_python(OWNER, tmp_path, "inline") as owner:
        assert line(owner) == "open"
        (tmp_path / "owner.lock").write_text("")
        with pytest.raises(StoreLocked, match="another process has it open") as caught:
            async with LmdbStore(tmp_path):
                pass
        assert caught.value.pid is None


INTERRUPTED = """
    import os, signal, sys, trio
    from keyrun.storage import Batch, LmdbStore

    async def main():
        async with LmdbStore(sys.argv[1], committer="process") as store:
            child = store._committer.process.pid
            os.kill(child, signal.SIGINT)
            os.kill(child, signal.SIGTERM)
            staged = Batch()
            staged.put("red", b"k", b"v")
            await store.commit(staged)
            print("committed")

    trio.run(main)
"""


def test_signals_to_the_whole_group_do_not_stop_the_committer(tmp_path: Path) -> None:
    child = run_python(INTERRUPTED, tmp_path)
    assert child.stdout.strip() == "committed", child.stderr


async def test_a_committer_that_is_killed_is_a_store_error_and_loses_nothing(
    tmp_path: Path,
) -> None:
    from keyrun.storage import StoreError
    from keyrun.storage.committer import ProcessCommitter

    with pytest.raises(StoreError, match="closed after a failed commit"):
        async with LmdbStore(tmp_path, committer="process") as store:
            await store.commit(batch(("red", b"acknowledged", b"")))
            assert isinstance(store._committer, ProcessCommitter)
            os.kill(store._committer.process.pid, signal.SIGKILL)
            with pytest.raises(StoreError, match="ended with code -9"):
                await store.commit(batch(("red", b"unanswered", b"")))
            with pytest.raises(StoreError, match="ended with code -9"):
                store.stage(batch(("red", b"later", b"")))
            assert await store.get("red", b"acknowledged") == b""
    async with LmdbStore(tmp_path, committer="process") as store:
        assert await store.get("red", b"acknowledged") == b""
        assert await store.get("red", b"later") is None


async def test_an_orphaned_committer_keeps_the_store_locked_until_it_has_ended(
    tmp_path: Path,
) -> None:
    with running_python(FORKING, tmp_path) as owner:
        committer, fork = map(int, line(owner).split())
        try:
            owner.kill()
            owner.wait()
            with pytest.raises(StoreLocked, match="its last commit has not finished") as caught:
                OwnerLock(tmp_path)
            assert caught.value.pid == owner.pid
        finally:
            os.kill(committer, signal.SIGCONT)
            os.kill(fork, signal.SIGKILL)
        async with LmdbStore(tmp_path) as store:
            assert await store.get("red", b"k") == b"v"


async def test_a_fork_does_not_keep_the_committer_of_its_parent_alive(tmp_path: Path) -> None:
    with running_python(FORKING, tmp_path) as owner:
        committer, fork = map(int, line(owner).split())
        try:
            os.kill(committer, signal.SIGCONT)
            owner.kill()
            owner.wait()
            async with LmdbStore(tmp_path) as store:
                assert await store.get("red", b"k") == b"v"
            os.kill(fork, 0)
        finally:
            os.kill(fork, signal.SIGKILL)


READING = """
    import sys, trio
    from keyrun.storage import LmdbStore

    async def main():
        async with LmdbStore(sys.argv[1], read_only=True) as store:
            with store.view():
                print(len(await store.scan("red")), flush=True)
                sys.stdin.read()

    trio.run(main)
"""


async def test_opening_frees_the_place_of_a_reader_that_was_killed(tmp_path: Path) -> None:
    """It would keep the pages of its snapshot from being used again."""
    async with LmdbStore(tmp_path) as store:
        await store.commit(batch(("red", b"k", b"v")))
    # LMDB clears the table by itself when nobody else is there.
    with running_python(READING, tmp_path) as alive, running_python(READING, tmp_path) as killed:
        assert line(alive) == line(killed) == "1"
        killed.kill()
        killed.wait()
        with writer.open_environment(str(tmp_path), map_size=0, read_only=True) as environment:
            assert str(killed.pid) in environment.readers().split()
        async with LmdbStore(tmp_path) as store:
            readers = store._opened_reads().environment.readers().split()
            assert str(alive.pid) in readers
            assert str(killed.pid) not in readers
