"""The sieve: knows at once of most requests that they have no answer, so that nobody has to look.

It remembers by two numbers out of the hash of a record's name. Those of two answers may be the same
as those of a third, which is then looked for in vain; one that it does not know was never stored.
"""

SLOTS = 1 << 22
"""Bytes that it takes once there is an answer. With a million, every sixth look is in vain."""

_LAST = SLOTS - 1


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
        # Of the whole name: many keys may use the same request ids.
        number = hash(record)
        self._slots[number & _LAST] = self._slots[number >> 32 & _LAST] = 1

    def lacks(self, record: bytes) -> bool:
        """Whether a request has no answer for sure."""
        slots = self._slots
        if not self.whole or not slots:
            return self.whole
        number = hash(record)
        return not (slots[number & _LAST] and slots[number >> 32 & _LAST])
