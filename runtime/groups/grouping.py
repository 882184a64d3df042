"""Grouping: what a runtime offers to those who submit many runs as one."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from keyrun.runtime.wording import check_text

if TYPE_CHECKING:
    from keyrun.runtime.engine import Engine
    from keyrun.runtime.groups.group import Member
    from keyrun.runtime.groups.handle import GroupHandle

T = TypeVar("T")


class Grouping:
    """The part of a runtime that is about groups."""

    _engine: "Engine"

    async def submit_group(
        self, group_id: str, members: "Iterable[Member[Any, T]]"
    ) -> "GroupHandle[T]":
        """Start many runs as one group, and return when they are durable: up to 1,000 are
        accepted whole or not at all, more in parts of that size.

        The same again is the same group, in whatever order the members are given: what was not
        accepted yet is accepted, and members that failed, were cancelled or are quarantined are
        run again from where they stopped. Other members under the same id are refused.
        """
        return await self._engine.groups.submit(group_id, list(members))

    async def group(self, group_id: str) -> "GroupHandle[Any] | None":
        """A group that was submitted before; None if there is none, or it was forgotten."""
        return await self._engine.groups.find(check_text(group_id, "group_id"))
