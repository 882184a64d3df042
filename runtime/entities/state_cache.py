"""The state cache: the encoded states of entities whose methods were called lately.

A state that is only staged must stay in the cache, because the store does not show it yet. A
durable state may be dropped at any time. If no value of a state is mutable, the cache also keeps
the decoded values, because copying them is faster than decoding the state again.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keyrun.storage.group import Group

_OVERHEAD = 500
"""Bytes that an entry takes beside its state, about."""


CachedState = tuple[bytes, "Group | None", dict[str, Any] | None]
"""An encoded state, the commit group in which it is staged, and its values if they are immutable.
The mapping of the values must not be changed either."""


class StateCache:
    """The latest states, by record key."""

    __slots__ = ("_limit", "_room", "_weight", "states")

    def __init__(self, room: int) -> None:
        self.states: dict[bytes, CachedState] = {}
        """Empty bytes stand for a state that does not exist."""
        self._room = room
        """Bytes that durable states may take."""
        self._weight = 0
        self._limit = room

    def keep(
        self,
        record: bytes,
        encoded: bytes,
        group: "Group | None",
        values: dict[str, Any] | None = None,
    ) -> CachedState:
        """Add a state that was read, or staged in `group`, with its values if they are known and
        immutable."""
        state = self.states[record] = encoded, group, values
        self._weight += 2 * len(encoded) + _OVERHEAD
        if self._weight > self._limit:
            self._prune()
        return state

    def _prune(self) -> None:
        """Drop the states that the store shows."""
        self.states = {
            record: (encoded, group, values)
            for record, (encoded, group, values) in self.states.items()
            if group is not None and not group.durable
        }
        self._weight = sum(2 * len(encoded) + _OVERHEAD for encoded, _, _ in self.states.values())
        # If hardly anything could be dropped, another attempt soon would be wasted.
        self._limit = max(self._room, 2 * self._weight)
