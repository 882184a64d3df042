"""Opening, growing, reading from elsewhere, and failing: what is particular to LMDB."""

import errno
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pytest
import trio

from keyrun.storage import (
    LmdbStore,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreTooNew,
    identity,
    writer,
)
from keyrun.storage.conformance import batch
from keyrun.storage.lmdb_store import CommitterName
from tests.storage.committers import committer_of, held_back, wait_until_applied
from tests.storage.processes import line, running_python, say

COMMITTERS: list[CommitterName] = ["inline", "process"]

both_committers = pytest.mark.parametrize("committer", COMMITTERS)


def readers_of(store: LmdbStore) -> str:
    """The readers of the store, as LMDB lists them."""
    return store._opened_reads().environment.readers()


async def make(path: Path, records: int = 10) -> None:
    async with LmdbStore(path) as store:
        await store.commit(batch(*(("red", b"%05d" % n, b"v" * 100) for n in range(records))))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"committer": "thread"}, "committer must be 'inline' or 'process', got 'thread'"),
        ({"map_size": 0}, "map_size must be at least 1048576 bytes, got 0"),
    ],
)
def test_bad_arguments_are_refused_by_name(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LmdbStore(tmp_path, **arguments)


async def test_a_store_is_made_with_the_directories_above_it(tmp_path: Path) -> None:
    await make(tmp_path / "a" / "b", records=3)
    async with LmdbStore(tmp_path / "a" / "b") as store:
        assert len(await store.scan("red")) == 3
    assert {file.name for file in (tmp_path / "a" / "b").iterdir()} == {
        "data.mdb",
        "keyrun.json",
        "lock.mdb",
        "owner.lock",
    }


async def test_the_names_of_directories_that_are_made_are_durable_before_the_store_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss would take a directory with all that is in it."""
    said: list[Path | str] = []
    monkeypatch.setattr(identity, "sync_directory", said.append)
    monkeypatch.setattr(identity, "write_identity", lambda *_: said.append("it is a store"))
    path = tmp_path / "far" / "away" / "store"
    async with LmdbStore(path):
        before = said[: said.index("it is a store")]
    assert {tmp_path, tmp_path / "far", path.parent, path} <= set(before)


async def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    with pytest.raises(StoreError, match="is a file; a store is a directory"):
        async with LmdbStore(tmp_path / "file"):
            pass


async def test_a_foreign_lmdb_environment_is_refused_and_left_alone(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"theirs", b"1")
    with pytest.raises(StoreError, match="not a Keyrun store"):
        async with LmdbStore(tmp_path):
            pass
    with lmdb.open(str(tmp_path)) as environment, environment.begin() as transaction:
        assert list(transaction.cursor()) == [(b"theirs", b"1")]


async def test_data_cut_to_zero_bytes_is_not_taken_for_an_empty_store(tmp_path: Path) -> None:
    await make(tmp_path)
    (tmp_path / "data.mdb").write_bytes(b"")
    with pytest.raises(StoreCorrupt, match=r"data.mdb is empty, but keyrun.json says"):
        async with LmdbStore(tmp_path):
            pass
    (tmp_path / "data.mdb").unlink()
    with pytest.raises(StoreCorrupt, match=r"data.mdb is missing, but keyrun.json says"):
        async with LmdbStore(tmp_path, read_only=True):
            pass


async def test_data_that_was_cut_short_is_told_from_its_header(tmp_path: Path) -> None:
    await make(tmp_path, records=5000)
    data = tmp_path / "data.mdb"
    os.truncate(data, data.stat().st_size // 2 // 4096 * 4096)
    for read_only in (False, True):
        with pytest.raises(StoreCorrupt, match="but its header says"):
            async with LmdbStore(tmp_path, read_only=read_only):
                pass


@pytest.mark.parametrize("left", [bytes(8192), bytes(4096), b"torn" * 1000])
async def test_the_beginning_of_a_store_whose_header_never_arrived_is_put_aside(
    tmp_path: Path, left: bytes
) -> None:
    """A power loss while a store is made can leave its first pages without what was in them."""
    (tmp_path / "data.mdb").write_bytes(left)
    await make(tmp_path)
    assert (tmp_path / "data.mdb.unfinished").read_bytes() == left


async def test_more_than_the_beginning_of_a_store_is_never_moved(tmp_path: Path) -> None:
    left = bytes(1 << 20)
    (tmp_path / "data.mdb").write_bytes(left)
    with pytest.raises(StoreError, match="not an LMDB file"):
        await make(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == left


async def test_a_header_that_was_lost_is_told_where_there_was_a_store(tmp_path: Path) -> None:
    await make(tmp_path, records=1)
    (tmp_path / "data.mdb").write_bytes(bytes(8192))
    with pytest.raises(StoreError, match="not an LMDB file"):
        await make(tmp_path)
    assert (tmp_path / "data.mdb").exists()


def leave_short(path: Path) -> int:
    """Make LMDB leave a file that is shorter than its header says; how many bytes are there."""
    random = Random(1)
    data = path / "data.mdb"
    with writer.open_environment(str(path), map_size=1 << 30) as environment:
        table = environment.open_db(b"green")
        for _ in range(1000):
            with environment.begin(write=True) as transaction:
                for _ in range(random.randrange(200)):
                    value = bytes(random.choice([10, 200, 3000, 9000]))
                    transaction.put(b"%05d" % random.randrange(3000), value, db=table)
                if random.random() < 0.7:
                    first = random.randrange(3000)
                    for number in range(first, first + random.randrange(2000)):
                        transaction.delete(b"%05d" % number, db=table)
            size = data.stat().st_size
            if size < (environment.info()["last_pgno"] + 1) * 4096:
                return size
    raise AssertionError("LMDB has come to write every page")


async def test_a_file_that_is_short_only_by_pages_not_in_use_opens(tmp_path: Path) -> None:
    """LMDB never writes pages that a transaction took and gave back; such a file is whole."""
    await make(tmp_path)
    size = leave_short(tmp_path)
    async with LmdbStore(tmp_path, read_only=True) as store:
        assert len(await store.scan("red")) == 10
    assert (tmp_path / "data.mdb").stat().st_size == size
    async with LmdbStore(tmp_path) as store:
        assert len(await store.scan("red")) == 10
    assert (tmp_path / "data.mdb").stat().st_size > size


async def test_data_and_identity_of_two_stores_do_not_mix(tmp_path: Path) -> None:
    await make(tmp_path / "a")
    await make(tmp_path / "b")
    (tmp_path / "a" / "data.mdb").write_bytes((tmp_path / "b" / "data.mdb").read_bytes())
    for read_only in (False, True):
        with pytest.raises(StoreCorrupt, match="but the data is that of"):
            async with LmdbStore(tmp_path / "a", read_only=read_only):
                pass


async def test_data_that_names_no_store_does_not_pass_for_one(tmp_path: Path) -> None:
    await make(tmp_path / "a")
    lmdb.open(str(tmp_path / "empty"), max_dbs=1).open_db(b"theirs")
    (tmp_path / "a" / "data.mdb").write_bytes((tmp_path / "empty" / "data.mdb").read_bytes())
    with pytest.raises(StoreCorrupt, match="does not name a store"):
        async with LmdbStore(tmp_path / "a"):
            pass


async def test_a_store_whose_maker_died_before_the_identity_file_opens(tmp_path: Path) -> None:
    await make(tmp_path)
    (tmp_path / "keyrun.json").unlink()
    async with LmdbStore(tmp_path) as store:
        assert len(await store.scan("red")) == 10
    async with LmdbStore(tmp_path, read_only=True) as store:
        assert len(await store.scan("red")) == 10


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"{}",
        b'{"id": "x", "format": 1}',
        b"[]",
        b"\xff\xfe",
        b'{"id": 5, "format": 1}',
        b'{"id": "x", "format": 1e400}',
        b"[" * 100_000,
    ],
)
async def test_a_damaged_identity_file_is_told(tmp_path: Path, text: bytes) -> None:
    await make(tmp_path)
    (tmp_path / "keyrun.json").write_bytes(text)
    with pytest.raises(StoreCorrupt, match=r"keyrun.json is damaged"):
        async with LmdbStore(tmp_path):
            pass


async def test_a_store_of_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    await make(tmp_path)
    file = tmp_path / "keyrun.json"
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))
    for read_only in (False, True):
        with pytest.raises(StoreTooNew, match=r"format 2, .* reads up to 1; upgrade Keyrun"):
            async with LmdbStore(tmp_path, read_only=read_only):
                pass


async def test_data_that_lmdb_cannot_read_is_a_store_error(tmp_path: Path) -> None:
    await make(tmp_path)
    data = tmp_path / "data.mdb"
    data.write_bytes(b"\xaa" * data.stat().st_size)
    with pytest.raises(StoreError, match="cannot open the store"):
        async with LmdbStore(tmp_path):
            pass
    with pytest.raises(StoreError, match="cannot open the store"):
        async with LmdbStore(tmp_path, read_only=True):
            pass


@both_committers
async def test_the_map_grows_without_losing_the_batch(
    tmp_path: Path, committer: CommitterName
) -> None:
    async with LmdbStore(tmp_path, committer=committer, map_size=1 << 20) as store:
        await store.commit(batch(("red", b"small", b"v")))
        big = [("red", b"%d" % n, bytes(1 << 18)) for n in range(40)]
        await store.commit(batch(*big))
        assert len(await store.scan("red")) == 41
    async with LmdbStore(tmp_path, map_size=1 << 20) as store:
        assert len(await store.scan("red")) == 41


READER = """
    import sys, trio
    from keyrun.storage import LmdbStore

    async def main():
        async with LmdbStore(sys.argv[1], read_only=True, map_size=1 << 20) as store:
            print("open", flush=True)
            for line in sys.stdin:
                print(len(await store.scan(line.strip())), flush=True)

    trio.run(main)
"""


@both_committers
async def test_a_reader_in_another_process_sees_commits_and_adopts_a_grown_map(
    tmp_path: Path, committer: CommitterName
) -> None:
    async with LmdbStore(tmp_path, committer=committer, map_size=1 << 20) as store:
        await store.commit(batch(("red", b"k", b"v")))
        with running_python(READER, tmp_path) as reader:
            assert line(reader) == "open"
            for table, records in (("red", 1), ("green", 0)):
                say(reader, table)
                assert line(reader) == str(records)
            big = [("red", b"%d" % n, bytes(1 << 18)) for n in range(40)]
            await store.commit(batch(*big, ("green", b"new table", b"")))
            for table, records in (("red", 41), ("green", 1)):
                say(reader, table)
                assert line(reader) == str(records)


async def test_a_reader_writes_nothing_and_needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no Keyrun store at"):
        async with LmdbStore(tmp_path / "nowhere", read_only=True):
            pass
    assert not (tmp_path / "nowhere").exists()
    await make(tmp_path)
    async with LmdbStore(tmp_path, read_only=True) as store:
        with pytest.raises(StoreError, match="opened read-only"):
            store.stage(batch(("red", b"k", b"v")))
        assert len(await store.scan("red")) == 10


def forked(act: Callable[[], int]) -> int:
    """What `act` returns in a forked child."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        answer = 255
        try:
            answer = act()
        finally:
            os._exit(answer)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def refusals(store: LmdbStore) -> int:
    """How many of three uses are refused because of a fork."""

    def view() -> None:
        with store.view():
            pass

    refused = 0
    for use in (
        lambda: store.stage(batch(("red", b"child", b"v"))),
        lambda: store.get("red", b"k").send(None),
        view,
    ):
        try:
            use()
        except StoreClosed as error:
            refused += "cannot be used after a fork" in str(error)
    return refused


@both_committers
async def test_a_forked_child_can_neither_read_nor_write(
    tmp_path: Path, committer: CommitterName
) -> None:
    async with LmdbStore(tmp_path, committer=committer) as store:
        await store.commit(batch(("red", b"k", b"v")))
        assert forked(lambda: refusals(store)) == 3
        await store.commit(batch(("red", b"parent", b"v")))
        assert [key for key, _ in await store.scan("red")] == [b"k", b"parent"]


async def test_a_forked_child_does_not_keep_the_store_locked(tmp_path: Path) -> None:
    ready, told = os.pipe()
    async with LmdbStore(tmp_path) as store:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.write(told, b"!")
            signal.pause()
        os.read(ready, 1)
        await store.commit(batch(("red", b"k", b"v")))
    try:
        async with LmdbStore(tmp_path) as store:
            assert await store.get("red", b"k") == b"v"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ENOSPC, StoreFull), (errno.ENOMEM, StoreFull), (errno.EIO, StoreError)],
)
async def test_a_failed_commit_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[StoreError]
) -> None:
    def fail(self: object, tables: object) -> None:
        error = lmdb.Error(f"mdb_txn_commit: {os.strerror(code)}")
        error.code = code  # type: ignore[misc]
        raise error

    with pytest.raises(StoreError, match="closed after a failed commit"):
        async with LmdbStore(tmp_path) as store:
            await store.commit(batch(("red", b"before", b"")))
            monkeypatch.setattr("keyrun.storage.writer.Writer.apply", fail)
            with pytest.raises(kind) as caught:
                await store.commit(batch(("red", b"k", b"")))
            assert type(caught.value) is kind
            assert str(tmp_path) in str(caught.value)
            monkeypatch.undo()
            with pytest.raises(kind):
                await store.commit(batch(("red", b"later", b"")))
    async with LmdbStore(tmp_path) as store:
        assert [key for key, _ in await store.scan("red")] == [b"before"]


