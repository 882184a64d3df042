"""The handle of a group, and the iterator over its members as they end."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar
from weakref import ref

import trio

from keyrun.runtime.groups.members import GroupMembers, forgotten
from keyrun.runtime.groups.records import GroupStatus, MemberOutcome, MemberRecord, member_run_id
from keyrun.runtime.run.run import Run
from keyrun.runtime.runs import End, NoEnd
from keyrun.runtime.values import State
from keyrun.storage import StoreClosed

T = TypeVar("T")

_AT_ONCE = 100


class GroupHandle(Generic[T]):
    """Refer to one group. `rt.submit_group` and `rt.group` return a handle.

    `async for outcome in group` yields a `MemberOutcome` for each member that has ended, then for
    the other members as they end."""

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
        """The id of the group."""
        self.newly_submitted = newly
        """False if the group existed before the submit."""

    async def status(self) -> GroupStatus:
        """Return the number of members in each state."""
        return await self._members.status(self.group_id)

    async def results(self) -> dict[str, MemberOutcome[T]]:
        """Wait until all members have ended, and return their outcomes by member id, in the order
        of the group."""
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


class MemberEnds:
    """Yields first the members that have ended, then the others as they end."""

    def __init__(self, members: GroupMembers, group_id: str) -> None:
        self._members = members
        self._group_id = group_id
        self._unseen: list[MemberRecord] | None = None
        """Members that may have ended before the iteration began."""
        self._waiting: dict[int, MemberRecord] = {}
        self._reported: deque[tuple[int, Run | NoEnd]] = deque()
        self._woken = trio.Event()
        me = ref(self)

        def report(number: int, end: End) -> None:
            ends = me()
            if ends is None:
                return
            if isinstance(end, Run | NoEnd):
                ends._reported.append((number, end))
                ends._woken.set()
            else:
                # A member that is quarantined has not ended.
                members.runs.when_ended(number, report)

        self._report = report
        """The callback in the run table. It holds a weak reference, because an iteration over the
        members may just be dropped."""

    def __aiter__(self) -> "MemberEnds":
        return self

    async def __anext__(self) -> MemberOutcome[Any]:
        if self._unseen is None:
            found = (await self._members.of(self._group_id)).values()
            self._unseen = sorted(found, key=lambda member: -member.position)
        while self._unseen:
            outcome = await self._look(self._unseen[-1])
            self._unseen.pop()
            if outcome is not None:
                return outcome
        while self._waiting:
            while not self._reported:
                self._members.partition.check_caller()
                self._woken = trio.Event()
                await self._woken.wait()
            outcome = self._reported_outcome(*self._reported.popleft())
            if outcome is not None:
                return outcome
        raise StopAsyncIteration

    async def _look(self, member: MemberRecord) -> MemberOutcome[Any] | None:
        """Return the end of a member, or wait for it and return None."""
        members, number = self._members, member.number
        members.partition.check_caller()
        if number not in self._waiting:
            # Before the look-up, so that the end cannot fall between the two.
            self._waiting[number] = member
            members.runs.when_ended(number, self._report)
        outcome = await members.outcome(self._group_id, member)
        if outcome is None or self._waiting.pop(number, None) is None:
            return None
        members.runs.ignore_end(number, self._report)
        return outcome

    def _reported_outcome(self, number: int, end: Run | NoEnd) -> MemberOutcome[Any] | None:
        if end is NoEnd.CLOSED:
            raise StoreClosed(
                "the runtime was closed before the group ended; the group resumes when the store "
                "is opened again"
            )
        member = self._waiting.pop(number, None)
        if member is None:
            return None
        if end is NoEnd.FORGOTTEN:
            return forgotten(self._group_id, member, State.CANCELLED)
        return self._members.outcome_of(member, end)
