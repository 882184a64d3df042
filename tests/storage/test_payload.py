import random
import sys
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal, localcontext
from enum import Enum, IntEnum, StrEnum
from hashlib import blake2b
from io import BytesIO
from threading import Thread
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyrun._errors import KeyrunError
from keyrun.storage.payload import UNFIT, PayloadCodec, PayloadError, PayloadTypeError
from tests.storage.values import same, values

codec = PayloadCodec()
Point = namedtuple("Point", "x y")


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Mode(StrEnum):
    FAST = "fast"


@attrs.frozen
class Order:
    price: float


class Text(str):
    pass


class OddZone(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, moment: datetime | None) -> None:
        return None

    def tzname(self, moment: datetime | None) -> str:
        return "odd"


@given(values)
def test_a_value_comes_back_as_the_same_type_and_value(value: Any) -> None:
    data = codec.encode(value)
    assert same(codec.decode(data), value)
    assert codec.encode(value) == data
    assert codec.encode(codec.decode(data)) == data


@pytest.mark.parametrize(
    "value",
    [(), [], {}, ((),), [()], ([],), (1, (2, [3, (4,)])), {"": ()}, {"a": {"b": {}}}],
    ids=repr,
)
def test_tuples_and_lists_stay_apart(value: Any) -> None:
    assert same(codec.decode(codec.encode(value)), value)


@pytest.mark.parametrize("fold", [0, 1])
def test_a_datetime_keeps_its_zone_and_fold(fold: int) -> None:
    moment = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold)
    back = codec.decode(codec.encode(moment))
    assert back.tzinfo is ZoneInfo("Europe/Berlin")
    assert back.fold == fold
    assert back.utcoffset() == timedelta(hours=2 - fold)


@pytest.mark.parametrize("hours", [0, 1])
def test_a_named_offset_keeps_its_name(hours: int) -> None:
    zone = timezone(timedelta(hours=hours), "GMT=x")
    assert codec.decode(codec.encode(datetime(2024, 1, 1, tzinfo=zone))).tzname() == "GMT=x"


def test_utc_comes_back_as_the_one_and_only() -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    assert codec.decode(codec.encode(moment)).tzinfo is UTC


@given(
    st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59))
    | st.sampled_from([timedelta(0), timedelta(hours=1), timedelta(seconds=-1)]),
    st.sampled_from([None, "", "UTC", "UTC+00:00", "UTC+01:00"])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
def test_a_fixed_offset_comes_back_whatever_its_name(offset: timedelta, name: str | None) -> None:
    unnamed = timezone(offset)
    zone = timezone(offset, unnamed.tzname(None) if name is None else name)
    data = codec.encode(datetime(2024, 1, 1, tzinfo=zone))
    back = codec.decode(data)
    assert back.replace(tzinfo=None) == datetime(2024, 1, 1)
    assert (back.utcoffset(), back.tzname()) == (offset, zone.tzname(None))
    assert codec.encode(back) == data
    if name is None:
        assert data == codec.encode(datetime(2024, 1, 1, tzinfo=unnamed))


def test_a_parsed_utc_comes_back_as_the_one_and_only() -> None:
    moment = datetime.strptime("2020-01-01 +0000 UTC", "%Y-%m-%d %z %Z")
    assert moment.tzinfo is not UTC
    assert codec.decode(codec.encode(moment)).tzinfo is UTC


@pytest.mark.parametrize("text", ["1E+20", "-1.50E-9", "NaN", "sNaN12", "-Infinity", "0.10"])
def test_a_decimal_has_one_spelling_whatever_the_context(text: str) -> None:
    number = Decimal(text)
    data, canonical = codec.encode(number), codec.canonical(number)
    assert data.endswith(text.encode())
    with localcontext(capitals=0):
        assert codec.encode(number) == data
        assert codec.canonical(number) == canonical
        assert same(codec.decode(data), number)