def test_every_commit_is_synced_data_and_header(tmp_path: Path) -> None:
    """Only these flags keep an acknowledged commit over a power loss."""
    with writer.open_environment(str(tmp_path), map_size=1 << 20) as environment:
        flags = environment.flags()
        assert flags["sync"]
        assert flags["metasync"]
        assert not flags["writemap"]
        assert not flags["map_async"]


async def test_a_view_adopts_a_map_that_has_grown(tmp_path: Path) -> None:
    async with LmdbStore(tmp_path, committer="process", map_size=1 << 20) as store:
        await store.commit(batch(*(("red", b"%d" % n, bytes(1 << 18)) for n in range(40))))
        with store.view():
            assert len(await store.scan("red")) == 40


async def test_a_view_of_a_store_that_was_closed_says_that_it_is_not_open(tmp_path: Path) -> None:
    async with LmdbStore(tmp_path / "store") as store:
        pass
    with pytest.raises(StoreClosed, match="is not open: use it inside of the block"), store.view():
        pass


async def test_an_open_that_is_cancelled_leaves_nothing_locked(tmp_path: Path) -> None:
    for seconds in (0.001, 0.02, 0.05):
        with trio.move_on_after(seconds):
            async with LmdbStore(tmp_path, committer="process"):
                await trio.sleep_forever()
        async with LmdbStore(tmp_path) as store:
            await store.commit(batch(("red", b"k", b"v")))


