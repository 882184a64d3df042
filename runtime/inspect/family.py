"""The family of a run: what started it, and the children that it has started."""

import attrs

from keyrun.actors import checks
from keyrun.runtime.inspect.pages import cursor_of, look, place_after
from keyrun.runtime.inspect.slices import RUN, PageBudget
from keyrun.runtime.inspect.statuses import StatusReader
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.journal_entry import CHILD, CallKind, WaitBegan, decode
from keyrun.runtime.records.submission import OF_GROUP
from keyrun.runtime.values import State
from keyrun.storage.record import unseal

OF_CHILD, OF_SCHEDULE = "child:", "schedule:"
"""The prefixes of the origins of a child, and of a run that a schedule started."""


@attrs.frozen(kw_only=True)
class RunLink:
    """Name a run that another run is related to."""

    run_id: str
    """The id of the run."""
    key: str | None
    """The ordering key. None if the run was forgotten."""
    workflow: str | None
    """The name of the workflow. None if the run was forgotten."""
    state: State | None
    """The state of the run. None if the run was forgotten."""


@attrs.frozen(kw_only=True)
class Family:
    """Describe what started a run, and the children that it has started."""

    parent: RunLink | None
    """The run that started this one with `ctx.child`."""
    group: str | None
    """The id of the group of the run."""
    schedule: str | None
    """The id of the schedule that started the run."""
    children: tuple[RunLink, ...]
    """The children under other keys, in the order in which they were started. A child without a
    key of its own is a part of its parent. A machine, and a run that continued with another input,
    have those of their present journal."""
    cursor: str | None
    """Pass it to get more children. None if there are no more."""


async def family_of(
    statuses: StatusReader, number: int, *, limit: int, cursor: str | None
) -> Family | None:
    """Return the family of a run, with one page of its children."""
    checks.count("limit", limit, 1)
    ledger = statuses.ledger
    status = await statuses.status(number, result=False, slices=PageBudget())
    if status is None:
        return None
    known: set[str] = set()

    async def read(record: bytes, raw: bytes, slices: PageBudget) -> list[RunLink]:
        try:
            entry = decode(unseal("journal", record, raw))
        except DAMAGE:
            return []
        if not isinstance(entry, WaitBegan) or entry.call is not CallKind.CHILD:
            return []
        child = entry.channel.removeprefix(CHILD)
        if child in known:
            return []
        known.add(child)
        slices.left -= RUN
        return [await _link(statuses, child, slices)]

    prefix = ledger.number(number)
    place = place_after(ledger, "children", cursor)
    if place and not place.startswith(prefix):
        raise ValueError("cursor must be the cursor of a page of children of this run")
    looked = await look(ledger, "journal", read, limit=limit, prefix=prefix, after=place)
    origin, parent = status.origin, None
    if origin.startswith(OF_CHILD):
        parent = await _link(statuses, origin.removeprefix(OF_CHILD), PageBudget())
    return Family(
        parent=parent,
        group=origin.removeprefix(OF_GROUP) if origin.startswith(OF_GROUP) else None,
        schedule=origin.removeprefix(OF_SCHEDULE) if origin.startswith(OF_SCHEDULE) else None,
        children=tuple(looked.found),
        cursor=cursor_of(ledger, "children", looked),
    )


async def _link(statuses: StatusReader, run_id: str, slices: PageBudget) -> RunLink:
    number = await statuses.ledger.find(run_id)
    status = None
    if number is not None:
        status = await statuses.status(number, result=False, slices=slices)
    if status is None:
        return RunLink(run_id=run_id, key=None, workflow=None, state=None)
    return RunLink(
        run_id=run_id, key=status.key, workflow=status.workflow or None, state=status.state
    )
