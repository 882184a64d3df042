"""The public values of groups, and their records in the store.

| table   | key                 | contents                                        |
|---------|---------------------|-------------------------------------------------|
| groups  | group id            | the number of members, and a hash of all        |
| members | group id, member id | the run of a member                             |
| former  | group id, member id | the end of a member whose run was forgotten     |
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

import attrs
import trio

from keyrun._errors import KeyrunError
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.errors import InvalidGroup
from keyrun.runtime.limits import Limits
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.texts import check_text
from keyrun.runtime.values import Failure, Priority, State
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.queue.run_options import MemberOptions
    from keyrun.runtime.records.tables import Ledger

I_co = TypeVar("I_co", covariant=True)
"""The input. It is covariant, because one list has members of different workflows."""
T_co = TypeVar("T_co", covariant=True)

PAGE = 1000
"""Member records that one scan reads."""
AT_ONCE = 32
"""Members whose state is read before other tasks run."""
MEMBER = "keyrun.member"
"""The header of a run that has the member id."""

UNPLACED = -1
"""The position of a member whose record is damaged."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,90}")
_SIMPLE = re.compile(r"[A-Za-z0-9_]+")


@attrs.frozen(init=False)
class Member(Generic[I_co, T_co]):
    """Describe a run of a group. The fields are the arguments of `rt.submit`, and an id within the
    group."""

    workflow: Workflow[I_co, T_co]
    """The workflow to run."""
    input: I_co | None
    """The input of the run."""
    key: str
    """The ordering key."""
    member_id: str | None
    """The id within the group. Default: the position in the list, from 0."""
    headers: Mapping[str, str] | None
    """The headers of the run."""
    tags: Iterable[str]
    """The tags of the run."""
    priority: Priority
    """The priority of the run."""
    limits: Limits | None
    """The limits of the run."""
    delay: float
    """Seconds until the run enters the queue of its key."""

    @overload
    def __init__(
        self: "Member[None, T_co]",
        workflow: Workflow[None, T_co],
        input: None = None,
        **options: "Unpack[MemberOptions]",
    ) -> None: ...
    @overload
    def __init__(
        self,
        workflow: Workflow[I_co, T_co],
        input: I_co,
        **options: "Unpack[MemberOptions]",
    ) -> None: ...
    def __init__(
        self,
        workflow: Workflow[Any, T_co],
        input: Any = None,  # noqa: A002
        *,
        key: str,
        member_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Iterable[str] = (),
        priority: Priority = Priority.NORMAL,
        limits: Limits | None = None,
        delay: float = 0,
    ) -> None:
        self.__attrs_init__(workflow, input, key, member_id, headers, tags, priority, limits, delay)


@attrs.frozen(kw_only=True)
class MemberOutcome(Generic[T_co]):
    """Describe the end of a member."""

    member_id: str
    """The id within the group."""
    position: int
    """The position in the list, from 0."""
    run_id: str
    """The id of the run."""
    state: State
    """`succeeded`, `failed` or `cancelled`."""
    result: T_co | None
    """The result of a run that has succeeded, otherwise None."""
    reason: str | None
    """The reason of a cancel by the workflow."""
    failure: Failure | None
    """The failure of a run that failed."""
    forgotten: bool = False
    """Whether the run was forgotten. Then only its state is known."""


@attrs.frozen(kw_only=True)
class GroupStatus:
    """Describe the status of a group."""

    group_id: str
    """The id of the group."""
    created_at: float
    """When the group was submitted, in seconds since the epoch."""
    size: int
    """The number of members."""
    accepted: int
    """The number of members that are durable. It is less than `size` if the submit was interrupted.
    Repeat the submit to add the rest."""
    counts: dict[State, int]
    """The number of accepted members by state."""

    @property
    def ended(self) -> int:
        """Return the number of members that have ended, in any terminal state."""
        return sum(count for state, count in self.counts.items() if state.terminal)

    @property
    def complete(self) -> bool:
        """Return whether all members have ended."""
        return self.ended == self.size

    @property
    def percent(self) -> float:
        """Return the share of the members that have ended, in percent."""
        return 100 * self.ended / self.size if self.size else 100.0


@attrs.frozen
class GroupRecord:
    """The record of a group. It never changes."""

    created: float
    size: int
    digest: bytes
    """The hash of all members."""


@attrs.frozen(kw_only=True)
class MemberRecord:
    """The record of a member. If the run was forgotten, `gone` is the state in which it ended."""

    member_id: str
    position: int
    number: int
    digest: bytes
    gone: State | None = None

    def fields(self) -> tuple[Any, ...]:
        """Return the fields as they are stored."""
        gone = None if self.gone is None else str(self.gone)
        return (self.position, self.number, self.digest, gone)

    @classmethod
    def read(cls, member_id: str, fields: list[Any]) -> "MemberRecord":
        """Return the record that `fields` wrote."""
        position, number, digest, gone = fields
        return cls(
            member_id=member_id,
            position=position,
            number=number,
            digest=digest,
            gone=None if gone is None else State(gone),
        )


def check_group_id(group_id: object) -> None:
    """Raise `InvalidGroup` unless `group_id` can be one. Run ids begin with it."""
    if not isinstance(group_id, str) or not _ID.fullmatch(group_id):
        raise InvalidGroup(f"a group id is 1 to 90 of A-Z, a-z, 0-9, '_' and '-', got {group_id!r}")


