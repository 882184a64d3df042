"""The Bloom filter: recognises most requests that have no stored answer, so that no read is needed.

The filter marks two positions for each record key, taken from its hash. Two stored answers may
together mark the positions of a third request, and then the store is read in vain. A request whose
positions are not both marked was never stored.
"""

SLOTS = 1 << 22
"""Size in bytes, allocated with the first answer. With a million answers, one read in six is in
vain."""

_LAST = SLOTS - 1


class BloomFilter:
    """The requests that may have a stored answer."""

    __slots__ = ("_slots", "complete")

    def __init__(self) -> None:
        self._slots = bytearray()
        self.complete = False
        """Whether the filter contains everything that is stored."""

    def add(self, record: bytes) -> None:
        """Add the record key of an answer."""
        if not self._slots:
            self._slots = bytearray(SLOTS)
        # The hash is of the whole record key, because many keys may use the same request ids.
        number = hash(record)
        self._slots[number & _LAST] = self._slots[number >> 32 & _LAST] = 1

    def lacks(self, record: bytes) -> bool:
        """Return whether it is certain that a request has no stored answer."""
        slots = self._slots
        if not self.complete or not slots:
            return self.complete
        number = hash(record)
        return not (slots[number & _LAST] and slots[number >> 32 & _LAST])
