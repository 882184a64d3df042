"""States: what entities keep, as bytes, for keys that were called lately.

What is staged only must be found here, since the store does not show it; what is durable may be
dropped at any time. The values of a state are kept, too, if none of them can be changed: to copy
these is faster than to decode them again.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keyrun.storage.group import Group

ROOM = 8 * 1024 * 1024
"""Bytes that may be kept for nothing but speed."""

_EACH = 500
"""Bytes that an entry takes beside its state, about."""


State = tuple[bytes, "Group | None", dict[str, Any] | None]
"""A state as bytes, the group that it is staged in, and its values if nobody can change them; that
mapping must not be changed either."""


class States:
    """The latest states, by record."""

    __slots__ = ("_most", "_weight", "kept")

    def __init__(self) -> None:
        self.kept: dict[bytes, State] = {}
        """Those at hand; empty bytes are of one that there is not."""
        self._weight = 0
        self._most = ROOM

    def keep(
        self,
        record: bytes,
        encoded: bytes,
        group: "Group | None",
        values: dict[str, Any] | None = None,
    ) -> State:
        """Take in a state that was read, or staged in `group`, with its values if they are known
        and nobody can change them."""
        state = self.kept[record] = encoded, group, values
        self._weight += 2 * len(encoded) + _EACH
        if self._weight > self._most:
            self._prune()
        return state

    def _prune(self) -> None:
        """Drop what the store shows, too."""
        self.kept = {
            record: (encoded, group, values)
            for record, (encoded, group, values) in self.kept.items()
            if group is not None and not group.durable
        }
        self._weight = sum(2 * len(encoded) + _EACH for encoded, _, _ in self.kept.values())
        # If hardly anything could go there is no use in trying again soon.
        self._most = max(ROOM, 2 * self._weight)