def test_a_decimal_is_read_whatever_the_context() -> None:
    number = Decimal("1." + "0123456789" * 20)
    with localcontext(prec=3):
        assert codec.decode(codec.encode(number)).as_tuple() == number.as_tuple()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"items": [1, 2, {3}]}, r'value\["items"\]\[2\]: cannot store a set; .* use a list'),
        ({"a": (1, frozenset())}, r'value\["a"\]\[1\]: cannot store a frozenset; .* use a list'),
        ([Order(1.0)], r"value\[0\]: cannot store an Order; annotate this place with Order"),
        (Colour.RED, "value: cannot store a Colour; annotate"),
        (Level.LOW, "value: cannot store a Level; annotate"),
        (Mode.FAST, "value: cannot store a Mode; annotate"),
        (Point(1, 2), "value: cannot store a Point; annotate this place with Point"),
        (OrderedDict(a=1), "value: cannot store an OrderedDict; .* plain dict"),
        ([defaultdict(list)], r"value\[0\]: cannot store a defaultdict; .* plain dict"),
        (Text("x"), "value: cannot store a Text; .* plain str"),
        (bytearray(b"x"), r"value: cannot store a bytearray; use bytes\(\.\.\.\)"),
        (memoryview(b"x"), r"value: cannot store a memoryview; use bytes"),
        (1j, "value: cannot store a complex; what can be stored is None, bool"),
        (object(), "value: cannot store an object; what can be stored"),
        ([len], r"value\[0\]: cannot store a builtin_function_or_method"),
        (timedelta(1), "value: cannot store a timedelta"),
        ({1: 2}, "value: the key 1 is an int, and keys must be str"),
        ({"a": [{b"k": 2}]}, r'value\["a"\]\[0\]: the key b\'k\' is a bytes'),
        ({None: 1}, "the key None is a NoneType"),
        ({(1, 2): 1}, r"the key \(1, 2\) is a tuple"),
        ({Mode.FAST: 1}, "is a Mode, and keys must be str"),
        ({"k" * 99: {1}}, r'value\["k{30,40}\.\.\.\]: cannot store a set'),
        (datetime(2024, 1, 1), r"value: cannot store a datetime without a time zone; .*replace"),
        ([datetime(2024, 1, 1, tzinfo=OddZone())], r"value\[0\]: .*is an OddZone; convert it"),
    ],
)
def test_what_cannot_come_back_is_refused_by_type(value: Any, message: str) -> None:
    for call in (codec.encode, codec.canonical):
        with pytest.raises(TypeError, match=message) as caught:
            call(value)
        assert isinstance(caught.value, PayloadTypeError)
        assert isinstance(caught.value, KeyrunError)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2**64, "value: the int does not fit into 64 bits; store it as a str or a Decimal"),
        ({"n": [-(2**63) - 1]}, r'value\["n"\]\[0\]: the int does not fit'),
        ((10**5000,), r"value\[0\]: the int does not fit"),
        ("\ud800", "value: the str holds a lone surrogate"),
        ({"a": ("x", "\udfff")}, r'value\["a"\]\[1\]: the str holds a lone surrogate'),
        ({"\ud800": 1}, r'value\["\\ud800"\]: the str holds a lone surrogate'),
    ],
)
def test_what_does_not_fit_is_refused_by_value(value: Any, message: str) -> None:
    with pytest.raises(PayloadError, match=message) as caught:
        codec.encode(value)
    assert isinstance(caught.value, ValueError)


# The smallest time zone file: one kind of local time, UTC+0.
TZIF = (
    b"TZif" + bytes(16) + bytes.fromhex("00000000" * 4 + "00000001 00000004") + bytes(6) + b"Odd\0"
)


def test_a_zone_that_cannot_be_looked_up_is_refused() -> None:
    odd = ZoneInfo.from_file(BytesIO(TZIF), key="Keyrun/Nowhere")
    with pytest.raises(PayloadError, match=r"value\[0\]: the time zone 'Keyrun/Nowhere'.*tzdata"):
        codec.encode([datetime(2024, 1, 1, tzinfo=odd)])
    nameless = ZoneInfo.from_file(BytesIO(TZIF))
    with pytest.raises(PayloadTypeError, match=r"time zone is a ZoneInfo; convert"):
        codec.encode(datetime(2024, 1, 1, tzinfo=nameless))


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}], ids=["list", "tuple", "dict"]
)
def test_nesting_is_limited_on_both_sides(wrap: Callable[[Any], Any]) -> None:
    deepest = nested(64, wrap)
    assert same(codec.decode(codec.encode(deepest)), deepest)
    with pytest.raises(ValueError, match=r"^value\[.*\.\.\.: nests deeper than 64 levels"):
        codec.encode(wrap(deepest))
    data = PayloadCodec(max_depth=65).encode(wrap(deepest))
    with pytest.raises(PayloadError, match="nests too deep"):
        codec.decode(data)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = [1]
    loop.append({"again": loop})
    with pytest.raises(ValueError, match=r'^value\[1\]\["again"\]\[1\].*contains itself'):
        codec.encode(loop)


