"""Overtaking: who goes on first after a restart, where a run that lets others go ahead was woken.

While such a run waits, the next one of its key is driven. It may be woken then, and its place says
so at once, but its turn comes when the other has ended or waits. A process that ends in between
leaves two runs that could go on, of which the one behind is in the middle of its work. Or that one
sleeps and holds the key, and the reading of the index may not have come to it.
"""

from typing import TYPE_CHECKING, NamedTuple

from keyrun.runtime.records.journal_entry import Redriven, decode, is_note
from keyrun.runtime.records.submission import Standing
from keyrun.runtime.records.tables import Sleep, at_place
from keyrun.storage import StoreCorrupt

if TYPE_CHECKING:
    from keyrun.runtime.records.tables import Ledger
    from keyrun.runtime.run.run import Run

PAGE = 64


class Ahead(NamedTuple):
    """A run that had gone ahead of one with a place before it."""

    place: int
    number: int
    asleep: bool


async def in_the_middle(woken: "Run", at: int) -> Ahead | None:
    """The run that was being driven when the process ended, or sleeps and lets nobody go ahead, if
    it had gone ahead of the one that was `woken` since."""
    if woken.workflow is None or woken.workflow.while_waiting == "hold":
        return None
    partition = woken.partition
    ledger, start = partition.ledger, woken.queue.place(at + 1)
    places = ledger.pages("queue", prefix=ledger.key_prefix(woken.key), start=start, size=PAGE)
    while rows := await places.next():
        for record, raw in rows:
            place = ledger.split_place(record)[1]
            number, _, sleep, _ = at_place(record, raw, place)
            if sleep is Sleep.HOLDS:
                return Ahead(place, number, True)
            if sleep is not Sleep.NO:
                continue
            try:
                standing = await ledger.standing(number) or Standing()
                if standing.evicted_wait is not None:
                    # It was woken as well.
                    continue
                begun = standing.started_at is not None or await _has_begun(ledger, number)
            except StoreCorrupt:
                # It is set aside when its turn has come.
                return None
            return Ahead(place, number, False) if begun else None
    return None


async def _has_begun(ledger: "Ledger", number: int) -> bool:
    """Whether a run has done something in this generation: the status is not stored with it."""
    begun = False
    for _, fields in await ledger.scan("journal", ledger.number(number)):
        entry = decode(fields)
        if isinstance(entry, Redriven):
            begun = False
        elif not is_note(entry):
            begun = True
    return begun
