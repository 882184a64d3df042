"""Grouping: what a runtime offers to those who submit many runs as one."""

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from keyrun.runtime.errors import UnknownGroup
from keyrun.runtime.groups.ends import Ends
from keyrun.runtime.groups.group import (
    GroupStatus,
    Member,
    MemberOutcome,
    check_group_id,
    member_run_id,
    read_roll,
    read_status,
)

if TYPE_CHECKING:
    from keyrun.runtime.control import Control
    from keyrun.runtime.engine import Engine

T = TypeVar("T")

_AT_ONCE = 100


class GroupHandle(Generic[T]):
    """A group, as its submitter sees it. `async for` gives members as they end, those that have
    ended first. `newly_submitted` is False if the group was there before."""

    __slots__ = ("_control", "_engine", "group_id", "newly_submitted")

    def __init__(self, engine: "Engine", control: "Control", group_id: str, newly: bool) -> None:
        self._engine = engine
        self._control = control
        self.group_id = group_id
        self.newly_submitted = newly

    async def status(self) -> GroupStatus:
        """How many members are in which state."""
        engine = self._engine
        found = await read_status(engine.reading, self.group_id)
        if found is None:
            raise _unknown(self.group_id)
        return found

    async def results(self) -> dict[str, MemberOutcome[T]]:
        """Wait until all members have ended; how they did, in the order of the group."""
        found: list[MemberOutcome[T]] = [outcome async for outcome in self]
        found.sort(key=lambda outcome: outcome.position)
        return {outcome.member_id: outcome for outcome in found}

    def __aiter__(self) -> AsyncIterator[MemberOutcome[T]]:
        return Ends(self._engine, self.group_id)

    async def cancel(self) -> int:
        """Cancel all members that have not ended; how many these were."""
        cancelled = 0

        async def cancel(member_id: str) -> None:
            nonlocal cancelled
            changed = await self._control.cancel(member_run_id(self.group_id, member_id))
            cancelled += changed

        members = await self._engine.groups.members(self.group_id)
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


class Grouping:
    """The part of a runtime that is about groups."""

    _engine: "Engine"
    _control: "Control"

    async def submit_group(
        self, group_id: str, members: Iterable[Member[Any, T]]
    ) -> GroupHandle[T]:
        """Start many runs as one group, and return when they are durable: up to 1,000 are
        accepted whole or not at all, more in parts of that size.

        The same again is the same group, in whatever order the members are given: what was not
        accepted yet is accepted, and members that failed, were cancelled or are quarantined are
        run again from where they stopped. Other members under the same id are refused.
        """
        check_group_id(group_id)
        newly = await self._engine.groups.submit(group_id, list(members))
        return GroupHandle(self._engine, self._control, group_id, newly)

    async def group(self, group_id: str) -> GroupHandle[Any] | None:
        """A group that was submitted before; None if there is none, or it was forgotten."""
        if await read_roll(self._engine.ledger, group_id) is None:
            return None
        return GroupHandle(self._engine, self._control, group_id, False)


def _unknown(group_id: str) -> UnknownGroup:
    return UnknownGroup(f"no group has the id {group_id!r}, or all its runs were forgotten")