def test_a_value_that_shares_its_parts_too_often_is_refused() -> None:
    """Sixty levels of [x, x] would be 2**60 items."""
    small = PayloadCodec(max_size=10_000)
    with pytest.raises(ValueError, match="takes more than 10000 bytes, and a payload may"):
        small.encode(nested(60, lambda value: [value, value]))
    with pytest.raises(ValueError, match="takes more than 10000 bytes"):
        small.encode(nested(60, lambda value: {"a": value, "b": value}))


def test_size_is_limited_on_both_sides() -> None:
    small = PayloadCodec(max_size=100)
    largest = b"x" * 98
    assert small.decode(small.encode(largest)) == largest
    with pytest.raises(ValueError, match="value: takes 101 bytes, and a payload may have 100"):
        small.encode(b"x" * 99)
    with pytest.raises(PayloadError, match="takes 101 bytes"):
        small.decode(codec.encode(b"x" * 99))


@pytest.mark.parametrize("scalar", [None, True, 2**64 - 1, -(2**63), 2**60, 1.5], ids=repr)
def test_every_number_fits_into_the_smallest_limit(scalar: float | None) -> None:
    smallest = PayloadCodec(max_size=64)
    assert same(smallest.decode(smallest.encode(scalar)), scalar)


@pytest.mark.parametrize(
    "limits", [{"max_size": 0}, {"max_size": 63}, {"max_depth": 0}, {"max_depth": 129}]
)
def test_senseless_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        PayloadCodec(**limits)


@given(values, st.randoms())
def test_the_canonical_form_ignores_the_order_of_mappings(
    value: Any, chance: random.Random
) -> None:
    def shuffled(part: Any) -> Any:
        if isinstance(part, dict):
            pairs = [(key, shuffled(item)) for key, item in part.items()]
            chance.shuffle(pairs)
            return dict(pairs)
        return type(part)(map(shuffled, part)) if isinstance(part, list | tuple) else part

    data = codec.canonical(value)
    assert codec.canonical(shuffled(value)) == data
    assert same(codec.decode(codec.canonical(codec.decode(data))), codec.decode(data))


arguments = st.lists(
    st.one_of(
        values,
        st.integers(),
        st.text(),
        st.binary(max_size=80),
        st.sampled_from(["\ud800", 2**64, -(2**63) - 1, object(), bytes(64)]),
    ),
    max_size=6,
).map(tuple)