async def test_a_view_does_not_move_while_another_process_commits(tmp_path: Path) -> None:
    async with LmdbStore(tmp_path, committer="process") as store:
        await store.commit(batch(("red", b"k", b"1")))
        with store.view():
            assert await store.get("red", b"k") == b"1"
            # Users must not await a commit inside a view; here it shows that it stands still.
            await store.commit(batch(("red", b"k", b"2"), ("green", b"k", b"2")))
            assert await store.get("red", b"k") == b"1"
            assert await store.scan("green") == []
        assert await store.get("red", b"k") == b"2"


async def test_reads_show_the_commit_before_the_one_under_way(tmp_path: Path) -> None:
    async with LmdbStore(tmp_path, committer="process") as store:
        await store.commit(batch(("red", b"k", b"1")))
        async with held_back(store, batch(("red", b"k", b"2"), ("green", b"k", b"2"))):
            assert await store.get("red", b"k") == b"1"
            wait_until_applied(store)
            assert await store.get("red", b"k") == b"1"
            assert await store.scan("red") == [(b"k", b"1")]
            assert await store.get_many("red", [b"k"]) == {b"k": b"1"}
            assert await store.scan_each("red", [b"k"]) == [[(b"k", b"1")]]
            assert await store.get("green", b"k") is None
            assert await store.scan("green") == []
            with store.view():
                assert await store.get("red", b"k") == b"1"
        assert await store.get("red", b"k") == b"2"
        assert await store.get("green", b"k") == b"2"


