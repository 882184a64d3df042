"""The members of groups: which runs they are, and how they ended."""

from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from keyrun.runtime.errors import UnknownGroup
from keyrun.runtime.groups.records import (
    UNPLACED,
    GroupStatus,
    MemberOutcome,
    MemberRecord,
    member_pages,
    member_run_id,
    read_status,
)
from keyrun.runtime.runs import Change
from keyrun.runtime.values import RunStatus, State

if TYPE_CHECKING:
    from keyrun.runtime.records.submission import StatusRecord, Submission
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.run.run import Run
    from keyrun.runtime.runs import RunTable


class RunStatuses(Protocol):
    """Reads the status of runs."""

    async def state(self, number: int) -> State | None:
        """Return the state of a run, or None if there is no such run."""

    async def status(self, number: int) -> RunStatus | None:
        """Return the status of a run, or None if there is no such run."""

    def status_of(self, submission: "Submission", status: "StatusRecord | None") -> RunStatus:
        """Return the status of a run that is in memory."""


class GroupMembers:
    """Reads members and their ends."""

    def __init__(
        self, partition: "PartitionState", runs: "RunTable", statuses: RunStatuses
    ) -> None:
        self.partition = partition
        self.runs = runs
        self._statuses = statuses

    async def status(self, group_id: str) -> GroupStatus:
        """Return the progress of a group, or raise `UnknownGroup`."""
        found = await read_status(self.partition.ledger, group_id, self._statuses.state)
        if found is None:
            raise UnknownGroup(f"no group has the id {group_id!r}, or all its runs were forgotten")
        return found

    async def of(self, group_id: str) -> dict[str, MemberRecord]:
        """Return the members that have been accepted, by member id."""
        found: dict[str, MemberRecord] = {}
        async for page in member_pages(self.partition.ledger, group_id):
            found.update((member.member_id, member) for member in page)
        taken = {member.position for member in found.values()}
        free = (position for position in count() if position not in taken)
        for member_id, member in found.items():
            if member.position == UNPLACED:
                # The order of several damaged members is unknown.
                found[member_id] = attrs.evolve(member, position=next(free))
        return found

    async def outcome(self, group_id: str, member: MemberRecord) -> MemberOutcome[Any] | None:
        """Return the end of a member, or None if it has not ended."""
        if member.gone is not None:
            return forgotten(group_id, member, member.gone)
        if self.runs.live(member.number) or self.runs.changing(member.number) is Change.REDRIVE:
            return None
        status = await self._statuses.status(member.number)
        if status is None:
            return forgotten(group_id, member, State.CANCELLED)
        return _ended(member, status) if status.state.terminal else None

    def outcome_of(self, member: MemberRecord, run: "Run") -> MemberOutcome[Any]:
        """Return the end of a member whose run has just ended."""
        return _ended(member, self._statuses.status_of(run.submission, run.status))


def forgotten(group_id: str, member: MemberRecord, state: State) -> MemberOutcome[Any]:
    """Return the end of a member whose run was forgotten."""
    return MemberOutcome(
        member_id=member.member_id,
        position=member.position,
        run_id=member_run_id(group_id, member.member_id),
        state=state,
        result=None,
        reason=None,
        failure=None,
        forgotten=True,
    )


def _ended(member: MemberRecord, status: RunStatus) -> MemberOutcome[Any]:
    return MemberOutcome(
        member_id=member.member_id,
        position=member.position,
        run_id=status.run_id,
        state=status.state,
        result=status.result,
        reason=status.reason,
        failure=status.failure,
    )