@given(arguments, st.dictionaries(st.text(max_size=3), values, max_size=2))
@pytest.mark.parametrize(
    "limits", [{}, {"max_size": 64}, {"max_depth": 1}, {"max_depth": 2}, {"max_items": 4}]
)
def test_the_canonical_form_of_a_call_is_that_of_its_arguments_as_a_list(
    limits: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    limited = PayloadCodec(**limits)
    for keywords in ({}, kwargs):
        try:
            expected = limited.canonical([list(args), keywords])
        except UNFIT as error:
            with pytest.raises(type(error)):
                limited.canonical_call(args, keywords)
        else:
            assert limited.canonical_call(args, keywords) == expected


def test_the_canonical_form_keeps_different_values_apart() -> None:
    different = [1, 1.0, True, "1", b"1", [1], (1,), {"1": 1}, Decimal(1), Decimal("1.0"), None]
    assert len({codec.canonical(value) for value in different}) == len(different)


class Toy:
    """XOR and a MAC: enough to see that plain bytes go in and nothing else comes out."""

    def __init__(self, key: int = 0x5A) -> None:
        self.key = key

    def _mac(self, data: bytes) -> bytes:
        return blake2b(data, key=bytes([self.key]), digest_size=8).digest()

    def wrap(self, data: bytes) -> bytes:
        return self._mac(data) + bytes(byte ^ self.key for byte in data)

    def unwrap(self, data: bytes) -> bytes:
        plain = bytes(byte ^ self.key for byte in data[8:])
        if self._mac(plain) != data[:8]:
            raise RuntimeError("wrong MAC")
        return plain


@given(values)
def test_a_transform_covers_the_payload(value: Any) -> None:
    secret = PayloadCodec(Toy())
    data = secret.encode(value)
    assert data == Toy().wrap(codec.encode(value))
    assert same(secret.decode(data), value)
    assert secret.canonical(value) == codec.canonical(value)


def test_a_failing_unwrap_is_a_clear_error() -> None:
    data = bytearray(PayloadCodec(Toy()).encode({"a": 1}))
    data[-1] ^= 1
    with pytest.raises(PayloadError, match=r"unwrap of .*Toy.*wrong MAC.*another key") as caught:
        PayloadCodec(Toy()).decode(bytes(data))
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(PayloadError, match="wrong MAC"):
        PayloadCodec(Toy(key=1)).decode(PayloadCodec(Toy()).encode(1))


class Keyless:
    def wrap(self, data: bytes) -> bytes:
        raise LookupError("no key")

    def unwrap(self, data: bytes) -> bytes:
        return data


def test_a_failing_wrap_is_a_clear_error() -> None:
    with pytest.raises(PayloadError, match=r"wrap of .*Keyless.* failed: no key") as caught:
        PayloadCodec(Keyless()).encode(1)
    assert isinstance(caught.value.__cause__, LookupError)


class Careless:
    def wrap(self, data: bytes) -> Any:
        return data.hex()

    def unwrap(self, data: bytes) -> Any:
        return None


def test_a_transform_must_return_bytes() -> None:
    with pytest.raises(TypeError, match=r"wrap of .*Careless.* must return bytes, got a str"):
        PayloadCodec(Careless()).encode(1)
    with pytest.raises(TypeError, match=r"unwrap of .* must return bytes, got a NoneType"):
        PayloadCodec(Careless()).decode(b"\x01")


def test_threads_may_share_a_codec() -> None:
    value = {"when": datetime(2024, 1, 1, tzinfo=UTC), "parts": [(n,) for n in range(50)]}
    expected = codec.encode(value)
    wrong: list[bytes] = []

    def work() -> None:
        for _ in range(300):
            data = codec.encode(value)
            if data != expected or not same(codec.decode(data), value):
                wrong.append(data)

    interval = sys.getswitchinterval()
    threads = [Thread(target=work) for _ in range(4)]
    try:
        sys.setswitchinterval(1e-6)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


# Written by the first release and readable for ever.
BERLIN = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
WEST = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=-1)))
EAST = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET"))
GOLDEN: list[tuple[str, Any]] = [
    ("c0", None),
    ("c3", True),
    ("ff", -1),
    ("cfffffffffffffffff", 2**64 - 1),
    ("cb3ff8000000000000", 1.5),
    ("a2c3a4", "ä"),
    ("c40100", b"\x00"),
    ("9101", [1]),
    ("93c70001019191c70001", (1, [()])),
    ("82a16201a161c0", {"b": 1, "a": None}),
    ("c70c0207e80a1b021e010000000500", datetime(2024, 10, 27, 2, 30, 1, 5, tzinfo=UTC)),
    (
        "c71a0207e80a1b021e000000000001404575726f70652f4265726c696e",
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    ),
    (
        "c717020001010100000000000000002d33363030303030303030",
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=-1))),
    ),
    (
        "c71a02000101010000000000000000333630303030303030303d434554",
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
    ),
    ("c70a03323032342d30322d3239", date(2024, 2, 29)),
    ("d7042d312e3530452b37", Decimal("-1.50E+7")),
    ("d80500000000000000000000000000000007", UUID(int=7)),
]


@pytest.mark.parametrize(("data", "value"), GOLDEN)
def test_golden_payloads_stay_readable(data: str, value: Any) -> None:
    assert same(codec.decode(bytes.fromhex(data)), value)
    assert codec.encode(value) == bytes.fromhex(data)
