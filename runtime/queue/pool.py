"""Spares: lines with nothing in them that are kept, since many a key gets its next run soon."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyrun.runtime.queue.key_queue import Line

SPARE = 1024
"""How many are kept."""


class Spares(dict[str, "Line"]):
    """The lines, by key."""

    __slots__ = ("_most",)

    def __init__(self) -> None:
        self._most = SPARE

    def keep(self, line: "Line") -> None:
        """Have a line at hand for the next run of its key."""
        if len(self) >= self._most:
            self._prune()
        self[line.key] = line

    def _prune(self) -> None:
        """Drop them all, except for those whose last outcome is not durable yet: a call of an
        entity has to wait for that."""
        for line in list(self.values()):
            if line.group is None or line.group.durable:
                del self[line.key]
        self._most = max(SPARE, 2 * len(self))
