"""Bytes that no encoder wrote: a value or a `PayloadError`, and nothing else ever."""

import random
import sys
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyrun.storage.census import holds_more_than
from keyrun.storage.native import vet
from keyrun.storage.payload import PayloadCodec, PayloadError
from tests.storage.values import same, values

codec = PayloadCodec()


def extension(code: int, data: bytes) -> bytes:
    return bytes(msgpack.packb(msgpack.ExtType(code, data)))


LOCAL = bytes.fromhex("07e8 01 01 00 00 00 00000000 00")
MARK = b"\xc7\x00\x01"
HOSTILE = {
    "empty": b"",
    "never used": b"\xc1",
    "trailing": b"\x01\x02",
    "array bomb": b"\xdd\xff\xff\xff\xff",
    "map bomb": b"\xdf\xff\xff\xff\xff",
    "bin bomb": b"\xc6\xff\xff\xff\xff",
    "str bomb": b"\xdb\xff\xff\xff\xff",
    "ext bomb": b"\xc9\xff\xff\xff\xff\x01",
    "bomb in large data": b"\xdd\x00\xff\xff\xff" * 1000 + b"\xc0" * 20_000,
    "deep arrays": b"\x91" * 10_000 + b"\xc0",
    "deep maps": b"\x81\xa1a" * 10_000 + b"\xc0",
    "deep tuples": (b"\x92" + MARK) * 10_000 + b"\xc0",
    "deeper than allowed": b"\x91" * 65 + b"\xc0",
    "tuples deeper than allowed": (b"\x92" + MARK) * 65 + b"\xc0",
    "bare mark": MARK,
    "late mark": b"\x92\x01" + MARK,
    "second mark": b"\x92" + MARK + MARK,
    "mark as value": b"\x81\xa1a" + MARK,
    "mark as key": b"\x81" + MARK + b"\x01",
    "mark with data": b"\x91\xc7\x01\x01\x00",
    "long mark": b"\x91\xc8\x00\x00\x01",
    "twice the same key": b"\x82\xa1a\x01\xa1a\x02",
    "int key": b"\x81\x01\x01",
    "bytes key": b"\x81\xc4\x01a\x01",
    "array key": b"\x81\x90\x01",
    "nil key": b"\x81\xc0\x01",
    "bad utf-8": b"\xa1\xff",
    "surrogate": b"\xa3\xed\xa0\x80",
    "timestamp": b"\xd6\xff\x00\x00\x00\x01",
    "timestamp inside": b"\x91\xd6\xff\x00\x00\x00\x01",
    "bad timestamp": b"\xd7\xff" + b"\xff" * 8,
    "unknown extension": extension(77, b"x"),
    "short datetime": extension(2, LOCAL[:3]),
    "month 13": extension(2, LOCAL[:2] + b"\x0d" + LOCAL[3:]),
    "fold 2": extension(2, LOCAL[:-1] + b"\x02"),
    "huge offset": extension(2, LOCAL + b"9" * 5000),
    "offset of a week": extension(2, LOCAL + b"604800000000"),
    "offset with a zero": extension(2, LOCAL + b"01"),
    "default name of an offset": extension(2, LOCAL + b"3600000000=UTC+01:00"),
    "no zone": extension(2, LOCAL + b"?"),
    "path as zone": extension(2, LOCAL + b"@../../etc/passwd"),
    "folder as zone": extension(2, LOCAL + b"@Europe"),
    "bad utf-8 as zone": extension(2, LOCAL + b"@\xff"),
    "week date": extension(3, b"2024-W01-1"),
    "no date": extension(3, b"2024-02-30"),
    "sloppy decimal": extension(4, b"nan"),
    "spaced decimal": extension(4, b" 1 "),
    "no decimal": extension(4, b"one"),
    "decimal of huge exponent": extension(4, b"1E+" + b"9" * 30),
    "decimal of tiny exponent": extension(4, b"1E-" + b"9" * 30),
    "short uuid": extension(5, b"x" * 15),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PayloadError, match="cannot read these bytes as a payload"):
        codec.decode(data)


def test_a_zone_unknown_on_this_machine_is_named() -> None:
    with pytest.raises(PayloadError, match=r"the time zone 'Mars/Olympus' is not known.*tzdata"):
        codec.decode(extension(2, LOCAL + b"@Mars/Olympus"))


def test_large_payloads_come_back_as_well() -> None:
    value = [{"n": n, "pair": (n, str(n))} for n in range(2_000)]
    assert same(codec.decode(codec.encode(value)), value)


