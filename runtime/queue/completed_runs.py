"""Endings: of keys that were forgotten, the group that ends their last run.

Until that is durable the store shows a run that has ended, and nothing that comes next under the
key may be read or begun.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyrun.storage.group import Group


class CompletedRuns(dict[str, "Group"]):
    """The groups, by key, for as long as they matter."""

    __slots__ = ()

    def keep(self, key: str, group: "Group") -> None:
        """Remember a group that is not durable yet."""
        self[key] = group
        group.when_durable(self._durable, key, group)

    def _durable(self, key: str, group: "Group") -> None:
        if self.get(key) is group:
            del self[key]