async def test_a_commit_that_grows_the_map_leaves_the_reads_before_it_alone(tmp_path: Path) -> None:
    async with LmdbStore(tmp_path, committer="process", map_size=1 << 20) as store:
        for number in range(30):  # 3 MB in all, and each fits into the buffer of a socket
            async with held_back(store, batch(("red", b"%02d" % number, bytes(100_000)))):
                wait_until_applied(store)
                assert len(await store.scan("red")) == number
                with store.view():
                    assert await store.get("red", b"%02d" % number) is None
            assert await store.get("red", b"%02d" % number) == bytes(100_000)
        assert store._opened_reads().environment.info()["map_size"] > 1 << 20


@pytest.mark.parametrize("applied", [False, True])
async def test_a_commit_whose_process_died_is_not_readable_until_the_next_opening(
    tmp_path: Path, applied: bool
) -> None:
    with pytest.raises(StoreError, match="closed after a failed commit"):
        async with LmdbStore(tmp_path, committer="process") as store:
            await store.commit(batch(("red", b"k", b"1")))
            pid = committer_of(store).process.pid
            with pytest.raises(StoreError, match="ended with code -9"):
                group = store.stage(batch(("red", b"k", b"2")))
                os.kill(pid, signal.SIGSTOP)
                store.hasten()
                await trio.testing.wait_all_tasks_blocked()
                if applied:
                    os.kill(pid, signal.SIGCONT)
                    wait_until_applied(store)
                    # The answer is lost with the process that gave it.
                    committer_of(store)._connection.recv(100)
                os.kill(pid, signal.SIGKILL)
                await store.durable(group)
            assert await store.get("red", b"k") == b"1"
    async with LmdbStore(tmp_path) as store:
        assert await store.get("red", b"k") == (b"2" if applied else b"1")


