"""The handle of a group, which `submit_group` returns."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

import trio

from keyrun.runtime.groups.member_ends import MemberEnds
from keyrun.runtime.groups.members import GroupMembers
from keyrun.runtime.groups.records import GroupStatus, MemberOutcome, member_run_id

T = TypeVar("T")

_AT_ONCE = 100


class GroupHandle(Generic[T]):
    """A group that was submitted. `async for` yields members as they end, first the ones that have
    ended. `newly_submitted` is False if the group existed before."""

    __slots__ = ("_cancel", "_members", "group_id", "newly_submitted")

    def __init__(
        self,
        members: GroupMembers,
        cancel: Callable[[str], Awaitable[bool]],
        group_id: str,
        newly: bool,
    ) -> None:
        self._members = members
        self._cancel = cancel
        self.group_id = group_id
        self.newly_submitted = newly

    async def status(self) -> GroupStatus:
        """Return the number of members in each state."""
        return await self._members.status(self.group_id)

    async def results(self) -> dict[str, MemberOutcome[T]]:
        """Wait until all members have ended, and return their ends in the order of the group."""
        found: list[MemberOutcome[T]] = [outcome async for outcome in self]
        found.sort(key=lambda outcome: outcome.position)
        return {outcome.member_id: outcome for outcome in found}

    def __aiter__(self) -> AsyncIterator[MemberOutcome[T]]:
        return MemberEnds(self._members, self.group_id)

    async def cancel(self) -> int:
        """Cancel all members that have not ended, and return their number."""
        cancelled = 0

        async def cancel(member_id: str) -> None:
            nonlocal cancelled
            changed = await self._cancel(member_run_id(self.group_id, member_id))
            cancelled += changed

        members = await self._members.of(self.group_id)
        # The last member first, so that no member begins because the one before it ends.
        order = sorted(members.values(), key=lambda member: -member.position)
        for at in range(0, len(order), _AT_ONCE):
            # Cancellations that run together share commits.
            async with trio.open_nursery() as nursery:
                for member in order[at : at + _AT_ONCE]:
                    if member.gone is None:
                        nursery.start_soon(cancel, member.member_id)
        return cancelled

    def __repr__(self) -> str:
        return f"<group {self.group_id}>"
