"""Values that the payload codec takes, and a comparison that tells any two of them apart."""

import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe")


def same(left: Any, right: Any) -> bool:
    """The same types and values all the way down, with the order of dicts, NaN, -0.0 and zones."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, float):
        if math.isnan(left):
            return math.isnan(right)
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, Decimal):
        return bool(left.as_tuple() == right.as_tuple())
    if isinstance(left, datetime):
        plain = left.replace(tzinfo=None) == right.replace(tzinfo=None)
        zones = type(left.tzinfo) is type(right.tzinfo) and repr(left.tzinfo) == repr(right.tzinfo)
        return plain and zones and left.fold == right.fold
    return bool(left == right)


fixed_zones = st.builds(
    timezone,
    st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59)),
) | st.builds(
    timezone,
    st.timedeltas(timedelta(hours=-14), timedelta(hours=14)),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
aware_datetimes = st.builds(
    lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
    st.datetimes(),
    fixed_zones | st.sampled_from([UTC, *map(ZoneInfo, ZONES)]),
    st.integers(0, 1),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([-(2**63), -1, 0, 2**63, 2**64 - 1]),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
    aware_datetimes,
    st.dates(),
    st.decimals(),
    st.sampled_from([Decimal("-0"), Decimal("1E+999999"), Decimal("-NaN12"), Decimal("sNaN")]),
    st.uuids(),
)
keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(keys, inner, max_size=5),
    ),
    max_leaves=25,
)
