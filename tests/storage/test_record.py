from typing import Any
from zlib import crc32

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyrun._errors import KeyrunError
from keyrun.storage.errors import StoreCorrupt, StoreTooNew
from keyrun.storage.record import VERSION, check, seal, unseal

primitives = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=4),
    max_leaves=12,
)
tables = st.text("abcdefgh.-", min_size=1, max_size=12)
record_keys = st.binary(min_size=1, max_size=40)

FIELDS = [1, "run-7", b"\x00\xff", None, True, 1.5, ["a"], {"k": 2}]
RAW = seal("runs", b"default\x00seven", FIELDS)

# Written by the first release and readable for ever.
GOLDEN = [
    ("runs", b"default\x00\x07", [1, "order-7", None], "5197aa2d019301a76f726465722d37c0"),
    ("meta", b"k", [], "cfe1aab20190"),
    (
        "j",
        b"\xff\xff\xff",
        [{"a": [b"\x00", -1, 2.5]}],
        "bd7e93c7019181a16193c40100ffcb4004000000000000",
    ),
]


@given(tables, record_keys, st.lists(primitives, max_size=6))
def test_what_was_sealed_is_unsealed(table: str, key: bytes, fields: list[Any]) -> None:
    raw = seal(table, key, fields)
    assert unseal(table, key, raw) == fields
    assert raw == seal(table, key, tuple(fields))
    check(table, key, raw)


@pytest.mark.parametrize("fields", ["text", b"bytes", {"a": 1}, None, 7])
def test_what_is_no_list_of_fields_is_not_sealed(fields: Any) -> None:
    with pytest.raises(TypeError, match=f"a list or a tuple, got {type(fields).__name__}"):
        seal("runs", b"k", fields)


@pytest.mark.parametrize("bit", range(len(RAW) * 8))
def test_every_flipped_bit_is_damage(bit: int) -> None:
    damaged = bytearray(RAW)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StoreCorrupt, match="checksum"):
        unseal("runs", b"default\x00seven", bytes(damaged))


@pytest.mark.parametrize("length", range(len(RAW)))
def test_every_cut_is_damage(length: int) -> None:
    with pytest.raises(StoreCorrupt):
        unseal("runs", b"default\x00seven", RAW[:length])


@given(st.binary(max_size=60))
def test_foreign_bytes_are_damage(raw: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        unseal("runs", b"k", raw)


def test_trailing_bytes_are_damage() -> None:
    with pytest.raises(StoreCorrupt):
        check("runs", b"default\x00seven", RAW + b"\x00")


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("runs", b"default\x00eight"),
        ("run", b"default\x00seven"),
        ("run", b"sdefault\x00seven"),
        ("runsd", b"efault\x00seven"),
        ("runs", b""),
    ],
)
def test_a_record_in_the_wrong_place_is_damage(table: str, key: bytes) -> None:
    with pytest.raises(StoreCorrupt) as caught:
        unseal(table, key, RAW)
    assert (caught.value.table, caught.value.key) == (table, key)


def test_the_error_names_table_and_key_and_a_way_out() -> None:
    with pytest.raises(StoreCorrupt, match=r"b'k\\x00' in table 'runs'.*backup") as caught:
        unseal("runs", b"k\x00", b"")
    assert isinstance(caught.value, KeyrunError)


def test_a_long_key_is_shown_cut() -> None:
    with pytest.raises(StoreCorrupt) as caught:
        unseal("runs", b"x" * 500, b"nonsense")
    assert len(str(caught.value)) < 300
    assert caught.value.key == b"x" * 500


def forged(body: bytes, version: int = VERSION) -> bytes:
    """A record of table "t", key b"k" whose checksum matches."""
    checksum = crc32(body, crc32(b"k", crc32(b"t\x00") ^ version))
    return checksum.to_bytes(4, "big") + bytes([version]) + body


def test_a_newer_format_asks_for_an_upgrade() -> None:
    with pytest.raises(StoreTooNew, match=r"format 2.*upgrade"):
        unseal("t", b"k", forged(msgpack.packb(["from the future"]), version=2))


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",
        b"\x93\x01",
        b"\x90\x90",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
        b"\x91\x81\x90\x01",
        b"\x91\xa1\xff",
        b"\x91\xd4\x05\x00",
    ],
    ids=["byte", "cut", "more", "bomb", "deep", "list-key", "utf-8", "extension"],
)
def test_a_matching_checksum_over_nonsense_is_damage(body: bytes) -> None:
    with pytest.raises(StoreCorrupt, match="not msgpack"):
        unseal("t", b"k", forged(body))


def test_a_matching_checksum_over_no_list_is_damage() -> None:
    with pytest.raises(StoreCorrupt, match="not a list"):
        unseal("t", b"k", forged(b"\x2a"))


@pytest.mark.parametrize(("table", "key", "fields", "raw"), GOLDEN)
def test_golden_records_stay_readable(table: str, key: bytes, fields: list[Any], raw: str) -> None:
    assert unseal(table, key, bytes.fromhex(raw)) == fields
    assert seal(table, key, fields) == bytes.fromhex(raw)