async def test_a_commit_that_a_crash_cut_off_is_not_readable_until_the_next_opening(
    tmp_path: Path,
) -> None:
    async with LmdbStore(tmp_path, committer="process") as store:
        await store.commit(batch(("red", b"k", b"1")))
        store.stage(batch(("red", b"k", b"2")))
        os.kill(committer_of(store).process.pid, signal.SIGSTOP)
        store.hasten()
        await trio.testing.wait_all_tasks_blocked()
        store.crash()
        os.kill(committer_of(store).process.pid, signal.SIGCONT)
        await store.group_commit.stop()
        assert await store.get("red", b"k") == b"1"
    async with LmdbStore(tmp_path) as store:
        assert await store.get("red", b"k") == b"2"


async def test_a_waiter_that_is_cancelled_leaves_the_commit_and_its_reads_alone(
    tmp_path: Path,
) -> None:
    async with LmdbStore(tmp_path, committer="process") as store:
        await store.commit(batch(("red", b"k", b"1")))
        group = store.stage(batch(("red", b"k", b"2")))
        async with held_back(store):
            with trio.CancelScope() as scope:
                scope.cancel()
                await store.durable(group)
            assert scope.cancelled_caught
            wait_until_applied(store)
            assert await store.get("red", b"k") == b"1"
        assert await store.get("red", b"k") == b"2"


async def test_a_fork_while_a_commit_is_under_way_leaves_the_reads_of_the_parent_alone(
    tmp_path: Path,
) -> None:
    """The snapshot has a place among the readers of the store, in memory that both share."""
    async with LmdbStore(tmp_path, committer="process") as store:
        await store.commit(batch(("red", b"k", b"1")))
        async with held_back(store, batch(("red", b"k", b"2"))):
            wait_until_applied(store)
            readers = readers_of(store)
            assert forked(lambda: refusals(store)) == 3
            assert readers_of(store) == readers
            assert await store.get("red", b"k") == b"1"
        assert await store.get("red", b"k") == b"2"


@both_committers
async def test_a_fork_in_a_view_leaves_the_reads_of_the_parent_alone(
    tmp_path: Path, committer: CommitterName
) -> None:
    def leave_view() -> int:
        view.__exit__(None, None, None)
        return refusals(store)

    async with LmdbStore(tmp_path, committer=committer) as store:
        await store.commit(batch(("red", b"k", b"1")))
        view = store.view()
        with view:
            readers = readers_of(store)
            assert forked(leave_view) == 3
            assert readers_of(store) == readers
            assert await store.get("red", b"k") == b"1"


@both_committers
async def test_a_table_whose_name_is_damaged_is_reported_as_corruption(
    tmp_path: Path, committer: CommitterName
) -> None:
    async with LmdbStore(tmp_path / "s", committer=committer) as store:
        await store.commit(batch(("t", b"k", b"v")))
    with writer.open_environment(str(tmp_path / "s"), map_size=1 << 30) as environment:
        environment.open_db(b"co\xf5nter")
    with pytest.raises(StoreCorrupt, match="cannot be read"):
        async with LmdbStore(tmp_path / "s", committer=committer):
            pass
