"""Run ids that Keyrun generates. Each contains the admission number of its run.

The id of a run that was submitted without one sorts by the time of submission. A damaged run whose
id is lost gets an id from its number.
"""

import re
from secrets import token_hex

_MADE = re.compile(r"[0-9a-f]{22}([0-9a-f]{1,16})")
_LOST = re.compile(r"damaged-([1-9][0-9]{0,18})")


class RunIds:
    """Makes run ids that sort by the time at which they were made."""

    def __init__(self) -> None:
        self._last = 0
        self._maker = token_hex(4)

    def make(self, wall: float, number: int) -> str:
        """Return the next id, for the run with this admission number."""
        last, now = self._last + 1, int(wall * 1e6)
        if now > last:
            last = now
        self._last = last
        return f"{last:014x}{self._maker}{number:x}"


def lost_id(number: int) -> str:
    """Return the id of a run whose own id is lost."""
    return f"damaged-{number}"


def number_in(run_id: str) -> int | None:
    """Return the admission number in a generated id. None for any other id."""
    if (made := _MADE.fullmatch(run_id)) is not None:
        return int(made[1], 16)
    lost = _LOST.fullmatch(run_id)
    return None if lost is None else int(lost[1])
