"""Every damaged record is found, and a damaged file crashes nobody."""

from pathlib import Path
from random import Random

import pytest

from keyrun.storage import Batch, LmdbStore, StoreError, verify, writer
from keyrun.storage.record import seal
from keyrun.storage.verify import Damage, from_line, to_line


def sealed(count: int, *, table: str = "red") -> Batch:
    batch = Batch()
    for number in range(count):
        key = b"%05d" % number
        batch.put(table, key, seal(table, key, (number, "some text", b"\x00" * 40)))
    return batch


async def make(path: Path, count: int = 300) -> None:
    async with LmdbStore(path) as store:
        await store.commit(sealed(count))
        await store.commit(sealed(3, table="green"))


def damage(path: Path, table: str, key: bytes) -> None:
    """Flip one bit of a value, as a failing disk would."""
    with writer.open_environment(str(path), map_size=1 << 30) as environment:
        database = environment.open_db(table.encode())
        with environment.begin(write=True) as transaction:
            value = bytearray(transaction.get(key, b"", db=database))
            value[len(value) // 2] ^= 4
            transaction.put(key, bytes(value), db=database)


async def test_a_whole_store_verifies_with_its_counts(tmp_path: Path) -> None:
    await make(tmp_path)
    found = verify(tmp_path)
    assert found.ok
    assert found.structure_checked
    assert found.tables == {"_meta": 1, "green": 3, "red": 300}
    assert found.records == 304


async def test_every_damaged_record_is_reported_with_table_and_key(tmp_path: Path) -> None:
    await make(tmp_path)
    for key in (b"00007", b"00299"):
        damage(tmp_path, "red", key)
    damage(tmp_path, "green", b"00000")
    found = verify(tmp_path)
    assert not found.ok
    assert [(d.table, d.key) for d in found.damage] == [
        ("green", b"00000"),
        ("red", b"00007"),
        ("red", b"00299"),
    ]
    assert all("damaged" in d.problem for d in found.damage)


async def test_a_store_in_use_verifies_without_its_structure(tmp_path: Path) -> None:
    async with LmdbStore(tmp_path) as store:
        await store.commit(sealed(10))
        found = verify(tmp_path)
        assert found.ok
        assert not found.structure_checked
        assert found.tables["red"] == 10


async def test_a_cut_file_is_damage_not_a_crash(tmp_path: Path) -> None:
    await make(tmp_path)
    data = tmp_path / "data.mdb"
    data.write_bytes(data.read_bytes()[: 8 * 4096])
    assert not verify(tmp_path).ok
    data.write_bytes(b"")
    found = verify(tmp_path)
    assert "is empty" in found.damage[0].problem


async def test_no_flipped_bit_crashes_and_those_in_values_are_all_found(tmp_path: Path) -> None:
    """A flip in a free page or in padding may go unnoticed, one in a record may not."""
    await make(tmp_path)
    data = tmp_path / "data.mdb"
    whole = data.read_bytes()
    text = b"some text"
    places = [at for at in range(len(whole)) if whole.startswith(text, at)]
    random = Random(7)
    live = {d.key for d in verify(tmp_path).damage}
    assert not live
    for at in random.sample(places, 5):
        data.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        # A page that was copied on write holds the records that were there before.
        stale = whole.count(whole[at - 20 : at + 60]) > 1
        assert stale or not verify(tmp_path).ok
    for _ in range(15):
        at = random.randrange(len(whole))
        flipped = bytes([whole[at] ^ (1 << random.randrange(8))])
        data.write_bytes(whole[:at] + flipped + whole[at + 1 :])
        verify(tmp_path)


@pytest.mark.parametrize("key", [None, b"", b"00007"])
def test_damage_is_passed_on_with_any_key(key: bytes | None) -> None:
    """A damaged page may have an empty key."""
    found = Damage(problem="it is damaged", table="red", key=key)
    assert from_line(to_line(found)) == found
    assert from_line(to_line({"red": 3})) == {"red": 3}


async def test_a_place_with_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no Keyrun store"):
        verify(tmp_path)
