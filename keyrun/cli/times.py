"""Times and durations: format them for people and for programs, and parse what a user types."""

import re
import time
from datetime import UTC, datetime

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def utc(at: float | None) -> str | None:
    """Return a time in ISO 8601 in UTC with microseconds. All results have the same length."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def local(at: float | None, now: float | None = None, *, to_the_second: bool = False) -> str:
    """Return a local time in short form.

    A time of today has no date, and a time of this year has no year. Older times have no time of
    day, and times of other days have no seconds, unless `to_the_second` is set.
    """
    if at is None:
        return ""
    then, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now or time.time())
    if then.date() == today.date():
        return then.strftime("%H:%M:%S")
    if then.year == today.year:
        return then.strftime("%m-%d %H:%M:%S" if to_the_second else "%m-%d %H:%M")
    return then.strftime("%Y-%m-%d %H:%M:%S" if to_the_second else "%Y-%m-%d")


def local_exactly(at: float | None) -> str:
    """Return a local time with date, microseconds and time zone."""
    if at is None:
        return ""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f %Z")


def waiting(what: str | None, until: float | None) -> str:
    """Return what a run waits for, and until when if that is known."""
    if what is None or until is None:
        return what or ""
    return f"{what} until {local(until, to_the_second=True)}"


def duration(seconds: float | None) -> str:
    """Return a duration with one or two units, such as "12 ms", "1.2 s" or "1h 5m"."""
    if seconds is None:
        return ""
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 0.0005:
        return "0 ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit} {rest}{small}" if rest else f"{whole // size}{unit}"
    rest = whole % 60
    return f"{whole // 60}m {rest}s" if rest else f"{whole // 60}m"


def parse(text: str, now: float | None = None) -> float:
    """Parse a point in time: an age (`90s`, `15m`, `2h`, `7d`, `1d12h`) or ISO 8601.

    ISO 8601 without a time zone is local time.
    """
    parts = _DURATION.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        ago = sum(float(number) * _UNITS[unit] for number, unit in parts)
        return (now or time.time()) - ago
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time; give an age such as 90s, 15m, 2h, 7d or 1d12h, or a date "
            "such as 2026-01-31 or 2026-01-31T14:00"
        ) from None