SIZE = 16 * 1024 * 1024
FLOODS = {
    "empty lists": b"\xdd" + (SIZE - 5).to_bytes(4) + b"\x90" * (SIZE - 5),
    "empty maps": b"\xdd" + (SIZE - 5).to_bytes(4) + b"\x80" * (SIZE - 5),
    "lists of lists": b"\xdc\xfa\x00" + (b"\xdc\x00\xff" + b"\x90" * 255) * 64_000,
    "lists behind each other": (b"\xdc\xff\xff" + b"\x90" * 65_534) * 60 + b"\x90",
    "one key": b"\xdf" + (SIZE // 2 - 5).to_bytes(4) + b"\xa0\xc0" * (SIZE // 2 - 5),
    "empty tuples": b"\xdd" + (SIZE // 4 - 5).to_bytes(4) + (b"\x91" + MARK) * (SIZE // 4 - 5),
}


@pytest.mark.parametrize("data", FLOODS.values(), ids=FLOODS.keys())
def test_few_bytes_that_would_take_much_memory_are_refused_before_they_do(
    monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    def unpack(data: bytes) -> None:
        raise AssertionError("it was unpacked")

    monkeypatch.setattr("keyrun.storage.payload.unpack", unpack)
    with pytest.raises(PayloadError, match="holds more than 1000000 items; store the bulk"):
        codec.decode(data)


@given(values)
def test_the_census_and_the_walk_over_a_value_count_the_same(value: Any) -> None:
    data = codec.encode(value)
    count = vet(value, 64, 10**9) if isinstance(value, list | tuple | dict) else 0
    padded = data + b"\xc1" * (count + 1)
    assert not holds_more_than(padded, count)
    assert count == 0 or holds_more_than(padded, count - 1)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("make", [str, bytes, list, dict, Decimal, "x".__mul__])
def test_the_census_knows_every_spelling_of_a_length(size: int, make: Any) -> None:
    element: Any = {
        str: "x" * size,
        bytes: bytes(size),
        list: [None] * size,
        dict: dict.fromkeys(map(str, range(size)), 1.5),
        Decimal: Decimal("1" * (size + 1)),
    }.get(make, "é" * size)
    data = codec.encode([element, -1, [2**60, -(2**60), 2**30, -(2**30), 300, -300, 200, -100, {}]])
    items = 3 + 9 + (size if make in (list, dict) else 0)
    padded = data + b"\xc1" * items
    assert not holds_more_than(padded, items)
    assert holds_more_than(padded, items - 1)


def test_whatever_may_be_encoded_may_be_decoded_and_one_item_more_neither() -> None:
    small = PayloadCodec(max_items=14)
    full = [[1] * 3, (1, 2), {"a": "x" * 50, "b": None}, (), 0]
    assert small.decode(small.encode(full)) == full
    more = [*full, 1]
    with pytest.raises(PayloadError, match="value: holds more than 14 items; store the bulk"):
        small.encode(more)
    with pytest.raises(PayloadError, match="value: holds more than 14 items"):
        small.encode([0] * 15)
    with pytest.raises(PayloadError, match=r"^holds more than 14 items"):
        small.decode(codec.encode(more))


def test_max_items_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="max_items must be at least 1, got 0"):
        PayloadCodec(max_items=0)


@attrs.frozen
class Line:
    name: str
    count: int
    tags: tuple[str, ...] = ()


@attrs.frozen
class Order:
    lines: list[Line]
    parent: "Order | None"
    note: Line | str | None = None


def decodes_or_refuses(data: bytes) -> None:
    with suppress(PayloadError):
        order = codec.decode(data, Order)
        assert codec.decode(codec.encode(order, Order), Order) == order
    try:
        value = codec.decode(data)
    except PayloadError:
        return
    # What was decoded is a value like any other.
    assert same(codec.decode(codec.encode(value)), value)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_value_or_an_error(data: bytes) -> None:
    decodes_or_refuses(data)


def test_mutated_payloads_are_a_value_or_an_error() -> None:
    chance = random.Random(20_000)
    seeds = [
        codec.encode(value)
        for value in (
            {"id": 7, "name": "alice", "tags": ["a", ("b", ())], "price": 1.5, "ok": None},
            [datetime(2024, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")), date(2024, 1, 1)],
            (Decimal("-1.5E+30"), UUID(int=5), b"bytes", 2**64 - 1, -(2**63)),
            {"deep": [[[({"x": (1, 2)},)]]]},
            [datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET"))] * 3,
        )
    ]
    order = Order([Line("a", 1, ("x",)), Line("b", 2)], Order([], None, "note"), Line("c", 3))
    seeds += [codec.encode(order, Order)] * 2
    for _ in range(20_000):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[place] = chance.randrange(256)
                case 1:
                    data[place] ^= 1 << chance.randrange(8)
                case 2:
                    del data[place : place + chance.randint(1, 3)]
                    data += b"\xc0"
                case _:
                    data[place:place] = chance.randbytes(chance.randint(1, 3))
        decodes_or_refuses(bytes(data))


def test_decoding_needs_no_stack() -> None:
    limit = sys.getrecursionlimit()
    data = HOSTILE["deep tuples"]
    try:
        sys.setrecursionlimit(200)
        with pytest.raises(PayloadError):
            codec.decode(data)
    finally:
        sys.setrecursionlimit(limit)
