"""A compact copy holds the same records in less space, and is there whole or not at all."""

import shutil
import sys
from pathlib import Path
from unittest.mock import Mock

import lmdb
import pytest

from keyrun.storage import LmdbStore, StoreError, StoreLocked, compact, verify, writer
from keyrun.storage.compact import compact_in_place
from keyrun.storage.conformance import batch
from tests.storage.processes import line, running_python
from tests.storage.test_ownership import OWNER
from tests.storage.test_verify import sealed


async def make(path: Path) -> None:
    async with LmdbStore(path) as store:
        await store.commit(sealed(5000))
        await store.commit(batch(*(("red", b"%05d" % n, None) for n in range(100, 5000))))


async def test_a_compact_copy_is_smaller_and_holds_the_same(tmp_path: Path) -> None:
    await make(tmp_path / "a")
    size = compact(tmp_path / "a", tmp_path / "b")
    assert size == (tmp_path / "b" / "data.mdb").stat().st_size
    assert size < (tmp_path / "a" / "data.mdb").stat().st_size / 5
    assert verify(tmp_path / "b").ok
    async with LmdbStore(tmp_path / "a") as a, LmdbStore(tmp_path / "b") as b:
        assert await a.scan("red") == await b.scan("red")
        await b.commit(batch(("red", b"k", b"v")))


async def test_a_store_that_another_process_writes_to_can_be_copied(tmp_path: Path) -> None:
    with running_python(OWNER, tmp_path / "a", "inline") as owner:
        assert line(owner) == "open"
        compact(tmp_path / "a", tmp_path / "b")
    async with LmdbStore(tmp_path / "b") as store:
        assert await store.get("red", b"k") == b"v"


async def test_what_is_in_the_way_is_kept(tmp_path: Path) -> None:
    await make(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "precious").touch()
    with pytest.raises(StoreError, match="not an empty directory; choose another place"):
        compact(tmp_path / "a", tmp_path / "b")
    assert [file.name for file in (tmp_path / "b").iterdir()] == ["precious"]


async def test_a_store_that_this_process_writes_to_can_be_copied(tmp_path: Path) -> None:
    async with LmdbStore(tmp_path / "a") as store:
        await store.commit(batch(("red", b"k", b"v")))
        compact(tmp_path / "a", tmp_path / "b")
        await store.commit(batch(("red", b"k", b"w")))
    async with LmdbStore(tmp_path / "b") as store:
        assert await store.get("red", b"k") == b"v"


async def test_a_copy_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(tmp_path / "a")
    full = Mock(side_effect=lmdb.DiskError("no space left"))
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[compact.__module__], "copy_data", full)
        with pytest.raises(StoreError, match=r"cannot copy .*: no space left"):
            compact(tmp_path / "a", tmp_path / "b")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


async def test_a_copy_that_fails_in_a_process_of_its_own_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    async with LmdbStore(tmp_path / "a"):
        with pytest.raises(StoreError, match=r"cannot copy .*: code 1"):
            compact(tmp_path / "a", tmp_path / "b")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_place_with_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no Keyrun store"):
        compact(tmp_path, tmp_path / "b")


async def test_a_cut_store_is_refused_and_crashes_nobody(tmp_path: Path) -> None:
    await make(tmp_path / "a")
    data = tmp_path / "a" / "data.mdb"
    whole = data.read_bytes()
    for size in (8192, len(whole) // 2 // 4096 * 4096, len(whole) - 4096):
        data.write_bytes(whole[:size])
        with pytest.raises(StoreError, match="but its header says"):
            compact(tmp_path / "a", tmp_path / "b")


async def test_a_copy_into_the_store_itself_is_refused(tmp_path: Path) -> None:
    await make(tmp_path / "a")
    with pytest.raises(StoreError, match="is inside of"):
        compact(tmp_path / "a", tmp_path / "a" / "copy")


async def test_a_store_is_compacted_in_its_place_with_all_that_is_beside_it(tmp_path: Path) -> None:
    await make(tmp_path / "a")
    (tmp_path / "a" / "notes").touch()
    async with LmdbStore(tmp_path / "a") as store:
        before = await store.scan("red")
    size = compact_in_place(tmp_path / "a")
    assert size == (tmp_path / "a" / "data.mdb").stat().st_size < 1 << 17
    assert verify(tmp_path / "a").ok
    assert (tmp_path / "a" / "notes").exists()
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    async with LmdbStore(tmp_path / "a") as store:
        assert await store.scan("red") == before
        await store.commit(batch(("red", b"k", b"v")))
    assert compact_in_place(tmp_path / "a") <= size + 4096


async def test_a_store_with_an_owner_is_not_compacted_in_its_place(tmp_path: Path) -> None:
    await make(tmp_path / "a")
    whole = (tmp_path / "a" / "data.mdb").read_bytes()
    async with LmdbStore(tmp_path / "a"):
        with pytest.raises(StoreLocked):
            compact_in_place(tmp_path / "a")
    assert (tmp_path / "a" / "data.mdb").read_bytes() == whole
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    with pytest.raises(StoreError, match="there is no Keyrun store"):
        compact_in_place(tmp_path / "b")


async def test_either_header_of_a_store_compacted_in_its_place_leads_to_it(tmp_path: Path) -> None:
    """LMDB takes one header or the other by what the readers' table says was the last commit, and
    a reader that opened the file before the change may have left a number of its own there."""
    await make(tmp_path)
    compact_in_place(tmp_path)
    data = tmp_path / "data.mdb"
    whole = bytearray(data.read_bytes())
    with writer.open_environment(str(tmp_path), map_size=0, read_only=True) as environment:
        last, page = environment.info()["last_txnid"], environment.stat()["psize"]
    at = last % 2 * page
    # The newer of the two is made unreadable as the newest: its number becomes 0.
    place = whole.index(last.to_bytes(8, "little"), at, at + page)
    whole[place : place + 8] = bytes(8)
    data.write_bytes(whole)
    async with LmdbStore(tmp_path, read_only=True) as store:
        assert len(await store.scan("red")) == 100
