"""A disk without room: everything acknowledged stays, and whoever opens a store is told."""

import errno
import os
from pathlib import Path

import pytest

from keyrun.storage import LmdbStore, StoreError, StoreFull, writer
from keyrun.storage.conformance import batch
from keyrun.storage.lmdb_store import CommitterName
from tests.storage.processes import run_python

both_committers = pytest.mark.parametrize("committer", ["inline", "process"])

LIMITED = """
    import resource, signal, sys, trio
    from keyrun.storage import Batch, LmdbStore, StoreError

    async def main(path, size, *options):
        acknowledged = 0
        try:
            async with LmdbStore(path, committer=options[0]) as store:
                while True:
                    staged = Batch()
                    staged.put("red", b"%05d" % acknowledged, bytes(50_000))
                    await store.commit(staged)
                    acknowledged += 1
        except StoreError as error:
            print(acknowledged, type(error.__cause__ or error).__name__, type(error).__name__)

    size = int(sys.argv[2])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    trio.run(main, *sys.argv[1:])
"""


@both_committers
async def test_when_there_is_no_room_everything_acknowledged_stays(
    tmp_path: Path, committer: CommitterName
) -> None:
    child = run_python(LIMITED, tmp_path, 1 << 20, committer)
    assert child.stdout.split()[:1], child.stderr
    acknowledged = int(child.stdout.split()[0])
    assert acknowledged > 5
    async with LmdbStore(tmp_path) as store:
        assert len(await store.scan("red")) >= acknowledged


@both_committers
@pytest.mark.parametrize("size", [1 << 10, 1 << 15])
async def test_a_store_that_has_no_room_to_open_is_full_and_opens_when_there_is_room(
    tmp_path: Path, committer: CommitterName, size: int
) -> None:
    child = run_python(LIMITED, tmp_path, size, committer)
    assert child.stdout.split()[::2] == ["0", "StoreFull"], child.stderr
    async with LmdbStore(tmp_path, committer=committer) as store:
        await store.commit(batch(("red", b"k", b"v")))
        assert await store.get("red", b"k") == b"v"


async def test_the_table_of_readers_has_its_room_before_lmdb_writes_to_it(tmp_path: Path) -> None:
    """LMDB writes to it through a map, and a page that finds no room ends the process."""
    async with LmdbStore(tmp_path):
        readers = (tmp_path / writer.READERS_FILE).stat()
        assert readers.st_blocks * 512 >= readers.st_size >= 64 * writer.MAX_READERS


def refuse_reservations(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(descriptor: int, offset: int, length: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_no_room_for_the_table_of_readers_is_told_before_lmdb_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_reservations(monkeypatch, code)
    with pytest.raises(StoreFull, match=f"no space left for {tmp_path}"):
        async with LmdbStore(tmp_path):
            pass
    assert not (tmp_path / "data.mdb").exists()
    monkeypatch.undo()
    async with LmdbStore(tmp_path) as store:
        await store.commit(batch(("red", b"k", b"v")))


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
async def test_a_file_system_without_reservations_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_reservations(monkeypatch, code)
    async with LmdbStore(tmp_path) as store:
        await store.commit(batch(("red", b"k", b"v")))


async def test_a_system_without_reservations_opens_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    async with LmdbStore(tmp_path) as store:
        await store.commit(batch(("red", b"k", b"v")))


async def test_a_table_of_readers_that_is_there_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing the file would drop the locks that LMDB has on it in this process."""

    def refuse(descriptor: int, offset: int, length: int) -> None:
        raise AssertionError("it was opened and closed")

    async with LmdbStore(tmp_path):
        monkeypatch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(StoreError):
            async with LmdbStore(tmp_path, read_only=True):
                pass


async def test_a_directory_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    with pytest.raises(StoreError, match="cannot open the store"):
        async with LmdbStore(tmp_path / "file" / "below" / "it"):
            pass
