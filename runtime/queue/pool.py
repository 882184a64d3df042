"""Spares: lines with nothing in them that are kept, since many a key gets its next run soon."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyrun.runtime.queue.key_queue import KeyQueue

SPARE = 1024
"""How many are kept."""


class QueuePool(dict[str, "KeyQueue"]):
    """The lines, by key."""

    __slots__ = ("_most",)

    def __init__(self) -> None:
        self._most = SPARE

    def keep(self, queue: "KeyQueue") -> None:
        """Have a line at hand for the next run of its key."""
        if len(self) >= self._most:
            self._prune()
        self[queue.key] = queue

    def _prune(self) -> None:
        """Drop them all, except for those whose last outcome is not durable yet: a call of an
        entity has to wait for that."""
        for queue in list(self.values()):
            if queue.group is None or queue.group.durable:
                del self[queue.key]
        self._most = max(SPARE, 2 * len(self))
