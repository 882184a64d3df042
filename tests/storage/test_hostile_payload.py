"""Bytes that no encoder wrote: a value or a `PayloadError`, and nothing else ever."""

import random
import sys
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyrun.storage.payload import PayloadCodec, PayloadError
from tests.storage.values import patient, same

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


@patient
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
