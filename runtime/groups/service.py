"""Groups: many runs that are submitted, awaited and cancelled as one.

Members are accepted in pages, each in one commit with the records that make it part of the group:
a small group is there whole or not at all, and of a large one that was cut off a repeat finds what
is missing. Nothing of a group is in memory unless somebody works on it.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import attrs
import trio

from keyrun._errors import KeyrunError
from keyrun.runtime.errors import InputMismatch, InvalidGroup, RunEnded, UnknownRun
from keyrun.runtime.events.logs import logger
from keyrun.runtime.groups.handle import GroupHandle
from keyrun.runtime.groups.records import (
    MEMBER,
    PAGE,
    UNPLACED,
    Entry,
    Member,
    Roll,
    check_group_id,
    check_member_id,
    entries,
    find_member,
    member_prefix,
    member_run_id,
    read_roll,
)
from keyrun.runtime.operations import redrive
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.submission import OF_GROUP, SALVAGED, Standing, Submission
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.runs import Change
from keyrun.runtime.values import State

if TYPE_CHECKING:
    from keyrun.runtime.partition import Partition
    from keyrun.storage.group import Group

T = TypeVar("T")

_AGAIN = frozenset({State.FAILED, State.CANCELLED, State.QUARANTINED})
_NAMED = 5


class Groups:
    """The groups of a runtime."""

    def __init__(self, partition: "Partition") -> None:
        self._partition = partition
        self._doors: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        """Held while the members of a group are being accepted."""
        self._leaving: set[bytes] = set()
        """Members that are former ones when what is staged is durable."""

    async def submit(self, group_id: str, members: Sequence[Member[Any, T]]) -> GroupHandle[T]:
        """Accept a group, or what is missing of it, and run again what did not succeed."""
        check_group_id(group_id)
        partition = self._partition
        partition.check_open()
        described = await self._describe(group_id, members)
        digest = _digest(described)
        await partition.counted.wait()
        door = self._doors.setdefault(group_id, trio.Lock())
        async with door:
            roll = await read_roll(partition.ledger, group_id)
            there = {} if roll is None else await self.members(group_id)
            if roll is not None and roll.digest != digest:
                raise _other(group_id, described, there, roll)
            missing = [
                (submission, _entry(position, member_id, submission))
                for position, (member_id, submission) in enumerate(described.items())
                if (known := there.get(member_id)) is None
                or known.gone in _AGAIN
                or not known.digest  # damaged, and mended by this
            ]
            new = Roll(partition.wall(), len(described), digest) if roll is None else None
            for at in range(0, len(missing), PAGE):
                await self._accept(group_id, missing[at : at + PAGE], new)
                new = None
            await self._redrive(group_id, there)
        return GroupHandle(partition, group_id, roll is None)

    async def find(self, group_id: str) -> GroupHandle[Any] | None:
        """A group that is there."""
        if await read_roll(self._partition.ledger, group_id) is None:
            return None
        return GroupHandle(self._partition, group_id, False)

    async def _describe(
        self, group_id: str, members: Sequence[Member[Any, Any]]
    ) -> dict[str, Submission]:
        """What the members are, by their ids, checked before anything is accepted."""
        described: dict[str, Submission] = {}
        for position, member in enumerate(members):
            if not isinstance(member, Member):
                raise InvalidGroup(f"the members of a group are Member(...), got {member!r}")
            given = str(position) if member.member_id is None else member.member_id
            member_id = check_member_id(given)
            if member_id in described:
                raise InvalidGroup(f"two members of the group {group_id!r} are {member_id!r}")
            try:
                submission = self._partition.admission.describe(
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
            except (KeyrunError, ValueError, TypeError) as error:
                error.args = (f"the member {member_id!r} of the group {group_id!r}: {error}",)
                raise
            submission.origin = OF_GROUP + group_id
            submission.headers = {**submission.headers, MEMBER: member_id}
            described[member_id] = submission
            if position % PAGE == 0:
                await trio.lowlevel.checkpoint()
        if not described:
            raise InvalidGroup(f"the group {group_id!r} has no members; it needs at least one")
        return described

    async def _accept(
        self, group_id: str, page: list[tuple[Submission, Entry]], roll: Roll | None
    ) -> None:
        """Take in some members in one commit, and with the first of them the group."""
        partition, admission = self._partition, self._partition.admission
        for first in {submission.key: submission for submission, _ in reversed(page)}.values():
            while partition.backlog.full(first.key):
                await partition.backlog.wait_for_room(first)
        known: dict[str, Submission] = {}
        for submission, entry in page:
            admitted = await admission.known(submission)
            if admitted is None:
                continue
            if admitted.submission.origin != submission.origin:
                raise InputMismatch(
                    f"the run {submission.run_id!r} is not of the group {group_id!r}, which would "
                    "need its id; use another group id",
                    run_id=submission.run_id,
                    key=submission.key,
                )
            known[entry.member_id] = admitted.submission
        partition.check_open()
        group, prefix = partition.store.open_group(), member_prefix(partition.ledger, group_id)
        if roll is not None:
            record = partition.ledger.name(group_id)
            group.put("groups", record, sealed("groups", record, *attrs.astuple(roll)))
        for submission, entry in page:
            if entry.member_id not in known:
                admission.admit(submission)
            number = known.get(entry.member_id, submission).number
            key = prefix + entry.member_id.encode()
            fields = attrs.evolve(entry, number=number).fields()
            group.put("members", key, sealed("members", key, *fields))
            group.delete("former", key)
        await group.wait()

    async def _redrive(self, group_id: str, there: dict[str, Entry]) -> None:
        """Give those another chance that did not succeed, in the order of the group."""
        partition, staged = self._partition, False
        for entry in sorted(there.values(), key=lambda entry: entry.position):
            if entry.gone is not None or partition.runs.changing(entry.number) is Change.REDRIVE:
                continue
            if await self._stopped(entry.number):
                run_id = member_run_id(group_id, entry.member_id)
                try:
                    await redrive.stage_redrive(partition, run_id, states=_AGAIN)
                    staged = True
                except (RunEnded, UnknownRun):
                    # Somebody else was faster.
                    continue
                except DAMAGE as error:
                    logger.error("the group %s goes on without a member: %s", group_id, error)
        if staged:
            await partition.store.durable()

    async def _stopped(self, number: int) -> bool:
        """Whether a run goes on only if somebody sees to it."""
        run = self._partition.runs.live(number)
        try:
            standing = (
                await self._partition.ledger.standing(number) if run is None else run.standing
            )
        except DAMAGE:
            return True
        return standing is not None and standing.state in _AGAIN

    async def members(self, group_id: str) -> dict[str, Entry]:
        """The members that have been accepted, by their ids."""
        found: dict[str, Entry] = {}
        async for page in entries(self._partition.ledger, group_id):
            found.update((entry.member_id, entry) for entry in page)
        taken = {entry.position for entry in found.values()}
        free = (position for position in count() if position not in taken)
        for member_id, entry in found.items():
            if entry.position == UNPLACED:
                # Of several that are damaged nobody knows which comes first.
                found[member_id] = attrs.evolve(entry, position=next(free))
        return found

    async def leaving(
        self, number: int, submission: Submission, standing: Standing
    ) -> "Callable[[Group], None] | None":
        """All that is stored of a run is about to be removed: what stages that, or nothing if it is
        no member. How it ended is kept, so that it does not run again with its group, until the
        runs of all members are gone. It is to be called before anything else is awaited."""
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
            logger.error("how a member of the group %s ended is lost: %s", group_id, error)
            return lambda group: group.delete("members", key)
        if fields is None:
            return None
        entry = Entry.read(key[len(prefix) :].decode(), fields)
        if entry.number != number:
            return None
        gone = standing.state if standing.state.terminal else State.CANCELLED
        last = list(attrs.evolve(entry, gone=gone).fields())
        leaving = {key, *self._leaving}
        rows = await partition.store.scan("members", prefix=prefix, limit=len(leaving) + 1)
        if group_id in self._doors or not all(row in leaving for row, _ in rows):
            former = None
        else:
            former = [row for row, _ in await partition.store.scan("former", prefix=prefix)]
            former += [row for row in leaving if row.startswith(prefix)]

        def leave(group: "Group") -> None:
            self._leaving.add(key)
            group.when_durable(self._leaving.discard, key)
            group.delete("members", key)
            if former is None:
                group.put("former", key, sealed("former", key, *last))
                return
            group.delete("groups", partition.ledger.name(group_id))
            for row in former:
                group.delete("former", row)

        return leave


def _entry(position: int, member_id: str, submission: Submission) -> Entry:
    return Entry(member_id=member_id, position=position, number=0, digest=_identity(submission))


def _identity(submission: Submission) -> bytes:
    """What must be the same when a member is submitted again."""
    assert submission.digest is not None
    parts = (submission.key.encode(), submission.workflow.encode(), submission.digest)
    return sha256(b"".join(sha256(part).digest() for part in parts)).digest()


def _digest(described: dict[str, Submission]) -> bytes:
    """Of all members, in whatever order they are given."""
    total = sha256()
    for member_id in sorted(described):
        total.update(sha256(member_id.encode()).digest() + _identity(described[member_id]))
    return total.digest()


def _other(
    group_id: str, described: dict[str, Submission], there: dict[str, Entry], roll: Roll
) -> InputMismatch:
    """What somebody gets who submits other members under the id of a group."""
    changed = [
        member_id
        for member_id, submission in described.items()
        if member_id in there and there[member_id].digest not in (b"", _identity(submission))
    ]
    parts = [_named("another key, workflow or input", changed)]
    parts.append(_named("not given", [each for each in there if each not in described]))
    if len(there) == roll.size:
        parts.append(_named("new", [each for each in described if each not in there]))
    what = "; ".join(filter(None, parts)) or "among those that have not been accepted yet"
    return InputMismatch(
        f"the group {group_id!r} was submitted with other members ({what}); use another group id, "
        "or repeat exactly what was submitted"
    )


def _named(what: str, members: list[str]) -> str:
    if not members:
        return ""
    shown = ", ".join(map(repr, members[:_NAMED]))
    more = len(members) - _NAMED
    return f"{what}: {shown}" + (f" and {more} more" if more > 0 else "")
