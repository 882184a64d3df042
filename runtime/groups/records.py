"""A group: many runs under one id, as it is given, stored and shown.

| table   | key                 | what                                          |
|---------|---------------------|-----------------------------------------------|
| groups  | group id            | how many members there are, and who they are  |
| members | group id, member id | the run of a member                           |
| former  | group id, member id | how a member ended whose run was forgotten    |
"""

import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.errors import InvalidGroup
from keyrun.runtime.limits import Limits
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.texts import check_text
from keyrun.runtime.values import Failure, Priority, State
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.inspect.statuses import Reading
    from keyrun.runtime.records.tables import Ledger

I_co = TypeVar("I_co", covariant=True)
"""The input. Members of different workflows make up one list, so it must give way."""
T_co = TypeVar("T_co", covariant=True)

PAGE = 1000
MEMBER = "keyrun.member"
"""The header that tells a run which member of its group it is."""

UNPLACED = -1
"""The position of a member whose record is damaged."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,90}")
_SIMPLE = re.compile(r"[A-Za-z0-9_]+")


@attrs.frozen
class Member(Generic[I_co, T_co]):
    """A run that is to be part of a group: what `submit` takes, and an id within the group.
    Without a `member_id` it is the place in the list, from 0."""

    workflow: Workflow[I_co, T_co]
    input: I_co = attrs.field(default=None)
    key: str = attrs.field(kw_only=True)
    member_id: str | None = attrs.field(default=None, kw_only=True)
    headers: Mapping[str, str] | None = attrs.field(default=None, kw_only=True)
    tags: Iterable[str] = attrs.field(default=(), kw_only=True)
    priority: Priority = attrs.field(default=Priority.NORMAL, kw_only=True)
    limits: Limits | None = attrs.field(default=None, kw_only=True)
    delay: float = attrs.field(default=0, kw_only=True)


@attrs.frozen(kw_only=True)
class MemberOutcome(Generic[T_co]):
    """How a member ended; `position` is its place in the list. If its run was `forgotten`
    meanwhile, only the state is known."""

    member_id: str
    position: int
    run_id: str
    state: State
    result: T_co | None
    reason: str | None
    failure: Failure | None
    forgotten: bool = False


@attrs.frozen(kw_only=True)
class GroupStatus:
    """How a group stands. `accepted` is less than `size` if the submission was cut off: repeat
    it to have the rest accepted. `counts` are those of the accepted members by their state."""

    group_id: str
    created_at: float
    size: int
    accepted: int
    counts: dict[State, int]

    @property
    def ended(self) -> int:
        """How many members have ended, in whatever way."""
        return sum(count for state, count in self.counts.items() if state.terminal)

    @property
    def complete(self) -> bool:
        """Whether all members have ended."""
        return self.ended == self.size

    @property
    def percent(self) -> float:
        """How much of the group has ended."""
        return 100 * self.ended / self.size if self.size else 100.0


@attrs.frozen
class Roll:
    """The record of a group; it never changes."""

    created: float
    size: int
    digest: bytes
    """Of all members."""


@attrs.frozen(kw_only=True)
class Entry:
    """The record of a member. `gone` is how it ended if its run was forgotten."""

    member_id: str
    position: int
    number: int
    digest: bytes
    gone: State | None = None

    @property
    def table(self) -> str:
        """Where it is."""
        return "members" if self.gone is None else "former"

    def fields(self) -> tuple[Any, ...]:
        """As they are stored."""
        gone = None if self.gone is None else str(self.gone)
        return (self.position, self.number, self.digest, gone)

    @classmethod
    def read(cls, member_id: str, fields: list[Any]) -> "Entry":
        """The inverse of `fields`."""
        position, number, digest, gone = fields
        return cls(
            member_id=member_id,
            position=position,
            number=number,
            digest=digest,
            gone=None if gone is None else State(gone),
        )


def check_group_id(group_id: object) -> None:
    """Raise unless `group_id` can be one: run ids begin with it."""
    if not isinstance(group_id, str) or not _ID.fullmatch(group_id):
        raise InvalidGroup(f"a group id is 1 to 90 of A-Z, a-z, 0-9, '_' and '-', got {group_id!r}")


def check_member_id(member_id: object) -> str:
    """`member_id` if it can be one."""
    if not isinstance(member_id, str) or not 0 < len(member_id.encode(errors="replace")) <= 255:
        raise InvalidGroup(f"a member id is a string of 1 to 255 bytes, got {member_id!r}")
    return check_text(member_id, "a member id", InvalidGroup)


def member_run_id(group_id: str, member_id: str) -> str:
    """The run id of a member: plain where nothing else can lead to the same one, else with a
    hash in place of the member id."""
    plain = f"{group_id}-{member_id}"
    if len(plain) <= 128 and _SIMPLE.fullmatch(member_id):
        return plain
    return f"{group_id}-{sha256(member_id.encode()).hexdigest()[:32]}"


def member_prefix(ledger: "Ledger", group_id: str) -> bytes:
    """What all keys of a group in `members` start with."""
    encoded = group_id.encode()
    return ledger.prefix + bytes([len(encoded)]) + encoded


async def entries(ledger: "Ledger", group_id: str) -> AsyncGenerator[list[Entry], None]:
    """The members of a group page by page, in no order that matters."""
    prefix = member_prefix(ledger, group_id)
    for table in ("members", "former"):
        async for rows in ledger.pages(table, prefix=prefix, size=PAGE):
            page: list[Entry] = []
            for key, raw in rows:
                member_id = key[len(prefix) :].decode(errors="replace")
                entry = _entry(table, key, raw, member_id)
                page.append(entry or await _lost(ledger, table, group_id, member_id))
            yield page


def _entry(table: str, key: bytes, raw: bytes, member_id: str) -> Entry | None:
    """The record of a member; None if it is damaged."""
    try:
        return Entry.read(member_id, unseal(table, key, raw))
    except (*DAMAGE, TypeError, ValueError):
        return None


async def _lost(ledger: "Ledger", table: str, group_id: str, member_id: str) -> Entry:
    """What stands for a member whose record is damaged: its id leads to its run. If that is not
    there any more, nobody knows how it ended."""
    number = None
    if table == "members":
        with suppress(*DAMAGE):
            number = await ledger.find(member_run_id(group_id, member_id))
    return Entry(
        member_id=member_id,
        position=UNPLACED,
        number=number or 0,
        digest=b"",
        gone=State.QUARANTINED if number is None else None,
    )


async def find_member(ledger: "Ledger", number: int) -> tuple[str, str] | None:
    """The group and the member id of a run that lost what it was submitted with: a look at all
    members there are, but damage is rare."""
    at = len(ledger.prefix)
    async for rows in ledger.pages("members", size=PAGE):
        for key, raw in rows:
            with suppress(*DAMAGE):
                if unseal("members", key, raw)[1] == number:
                    end = at + 1 + key[at]
                    return key[at + 1 : end].decode(), key[end:].decode()
    return None


async def read_roll(ledger: "Ledger", group_id: str) -> Roll | None:
    """The record of a group."""
    fields = await ledger.get("groups", ledger.name(group_id))
    return None if fields is None else Roll(*fields)


async def read_status(reading: "Reading", group_id: str) -> GroupStatus | None:
    """How a group stands."""
    ledger = reading.ledger
    roll = await read_roll(ledger, group_id)
    if roll is None:
        return None
    counts: dict[State, int] = {}
    async with aclosing(entries(ledger, group_id)) as pages:
        async for page in pages:
            for entry in page:
                state = entry.gone
                if state is None:
                    state = await reading.state(entry.number)
                    if state is None:
                        # Forgotten just now: it comes again among the former ones.
                        continue
                counts[state] = counts.get(state, 0) + 1
    return GroupStatus(
        group_id=group_id,
        created_at=roll.created,
        size=roll.size,
        accepted=sum(counts.values()),
        counts=dict(sorted(counts.items(), key=lambda item: list(State).index(item[0]))),
    )
