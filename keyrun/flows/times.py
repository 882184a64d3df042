"""Times: read the times that a flow names, which always have a time zone."""

import re
from datetime import datetime

TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?"
ZONE = r"(Z|[+-][0-9]{2}:[0-9]{2})"
_TIME = re.compile(TIME)
_WHOLE = re.compile(TIME + ZONE)
_EXAMPLE = "'2026-12-24T18:00:00Z'"


def timestamp_of(text: str) -> float:
    """Return a time in seconds since the epoch. Raise ValueError for a text that is not a time with
    a time zone."""
    if _WHOLE.fullmatch(text):
        try:
            return datetime.fromisoformat(text).timestamp()
        except ValueError as error:
            raise ValueError(f"{text!r} is not a time: {error}") from error
    if _TIME.fullmatch(text):
        raise ValueError(
            f"the time {text!r} has no time zone; write '{text}Z' for UTC, or add an offset such "
            "as +01:00"
        )
    shown = text if len(text) <= 60 else f"{text[:60]}..."
    raise ValueError(f"{shown!r} is not a time; write the date, time and zone, as in {_EXAMPLE}")