def check_member_id(member_id: object) -> str:
    """Return `member_id`, or raise `InvalidGroup` if it cannot be one."""
    if not isinstance(member_id, str) or not 0 < len(member_id.encode(errors="replace")) <= 255:
        raise InvalidGroup(f"a member id is a string of 1 to 255 bytes, got {member_id!r}")
    return check_text(member_id, "a member id", InvalidGroup)


def members_by_id(
    group_id: str, members: Iterable[Member[Any, T_co]]
) -> dict[str, Member[Any, T_co]]:
    """Return the members of a new group by their ids. Raise `InvalidGroup` if two are the same, or
    if there are none."""
    found: dict[str, Member[Any, T_co]] = {}
    for position, member in enumerate(members):
        if not isinstance(member, Member):
            raise InvalidGroup(f"the members of a group must be Member(...), got {member!r}")
        given = str(position) if member.member_id is None else member.member_id
        member_id = check_member_id(given)
        if member_id in found:
            raise InvalidGroup(f"two members of the group {group_id!r} are {member_id!r}")
        found[member_id] = member
    if not found:
        raise InvalidGroup(f"the group {group_id!r} has no members; give at least one")
    return found


@contextmanager
def naming_member(group_id: str, member_id: str) -> Iterator[None]:
    """Let an error name the member that it is about."""
    try:
        yield
    except (KeyrunError, ValueError, TypeError) as error:
        error.args = (f"the member {member_id!r} of the group {group_id!r}: {error}",)
        raise


def member_run_id(group_id: str, member_id: str) -> str:
    """Return the run id of a member. It contains the member id where no other member can have the
    same run id, and otherwise a hash of the member id."""
    plain = f"{group_id}-{member_id}"
    if len(plain) <= 128 and _SIMPLE.fullmatch(member_id):
        return plain
    return f"{group_id}-{sha256(member_id.encode()).hexdigest()[:32]}"


def member_prefix(ledger: "Ledger", group_id: str) -> bytes:
    """Return the prefix of all record keys of a group in `members` and `former`."""
    encoded = group_id.encode()
    return ledger.prefix + bytes([len(encoded)]) + encoded


async def member_pages(ledger: "Ledger", group_id: str) -> AsyncGenerator[list[MemberRecord], None]:
    """Yield the members of a group page by page, in no particular order."""
    prefix = member_prefix(ledger, group_id)
    for table in ("members", "former"):
        async for rows in ledger.pages(table, prefix=prefix, size=PAGE):
            page: list[MemberRecord] = []
            for key, raw in rows:
                member_id = key[len(prefix) :].decode(errors="replace")
                record = _member(table, key, raw, member_id)
                page.append(record or await _damaged_member(ledger, table, group_id, member_id))
            yield page


def _member(table: str, key: bytes, raw: bytes, member_id: str) -> MemberRecord | None:
    """Return the record of a member, or None if it is damaged."""
    try:
        return MemberRecord.read(member_id, unseal(table, key, raw))
    except (*DAMAGE, TypeError, ValueError):
        return None


async def _damaged_member(
    ledger: "Ledger", table: str, group_id: str, member_id: str
) -> MemberRecord:
    """Return a substitute for a damaged record. The run is found by its id. If the run was
    forgotten, its end is unknown."""
    number = None
    if table == "members":
        with suppress(*DAMAGE):
            number = await ledger.find(member_run_id(group_id, member_id))
    return MemberRecord(
        member_id=member_id,
        position=UNPLACED,
        number=number or 0,
        digest=b"",
        gone=State.QUARANTINED if number is None else None,
    )


async def find_member(ledger: "Ledger", number: int) -> tuple[str, str] | None:
    """Return the group id and the member id of a run whose submission is lost. This reads all
    members of all groups, but damage is rare."""
    at = len(ledger.prefix)
    async for rows in ledger.pages("members", size=PAGE):
        for key, raw in rows:
            with suppress(*DAMAGE):
                if unseal("members", key, raw)[1] == number:
                    end = at + 1 + key[at]
                    return key[at + 1 : end].decode(), key[end:].decode()
    return None


async def read_group(ledger: "Ledger", group_id: str) -> GroupRecord | None:
    """Return the record of a group, or None if there is no such group."""
    if not _ID.fullmatch(group_id):
        return None  # it may be too long for a record key
    fields = await ledger.get("groups", ledger.name(group_id))
    return None if fields is None else GroupRecord(*fields)


async def read_status(
    ledger: "Ledger", group_id: str, state_of: Callable[[int], Awaitable[State | None]]
) -> GroupStatus | None:
    """Return the progress of a group, or None if there is no such group. `state_of` returns the
    state of a run by its number, or None if the run was forgotten."""
    group = await read_group(ledger, group_id)
    if group is None:
        return None
    counts: dict[State, int] = {}
    async with aclosing(member_pages(ledger, group_id)) as pages:
        async for page in pages:
            for at, member in enumerate(page):
                if at % AT_ONCE == AT_ONCE - 1:
                    await trio.lowlevel.checkpoint()
                state = member.gone
                if state is None:
                    state = await state_of(member.number)
                    if state is None:
                        # The run was just forgotten, so its record comes again in `former`.
                        continue
                counts[state] = counts.get(state, 0) + 1
    return GroupStatus(
        group_id=group_id,
        created_at=group.created,
        size=group.size,
        accepted=sum(counts.values()),
        counts=dict(sorted(counts.items(), key=lambda item: list(State).index(item[0]))),
    )
