"""States: what entities keep, as bytes, for keys that were called lately.

What is staged only must be found here, since the store does not show it; what is durable may be
dropped at any time.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyrun.storage.group import Group

ROOM = 8 * 1024 * 1024
"""Bytes that may be kept for nothing but speed."""

_EACH = 300
"""Bytes that an entry takes beside its state, about."""


class States:
    """The latest states, by record."""

    __slots__ = ("_kept", "_most", "_weight")

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[bytes, Group | None]] = {}
        self._weight = 0
        self._most = ROOM

    def get(self, record: bytes) -> bytes | None:
        """The state if it is at hand; empty if there is none."""
        kept = self._kept.get(record)
        return None if kept is None else kept[0]

    def keep(self, record: bytes, state: bytes, group: "Group | None") -> None:
        """Take in a state that was read, or staged in `group`."""
        self._kept[record] = state, group
        self._weight += len(state) + _EACH
        if self._weight > self._most:
            self._prune()

    def _prune(self) -> None:
        """Drop what the store shows, too."""
        self._kept = {
            record: (state, group)
            for record, (state, group) in self._kept.items()
            if group is not None and not group.durable
        }
        self._weight = sum(len(state) + _EACH for state, _ in self._kept.values())
        # If hardly anything could go there is no use in trying again soon.
        self._most = max(ROOM, 2 * self._weight)
