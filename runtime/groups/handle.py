"""The handle of a group: what its submitter has of it."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from keyrun.runtime.errors import UnknownGroup
from keyrun.runtime.groups.member_ends import Ends
from keyrun.runtime.groups.records import GroupStatus, MemberOutcome, member_run_id, read_status

if TYPE_CHECKING:
    from keyrun.runtime.partition import Partition

T = TypeVar("T")

_AT_ONCE = 100


class GroupHandle(Generic[T]):
    """A group, as its submitter sees it. `async for` gives members as they end, those that have
    ended first. `newly_submitted` is False if the group was there before."""

    __slots__ = ("_partition", "group_id", "newly_submitted")

    def __init__(self, partition: "Partition", group_id: str, newly: bool) -> None:
        self._partition = partition
        self.group_id = group_id
        self.newly_submitted = newly

    async def status(self) -> GroupStatus:
        """How many members are in which state."""
        partition = self._partition
        found = await read_status(partition.reading, self.group_id)
        if found is None:
            raise _unknown(self.group_id)
        return found

    async def results(self) -> dict[str, MemberOutcome[T]]:
        """Wait until all members have ended; how they did, in the order of the group."""
        found: list[MemberOutcome[T]] = [outcome async for outcome in self]
        found.sort(key=lambda outcome: outcome.position)
        return {outcome.member_id: outcome for outcome in found}

    def __aiter__(self) -> AsyncIterator[MemberOutcome[T]]:
        return Ends(self._partition, self.group_id)

    async def cancel(self) -> int:
        """Cancel all members that have not ended; how many these were."""
        cancelled = 0

        async def cancel(member_id: str) -> None:
            nonlocal cancelled
            changed = await self._partition.control.cancel(member_run_id(self.group_id, member_id))
            cancelled += changed

        members = await self._partition.groups.members(self.group_id)
        # Those that came last first, so that none of them begins when the one before it ends.
        order = sorted(members.values(), key=lambda entry: -entry.position)
        for at in range(0, len(order), _AT_ONCE):
            # Together they share commits.
            async with trio.open_nursery() as nursery:
                for entry in order[at : at + _AT_ONCE]:
                    if entry.gone is None:
                        nursery.start_soon(cancel, entry.member_id)
        return cancelled

    def __repr__(self) -> str:
        return f"<group {self.group_id}>"


def _unknown(group_id: str) -> UnknownGroup:
    return UnknownGroup(f"no group has the id {group_id!r}, or all its runs were forgotten")
