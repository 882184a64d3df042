"""Member ends: the async iterator over the members of a group as they end."""

from collections import deque
from typing import Any
from weakref import ref

import trio

from keyrun.runtime.groups.members import GroupMembers, forgotten
from keyrun.runtime.groups.records import MemberOutcome, MemberRecord
from keyrun.runtime.run.run import Run
from keyrun.runtime.runs import End, NoEnd
from keyrun.runtime.values import State
from keyrun.storage import StoreClosed


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
                self._members.partition.check_open()
                self._woken = trio.Event()
                await self._woken.wait()
            outcome = self._reported_outcome(*self._reported.popleft())
            if outcome is not None:
                return outcome
        raise StopAsyncIteration

    async def _look(self, member: MemberRecord) -> MemberOutcome[Any] | None:
        """Return the end of a member, or wait for it and return None."""
        members, number = self._members, member.number
        members.partition.check_open()
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
                "the runtime was left before the group ended; the group resumes when the store is "
                "opened again"
            )
        member = self._waiting.pop(number, None)
        if member is None:
            return None
        if end is NoEnd.FORGOTTEN:
            return forgotten(self._group_id, member, State.CANCELLED)
        return self._members.outcome_of(member, end)
