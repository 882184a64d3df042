"""Groups: submit many runs under one id, repeat a group that did not succeed, and remove members.

Members are accepted in pages. Each page is one commit, together with the records that make its runs
part of the group. So a small group is stored completely or not at all, and a repeat of a large
group that was cut off adds the missing members. Memory has nothing of a group while no operation on
it is under way.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakValueDictionary

import attrs
import trio

from keyrun.runtime.errors import InputMismatch, RunEnded, UnknownRun
from keyrun.runtime.groups.handle import GroupHandle
from keyrun.runtime.groups.members import GroupMembers, RunStatuses
from keyrun.runtime.groups.records import (
    MEMBER,
    GroupRecord,
    Member,
    MemberRecord,
    check_group_id,
    find_member,
    member_prefix,
    member_run_id,
    members_by_id,
    naming_member,
    read_group,
)
from keyrun.runtime.logger import logger
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.operation import Write
from keyrun.runtime.records.submission import OF_GROUP, SALVAGED, StatusRecord, Submission
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.runs import Change
from keyrun.runtime.values import State

if TYPE_CHECKING:
    from keyrun.runtime.queue.admission import Admission
    from keyrun.runtime.queue.backpressure import Backlog
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.runs import RunTable
    from keyrun.storage.group import Group

T = TypeVar("T")

_REPEATED = frozenset({State.FAILED, State.CANCELLED, State.QUARANTINED})
"""The states in which a member runs again when its group is submitted again."""
_NAMED = 5
"""Member ids that an error message names."""

_AT_ONCE = 100
"""Members that are described in one pass of the loop."""


class StageRedrive(Protocol):
    """Stages the redrive of a run that is in one of `states`."""

    async def __call__(self, run_id: str, *, states: Collection[State]) -> object:
        """Raise `RunEnded` or `UnknownRun` if there is nothing to redrive."""


class Groups:
    """The groups of a partition."""

    def __init__(
        self,
        partition: "PartitionState",
        *,
        runs: "RunTable",
        admission: "Admission",
        backlog: "Backlog",
        statuses: RunStatuses,
        cancel: Callable[[str], Awaitable[bool]],
        stage_redrive: StageRedrive,
        page: int,
    ) -> None:
        self._partition = partition
        self._runs = runs
        self._admission = admission
        self._backlog = backlog
        self._cancel = cancel
        self._stage_redrive = stage_redrive
        self._page = page
        """Members that one commit accepts."""
        self._members = GroupMembers(partition, runs, statuses)
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        """Held while the members of a group are being accepted."""
        self._removing: set[bytes] = set()
        """Members whose run is forgotten, in a commit that is not durable yet."""

    async def submit(self, group_id: str, members: Sequence[Member[Any, T]]) -> GroupHandle[T]:
        """Accept the members of a group that are missing, and redrive the ones that did not
        succeed."""
        check_group_id(group_id)
        partition = self._partition
        partition.check_caller()
        described = await self._describe(group_id, members)
        digest = _digest(described)
        await partition.counted.wait()
        lock = self._locks.setdefault(group_id, trio.Lock())
        async with lock:
            stored = await read_group(partition.ledger, group_id)
            present = {} if stored is None else await self._members.of(group_id)
            if stored is not None and stored.digest != digest:
                raise _mismatch(group_id, described, present, stored)
            missing = [
                (submission, _member(position, member_id, submission))
                for position, (member_id, submission) in enumerate(described.items())
                if (known := present.get(member_id)) is None
                or known.gone in _REPEATED
                or not known.digest  # a damaged record, which this repairs
            ]
            new = None
            if stored is None:
                new = GroupRecord(partition.wall(), len(described), digest)
            handle = self._handle(group_id, newly=stored is None)
            for at in range(0, len(missing), self._page):
                page = missing[at : at + self._page]
                # Members of an older group may have to be redriven after the last page.
                is_last = stored is None and at + self._page >= len(missing)
                await self._accept(group_id, page, new, handle if is_last else None)
                new = None
            await self._redrive(group_id, present, handle)
        return handle

    async def find(self, group_id: str) -> GroupHandle[Any] | None:
        """Return the handle of a group, or None if there is no such group."""
        if await read_group(self._partition.ledger, group_id) is None:
            return None
        return self._handle(group_id, newly=False)

    def _handle(self, group_id: str, *, newly: bool) -> GroupHandle[Any]:
        return GroupHandle(self._members, self._cancel, group_id, newly)

    async def _describe(
        self, group_id: str, members: Sequence[Member[Any, Any]]
    ) -> dict[str, Submission]:
        """Return the submissions of the members by member id, all checked before one is
        accepted."""
        described: dict[str, Submission] = {}
        for position, (member_id, member) in enumerate(members_by_id(group_id, members).items()):
            with naming_member(group_id, member_id):
                submission = self._admission.describe(
                    member.workflow,
                    member.input,
                    member.key,
                    member_run_id(group_id, member_id),
                    member.headers,
                    member.tags,
                    member.priority,
                    member.limits,
                    member.delay,
                )
            if self._partition.tracer is not None:
                submission.headers = self._partition.tracer.linked(dict(member.headers or {}))
            submission.origin = OF_GROUP + group_id
            submission.headers = {**submission.headers, MEMBER: member_id}
            described[member_id] = submission
            if position % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return described

    async def _accept(
        self,
        group_id: str,
        page: list[tuple[Submission, MemberRecord]],
        new: GroupRecord | None,
        last: GroupHandle[Any] | None,
    ) -> None:
        """Accept one page of members in one commit, with the record of the group if it is new. With
        the last commit, `last` is the answer."""
        partition, admission, backlog = self._partition, self._admission, self._backlog
        for first in {submission.key: submission for submission, _ in reversed(page)}.values():
            while backlog.full(first.key):
                await backlog.wait_for_room(first)
        known: dict[str, Submission] = {}
        for submission, member in page:
            admitted = await admission.known(submission)
            if admitted is None:
                continue
            if admitted.submission.origin != submission.origin:
                raise InputMismatch(
                    f"the run {submission.run_id!r} is not part of the group {group_id!r}, which "
                    "requires this run id; use another group id",
                    run_id=submission.run_id,
                    key=submission.key,
                )
            known[member.member_id] = admitted.submission
        partition.check_caller()
        prefix = member_prefix(partition.ledger, group_id)
        with partition.together() as group:
            if new is not None:
                record = partition.ledger.name(group_id)
                group.put("groups", record, sealed("groups", record, *attrs.astuple(new)))
            for submission, member in page:
                if member.member_id not in known:
                    admission.admit(submission)
                number = known.get(member.member_id, submission).number
                key = prefix + member.member_id.encode()
                fields = attrs.evolve(member, number=number).fields()
                group.put("members", key, sealed("members", key, *fields))
                group.delete("former", key)
            if last is not None:
                partition.applied(Write.SUBMIT_GROUP, last)
        await group.wait()

    async def _redrive(
        self, group_id: str, present: dict[str, MemberRecord], handle: GroupHandle[Any]
    ) -> None:
        """Redrive the members that did not succeed, in the order of the group."""
        staged = False
        for member in sorted(present.values(), key=lambda member: member.position):
            if member.gone is not None or self._runs.changing(member.number) is Change.REDRIVE:
                continue
            if await self._needs_redrive(member.number):
                run_id = member_run_id(group_id, member.member_id)
                try:
                    await self._stage_redrive(run_id, states=_REPEATED)
                    staged = True
                except (RunEnded, UnknownRun):
                    # Another operation was faster.
                    continue
                except DAMAGE as error:
                    logger.error(
                        "the group %s continues without a member: %s",
                        group_id,
                        error,
                        extra={"event": "group_damaged"},
                    )
        if staged:
            self._partition.applied(Write.SUBMIT_GROUP, handle)
            await self._partition.store.durable()

    async def _needs_redrive(self, number: int) -> bool:
        """Return whether a run does not continue by itself and has not succeeded."""
        run = self._runs.live(number)
        try:
            status = (
                await self._partition.ledger.current_status(number) if run is None else run.status
            )
        except DAMAGE:
            return True
        return status is not None and status.state in _REPEATED

    async def prepare_removal(
        self, number: int, submission: Submission, status: StatusRecord
    ) -> "Callable[[Group], None] | None":
        """Return a function that stages the removal of a member, or None if the run is not a
        member. Call the function before anything else is awaited.

        The end of the member is kept until the runs of all members are gone, so that the member
        does not run again with its group."""
        partition, group_id = self._partition, submission.origin.removeprefix(OF_GROUP)
        member_id = submission.headers.get(MEMBER, "")
        if submission.origin == SALVAGED:
            found = await find_member(partition.ledger, number)
            if found is None:
                return None
            group_id, member_id = found
        prefix = member_prefix(partition.ledger, group_id)
        key = prefix + member_id.encode()
        try:
            fields = await partition.ledger.get("members", key)
        except DAMAGE as error:
            logger.error(
                "the end of a member of the group %s is lost: %s",
                group_id,
                error,
                extra={"event": "group_damaged"},
            )
            return lambda group: group.delete("members", key)
        if fields is None:
            return None
        member = MemberRecord.read(key[len(prefix) :].decode(), fields)
        if member.number != number:
            return None
        gone = status.state if status.state.terminal else State.CANCELLED
        last = attrs.evolve(member, gone=gone).fields()
        removing = {key, *self._removing}
        rows = await partition.store.scan("members", prefix=prefix, limit=len(removing) + 1)
        if group_id in self._locks or not all(row in removing for row, _ in rows):
            former = None
        else:
            former = [row for row, _ in await partition.store.scan("former", prefix=prefix)]
            former += [row for row in removing if row.startswith(prefix)]

        def remove(group: "Group") -> None:
            self._removing.add(key)
            group.when_durable(self._removing.discard, key)
            group.delete("members", key)
            if former is None:
                group.put("former", key, sealed("former", key, *last))
                return
            group.delete("groups", partition.ledger.name(group_id))
            for row in former:
                group.delete("former", row)

        return remove


def _member(position: int, member_id: str, submission: Submission) -> MemberRecord:
    digest = _identity(submission)
    return MemberRecord(member_id=member_id, position=position, number=0, digest=digest)


def _identity(submission: Submission) -> bytes:
    """Return a hash of everything that must be the same when a member is submitted again."""
    assert submission.digest is not None
    parts = (submission.key.encode(), submission.workflow.encode(), submission.digest)
    return sha256(b"".join(sha256(part).digest() for part in parts)).digest()


def _digest(described: dict[str, Submission]) -> bytes:
    """Return a hash of all members that does not depend on their order."""
    total = sha256()
    for member_id in sorted(described):
        total.update(sha256(member_id.encode()).digest() + _identity(described[member_id]))
    return total.digest()


def _mismatch(
    group_id: str,
    described: dict[str, Submission],
    present: dict[str, MemberRecord],
    stored: GroupRecord,
) -> InputMismatch:
    """Return the error for other members under the id of a group."""
    changed = [
        member_id
        for member_id, submission in described.items()
        if member_id in present and present[member_id].digest not in (b"", _identity(submission))
    ]
    parts = [_named("another key, workflow or input", changed)]
    parts.append(_named("not given", [each for each in present if each not in described]))
    if len(present) == stored.size:
        parts.append(_named("new", [each for each in described if each not in present]))
    what = "; ".join(filter(None, parts)) or "members that were not accepted yet"
    return InputMismatch(
        f"the group {group_id!r} was submitted with other members ({what}); use another group id, "
        "or submit the same members"
    )


def _named(what: str, members: list[str]) -> str:
    if not members:
        return ""
    shown = ", ".join(map(repr, members[:_NAMED]))
    more = len(members) - _NAMED
    return f"{what}: {shown}" + (f" and {more} more" if more > 0 else "")
