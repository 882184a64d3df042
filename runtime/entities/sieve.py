"""The sieve: knows at once of most requests that they have no answer, so that nobody has to look.

It remembers by two numbers out of the hash in a record's name. Those of two answers may be the same
as those of a third, which is then looked for in vain; one that it does not know was never stored.
"""

from struct import Struct

SLOTS = 1 << 22
"""Bytes that it takes once there is an answer. With a million, every sixth look is in vain."""

_NUMBERS = Struct(">II")


class Sieve:
    """Requests that may have been answered."""

    __slots__ = ("_slots", "whole")

    def __init__(self) -> None:
        self._slots = bytearray()
        self.whole = False
        """Whether it knows all that is stored."""

    def add(self, record: bytes) -> None:
        """A request has an answer."""
        if not self._slots:
            self._slots = bytearray(SLOTS)
        first, second = _NUMBERS.unpack_from(record, len(record) - 8)
        self._slots[first % SLOTS] = self._slots[second % SLOTS] = 1

    def lacks(self, record: bytes) -> bool:
        """Whether a request has no answer for sure."""
        slots = self._slots
        if not self.whole or not slots:
            return self.whole
        first, second = _NUMBERS.unpack_from(record, len(record) - 8)
        return not (slots[first % SLOTS] and slots[second % SLOTS])
