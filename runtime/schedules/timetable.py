"""Timetables: when a schedule fires. Times are seconds since the epoch, to the microsecond.

`following` returns the first firing after a time, and `latest` the last firing up to a time.
Neither reads a clock, so a timetable always gives the same answer.
"""

from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import attrs
from cronsim import CronSim, CronSimError

from keyrun.actors import checks
from keyrun.runtime.errors import InvalidSchedule

MOST_COUNTED = 1000
"""The largest number of missed firings that is counted."""

LONGEST = 1000
"""Characters that a cron expression may have."""
_MOST = 2e11
"""A time beyond the year 8000 is taken for a mistake."""


def _moment(at: float | datetime) -> float:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidSchedule(f"a time must say its zone, as with tzinfo=UTC, got {at!r}")
        at = at.timestamp()
    if not checks.is_number(at) or not 0 <= at < _MOST:
        raise InvalidSchedule(
            f"a time is a datetime, or seconds since the epoch, from 0 to below {_MOST:g}, "
            f"got {at!r}"
        )
    return round(float(at), 6)


def _moment_or_none(at: float | datetime | None) -> float | None:
    return None if at is None else _moment(at)


@attrs.frozen
class Once:
    """Fire once."""

    at: float = attrs.field(converter=_moment)
    """A `datetime` with a time zone, or seconds since the epoch."""

    def following(self, time: float, created: float) -> float | None:
        """Return the first firing after `time`, or None if there is none."""
        return self.at if self.at > time else None

    def latest(self, time: float, created: float) -> float:
        """Return the last firing up to `time`."""
        return self.at

    def count(self, first: float, last: float, created: float) -> int:
        """Return the number of firings from `first` until before `last`."""
        return 0


@attrs.frozen
class Every:
    """Fire at regular intervals."""

    seconds: float = attrs.field()
    """The seconds between two firings."""
    start: float | None = attrs.field(default=None, kw_only=True, converter=_moment_or_none)
    """The first firing: a `datetime` with a time zone, or seconds since the epoch. Default:
    `seconds` seconds after the schedule was created."""

    @seconds.validator
    def _check(self, attribute: object, value: Any) -> None:
        if not checks.is_number(value) or not 0.001 <= value < _MOST:
            raise InvalidSchedule(f"seconds must be from 0.001 to below {_MOST:g}, got {value!r}")

    def following(self, time: float, created: float) -> float | None:
        """Return the first firing after `time`, or None if there is none."""
        origin, step = self._grid(created)
        least = 1 if self.start is None else 0
        turns = max(least, (_micros(time) - origin) // step + 1)
        return (origin + turns * step) / 1e6

    def latest(self, time: float, created: float) -> float:
        """Return the last firing up to `time`."""
        origin, step = self._grid(created)
        return (origin + (_micros(time) - origin) // step * step) / 1e6

    def count(self, first: float, last: float, created: float) -> int:
        """Return the number of firings from `first` until before `last`."""
        return (_micros(last) - _micros(first)) // self._grid(created)[1]

    def _grid(self, created: float) -> tuple[int, int]:
        return _micros(created if self.start is None else self.start), _micros(self.seconds)


@attrs.frozen
class Cron:
    """Fire at the times of a cron expression.

    When clocks are set forward, a firing in the hour that does not exist happens right after it.
    When clocks are set back, an expression that names its hour fires once in the repeated hour, and
    an expression that fires every hour or every few minutes fires in both.
    """

    expression: str = attrs.field()
    """Five fields: minute, hour, day of month, month and day of week, for example
    `30 3 * * MON-FRI`."""
    timezone: str = attrs.field(default="UTC")
    """The name of an IANA time zone, for example `Europe/Berlin`."""

    @expression.validator
    def _check_expression(self, attribute: object, value: Any) -> None:
        try:
            if not isinstance(value, str):
                raise CronSimError("Not a string")
            if len(value) > LONGEST:
                value = f"{value[:20]}..."
                raise CronSimError(f"Longer than {LONGEST} characters")
            CronSim(value, datetime(2000, 1, 1, tzinfo=UTC))
        except CronSimError as error:
            raise InvalidSchedule(
                f"expression must be a cron expression, got {value!r} ({error}); give five fields: "
                "minute, hour, day of month, month, day of week, as in '30 3 * * MON-FRI'"
            ) from None

    @timezone.validator
    def _check_timezone(self, attribute: object, value: Any) -> None:
        _zone(value)

    def following(self, time: float, created: float) -> float | None:
        """Return the first firing after `time`, or None if there is none."""
        return self._first(time)

    def _first(self, time: float) -> float | None:
        firings = CronSim(self.expression, datetime.fromtimestamp(time, _zone(self.timezone)))
        # In the repeated hour, a local time has two meanings.
        return next((at for each in firings if (at := each.timestamp()) > time), None)

    def latest(self, time: float, created: float) -> float:
        """Return the last firing up to `time`."""
        behind = datetime.fromtimestamp(int(time) + 1, _zone(self.timezone))
        firings = CronSim(self.expression, behind, reverse=True)
        found = next(at for each in firings if (at := each.timestamp()) <= time)
        # Around a change of the clocks, a backward search may miss firings that a forward search
        # finds.
        while (later := self._first(found)) is not None and later <= time:
            found = later
        return found

    def count(self, first: float, last: float, created: float) -> int:
        """Return the number of firings from `first` until before `last`, at most `MOST_COUNTED`."""
        counted, at = 0, first
        while at < last and counted < MOST_COUNTED:
            counted += 1
            following = self._first(at)
            if following is None:
                break
            at = following
        return counted


Timetable = Once | Every | Cron


def check_timetable(when: object) -> Timetable:
    """Return a timetable, or raise `InvalidSchedule` if `when` is none."""
    if not isinstance(when, Timetable):
        raise InvalidSchedule(f"when must be Once(...), Every(...) or Cron(...), got {when!r}")
    return when


def write_timetable(when: Timetable) -> tuple[Any, ...]:
    """Return the fields of a timetable as they are stored."""
    match when:
        case Once(at=at):
            return ("once", at)
        case Every(seconds=seconds, start=start):
            return ("every", seconds, start)
        case Cron(expression=expression, timezone=timezone):
            return ("cron", expression, timezone)


def read_timetable(fields: list[Any]) -> Timetable:
    """Return the timetable that `write_timetable` wrote."""
    match fields:
        case ["once", at]:
            return Once(at)
        case ["every", seconds, start]:
            return Every(seconds, start=start)
        case [_, expression, timezone]:
            return Cron(expression, timezone)
    raise AssertionError(f"no timetable has the fields {fields!r}")


def _micros(time: float) -> int:
    return round(time * 1e6)


def _zone(name: Any) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, TypeError, OSError):
        raise InvalidSchedule(
            f"timezone must be a time zone that this machine knows, as in 'Europe/Berlin', got "
            f"{name!r}"
        ) from None
