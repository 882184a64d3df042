"""Run ids that the runtime makes: they sort by the time they were made, and tell the number."""

import re
from secrets import token_hex

_MADE = re.compile(r"[0-9a-f]{22}([0-9a-f]{1,16})")


class RunIds:
    """Makes ids, thousands per millisecond in order."""

    def __init__(self) -> None:
        self._last = 0
        self._maker = token_hex(4)

    def make(self, wall: float, number: int) -> str:
        """The next id."""
        last = self._last = max(self._last + 1, int(wall * 1e6))
        return f"{last:014x}{self._maker}{number:x}"


def number_in(run_id: str) -> int | None:
    """The admission number that an id tells, if it is one that was made here."""
    made = _MADE.fullmatch(run_id)
    return None if made is None else int(made[1], 16)
