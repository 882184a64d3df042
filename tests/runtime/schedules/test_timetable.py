"""Timetables: when something fires, with no clock to be looked at."""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyrun.errors import InvalidSchedule
from keyrun.runtime.schedules.timetable import read_timetable, write_timetable
from keyrun.schedules import Cron, Every, Once

BERLIN = ZoneInfo("Europe/Berlin")
TIMES = st.floats(1_500_000_000, 1_900_000_000).map(lambda time: round(time, 6))


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def firings(when: Once | Every | Cron, after: str, until: str, created: float = 0.0) -> list[str]:
    """The firings between two times in UTC."""
    found, at = [], when.following(utc(after), created)
    while at is not None and at < utc(until):
        found.append(datetime.fromtimestamp(at, UTC).strftime("%d %H:%M"))
        at = when.following(at, created)
    return found


def test_what_fires_once_takes_a_time_with_a_zone_or_seconds() -> None:
    at = datetime(2024, 5, 1, 12, tzinfo=BERLIN)
    assert Once(at) == Once(at.timestamp()) == Once(utc("2024-05-01T10:00"))
    assert Once(at).following(0, 0) == at.timestamp()
    assert Once(at).following(at.timestamp(), 0) is None


def test_intervals_count_from_the_start_without_drifting() -> None:
    tenth = Every(0.1, start=1000)
    assert tenth.following(0, 0) == 1000
    at = 1000.0
    for turn in range(1, 2000):
        following = tenth.following(at, 0)
        assert following == pytest.approx(1000 + turn / 10, abs=1e-6)
        assert following is not None
        at = following
    assert Every(60).following(500, 500) == 560
    assert Every(60).following(560, 500) == 620
    assert Every(60).following(559.999, 500) == 560
    assert Every(60).latest(10_000, 500) == 9980
    assert Every(60).count(560, 9980, 500) == 157


def test_cron_fires_by_the_clock_of_its_zone() -> None:
    when = Cron("30 9 * * MON-FRI", "America/New_York")
    assert firings(when, "2024-01-04T00:00", "2024-01-09T00:00") == [
        "04 14:30",
        "05 14:30",
        "08 14:30",
    ]
    assert firings(Cron("0 12 1 * *"), "2024-01-01T12:00", "2024-03-02T00:00") == [
        "01 12:00",
        "01 12:00",
    ]


def test_what_falls_into_the_hour_that_there_is_not_fires_right_after_it() -> None:
    """In Berlin the clocks went from 2:00 to 3:00 on 31 March 2024, at 1:00 in UTC."""
    when = Cron("30 2 * * *", "Europe/Berlin")
    assert firings(when, "2024-03-29T12:00", "2024-04-01T12:00") == [
        "30 01:30",
        "31 01:00",
        "01 00:30",
    ]
    hourly = Cron("30 * * * *", "Europe/Berlin")
    assert firings(hourly, "2024-03-30T23:00", "2024-03-31T03:00") == [
        "30 23:30",
        "31 00:30",
        "31 01:30",
        "31 02:30",
    ]


def test_what_names_its_hour_fires_once_in_the_hour_that_comes_twice() -> None:
    """In Berlin the clocks went from 3:00 to 2:00 on 27 October 2024, at 1:00 in UTC."""
    when = Cron("30 2 * * *", "Europe/Berlin")
    assert firings(when, "2024-10-26T12:00", "2024-10-28T12:00") == ["27 00:30", "28 01:30"]
    # Asked in the second of the two hours.
    assert firings(when, "2024-10-27T01:15", "2024-10-28T12:00") == ["28 01:30"]
    hourly = Cron("30 * * * *", "Europe/Berlin")
    assert firings(hourly, "2024-10-26T23:00", "2024-10-27T03:00") == [
        "26 23:30",
        "27 00:30",
        "27 01:30",
        "27 02:30",
    ]


@given(
    time=TIMES,
    when=st.sampled_from(
        [
            Cron("30 2 * * *", "Europe/Berlin"),
            Cron("0,30 1-3 * * *", "America/New_York"),
            Cron("*/15 * * * *", "Europe/Berlin"),
            Cron("15 0 * * SUN", "Australia/Lord_Howe"),
            Every(7.5, start=1_400_000_000),
        ]
    ),
)
def test_the_latest_firing_is_the_one_that_the_next_follows(
    time: float, when: Cron | Every
) -> None:
    latest, following = when.latest(time, 0), when.following(time, 0)
    assert following is not None
    assert latest <= time < following
    assert when.following(latest, 0) == following


@pytest.mark.parametrize(
    "around", ["2024-03-31T00:00", "2024-10-27T00:00"], ids=["forward", "back"]
)
@pytest.mark.parametrize("expression", ["30 2 * * *", "0,30 1-3 * * *", "*/20 * * * *"])
def test_so_it_is_in_every_minute_around_a_change_of_the_clocks(
    around: str, expression: str
) -> None:
    when, start = Cron(expression, "Europe/Berlin"), utc(around)
    for minute in range(0, 240, 3):
        time = start + 60 * minute
        latest, following = when.latest(time, 0), when.following(time, 0)
        assert following is not None
        assert latest <= time < following
        assert when.following(latest, 0) == following


def test_firings_are_counted_as_far_as_it_matters() -> None:
    minutely = Cron("* * * * *")
    first = utc("2024-01-01T00:00")
    assert minutely.count(first, first, 0) == 0
    assert minutely.count(first, first + 300, 0) == 5
    assert minutely.count(first, first + 86_400 * 365, 0) == 1000


@pytest.mark.parametrize(
    "when", [Once(5.5), Every(60), Every(60, start=7), Cron("* * * * *", "Europe/Berlin")]
)
def test_timetables_come_back_from_the_store(when: Once | Every | Cron) -> None:
    assert read_timetable(list(write_timetable(when))) == when


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Once(datetime(2024, 1, 1)), "must say its zone"),
        (lambda: Once("tomorrow"), "a time is a datetime"),  # type: ignore[arg-type]
        (lambda: Once(-1), "a time is a datetime"),
        (lambda: Once(1e12), "from 0 to below 2e"),
        (lambda: Every(0), "seconds must be from 0.001 to below 2e\\+11, got 0"),
        (lambda: Every(float("inf")), "to below 2e"),
        (lambda: Every(float("nan")), "seconds must be"),
        (lambda: Every(True), "seconds must be"),
        (lambda: Cron("every day"), "must be a cron expression, got 'every day'"),
        (lambda: Cron("61 * * * *"), "Bad minute"),
        (lambda: Cron("0 0 30 2 *"), "Bad day-of-month"),
        (lambda: Cron(5), r"must be a cron expression, got 5 \(Not a string\)"),  # type: ignore[arg-type]
        (lambda: Cron("* * * * *", "Mars/Olympus"), "must be a time zone .* got 'Mars/Olympus'"),
        (lambda: Cron("* * * * *", "../etc"), "must be a time zone"),
    ],
)
def test_what_can_be_no_timetable_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidSchedule, match=message):
        make()
