"""Tallies: how many items of a map, and how many turns of a node in its body, are where."""

from keyrun.runtime.values import ItemCounts


class ItemTally:
    """The items of a map, over all of its turns."""

    __slots__ = ("done", "failed", "running", "total")

    def __init__(self) -> None:
        self.total = 0
        self.done = 0
        self.failed = 0
        self.running = 0

    def counts(self) -> ItemCounts:
        """Return the counts as a value."""
        return ItemCounts(
            total=self.total, done=self.done, failed=self.failed, running=self.running
        )


class NodeTally:
    """The turns of a node in the body of a map, over all items."""

    __slots__ = ("active", "done", "failed", "turns")

    def __init__(self) -> None:
        self.turns = 0
        self.active = 0
        self.done = 0
        self.failed = 0
