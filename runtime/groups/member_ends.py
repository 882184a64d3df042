"""Ends: how the members of a group end, told as it happens."""

from collections import deque
from typing import Any
from weakref import ref

import trio

from keyrun.runtime.groups.records import Entry, MemberOutcome, member_run_id
from keyrun.runtime.partition import Partition
from keyrun.runtime.run.run import Run
from keyrun.runtime.runs import Change, End, NoEnd
from keyrun.runtime.values import RunStatus, State
from keyrun.storage import StoreClosed


class Ends:
    """How the members of a group ended: first those that have, then the others as they do."""

    def __init__(self, partition: Partition, group_id: str) -> None:
        self._partition = partition
        self._group_id = group_id
        self._unseen: list[Entry] | None = None
        """Members that may have ended before anybody looked."""
        self._waiting: dict[int, Entry] = {}
        self._reported: deque[tuple[int, Run | NoEnd]] = deque()
        self._heard = trio.Event()
        me = ref(self)

        def report(number: int, end: End) -> None:
            ends = me()
            if ends is None:
                return
            if isinstance(end, Run | NoEnd):
                ends._reported.append((number, end))
                ends._heard.set()
            else:
                # A member that is quarantined has not ended.
                partition.runs.when_ended(number, report)

        self._report = report
        """The callback in the run table. It holds a weak reference, because an iteration over the
        members may just be dropped."""

    def __aiter__(self) -> "Ends":
        return self

    async def __anext__(self) -> MemberOutcome[Any]:
        if self._unseen is None:
            members = (await self._partition.groups.members(self._group_id)).values()
            self._unseen = sorted(members, key=lambda entry: -entry.position)
        while self._unseen:
            outcome = await self._look(self._unseen[-1])
            self._unseen.pop()
            if outcome is not None:
                return outcome
        while self._waiting:
            while not self._reported:
                self._partition.check_open()
                self._heard = trio.Event()
                await self._heard.wait()
            outcome = self._outcome_of(*self._reported.popleft())
            if outcome is not None:
                return outcome
        raise StopAsyncIteration

    async def _look(self, entry: Entry) -> MemberOutcome[Any] | None:
        """How a member ended; if it has not, it is waited for."""
        partition, number = self._partition, entry.number
        partition.check_open()
        if number not in self._waiting:
            # Before the look-up, so that the end cannot fall between the two.
            self._waiting[number] = entry
            partition.runs.when_ended(number, self._report)
        outcome = await _outcome(partition, self._group_id, entry)
        if outcome is None or self._waiting.pop(number, None) is None:
            return None
        partition.runs.ignore_end(number, self._report)
        return outcome

    def _outcome_of(self, number: int, end: Run | NoEnd) -> MemberOutcome[Any] | None:
        if end is NoEnd.CLOSED:
            raise StoreClosed(
                "the runtime was left before the group ended; it goes on when the store is opened "
                "again"
            )
        entry = self._waiting.pop(number, None)
        if entry is None:
            return None
        if end is NoEnd.FORGOTTEN:
            return _forgotten(self._group_id, entry, State.CANCELLED)
        status = self._partition.reading.status_of(end.submission, end.standing)
        return _ended(entry, status)


async def _outcome(partition: Partition, group_id: str, entry: Entry) -> MemberOutcome[Any] | None:
    """How a member ended, if it has."""
    if entry.gone is not None:
        return _forgotten(group_id, entry, entry.gone)
    if partition.runs.live(entry.number) or partition.runs.changing(entry.number) is Change.REDRIVE:
        return None
    status = await partition.reading.status(entry.number)
    if status is None:
        return _forgotten(group_id, entry, State.CANCELLED)
    return _ended(entry, status) if status.state.terminal else None


def _ended(entry: Entry, status: RunStatus) -> MemberOutcome[Any]:
    return MemberOutcome(
        member_id=entry.member_id,
        position=entry.position,
        run_id=status.run_id,
        state=status.state,
        result=status.result,
        reason=status.reason,
        failure=status.failure,
    )


def _forgotten(group_id: str, entry: Entry, state: State) -> MemberOutcome[Any]:
    return MemberOutcome(
        member_id=entry.member_id,
        position=entry.position,
        run_id=member_run_id(group_id, entry.member_id),
        state=state,
        result=None,
        reason=None,
        failure=None,
        forgotten=True,
    )
