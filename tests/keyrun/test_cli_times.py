"""Times as people and programs read them."""

from datetime import datetime

import pytest

from keyrun.cli.times import duration, local, local_exactly, parse, utc

NOW = datetime(2026, 7, 5, 12, 0, 0).timestamp()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, ""),
        (0.0, "0 ms"),
        (0.0004, "0 ms"),
        (0.0123, "12 ms"),
        (0.9996, "1.0 s"),
        (1.25, "1.2 s"),
        (59.96, "1m"),
        (61, "1m 1s"),
        (3599.6, "1h"),
        (3660, "1h 1m"),
        (86_400, "1d"),
        (90_000, "1d 1h"),
        (-2.0, "-2.0 s"),
    ],
)
def test_durations_are_said_as_a_person_would(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


def test_a_time_is_as_short_as_it_can_be_told_apart() -> None:
    assert local(None) == ""
    assert local(NOW - 60, NOW) == "11:59:00"
    assert local(NOW - 86_400, NOW) == "07-04 12:00"
    assert local(NOW - 400 * 86_400, NOW) == "2025-05-31"
    assert local(NOW - 86_400, NOW, to_the_second=True) == "07-04 12:00:00"
    assert local(NOW - 400 * 86_400, NOW, to_the_second=True) == "2025-05-31 12:00:00"
    assert local_exactly(NOW).startswith("2026-07-05 12:00:00.000000 ")
    assert local_exactly(None) == ""


def test_programs_get_utc_of_one_length() -> None:
    assert utc(None) is None
    assert utc(0.0) == "1970-01-01T00:00:00.000000Z"
    assert utc(1_700_000_000.25) == "2023-11-14T22:13:20.250000Z"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90s", NOW - 90),
        ("1.5m", NOW - 90),
        ("2h", NOW - 7200),
        ("1d12h", NOW - 129_600),
        ("1w", NOW - 604_800),
        ("2026-07-05", NOW - 43_200),
        ("2026-07-05T11:00", NOW - 3600),
        ("1970-01-01T00:00:05Z", 5.0),
        ("1970-01-01T01:00:05+01:00", 5.0),
    ],
)
def test_a_time_is_so_long_ago_or_a_date(text: str, at: float) -> None:
    assert parse(text, NOW) == at


@pytest.mark.parametrize("text", ["", "2", "2 h", "h", "-2h", "2h ago", "2026-13-01", "now"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="such as 90s, 15m, 2h, 7d or 1d12h"):
        parse(text, NOW)
