"""Resume order: decide which run of a key resumes first after a restart.

While a run that yields its key waits, the next run of the key is driven. If the waiting run is
woken, it resumes when the other run has ended or waits. If the process ends in between, the store
has two runs that could resume, and the one with the later place was being driven, or is evicted and
holds the key. That one resumes first.
"""

from typing import TYPE_CHECKING, NamedTuple

from keyrun.runtime.records.journal_entry import Redriven, decode, is_note
from keyrun.runtime.records.submission import StatusRecord
from keyrun.runtime.records.tables import Evicted, at_place
from keyrun.storage import StoreCorrupt

if TYPE_CHECKING:
    from keyrun.runtime.records.tables import Ledger
    from keyrun.runtime.run.run import Run

PAGE = 64


class RunAhead(NamedTuple):
    """A run that was driven although a run with an earlier place had not ended."""

    place: int
    number: int
    evicted: bool


async def run_ahead(woken: "Run", at: int) -> RunAhead | None:
    """Return the run behind `woken` that was being driven when the process ended, or is evicted and
    holds the key. None if there is no such run."""
    if woken.workflow is None or woken.workflow.while_waiting == "hold":
        return None
    partition = woken.partition
    ledger, start = partition.ledger, woken.queue.place(at + 1)
    places = ledger.pages("queue", prefix=ledger.key_prefix(woken.key), start=start, size=PAGE)
    while rows := await places.next():
        for record, raw in rows:
            place = ledger.split_place(record)[1]
            number, _, evicted, _ = at_place(record, raw, place)
            if evicted is Evicted.HOLDS:
                return RunAhead(place, number, True)
            if evicted is not Evicted.NO:
                continue
            try:
                status = await ledger.status(number) or StatusRecord()
                if status.evicted_wait is not None:
                    # This run was woken as well.
                    continue
                begun = status.started_at is not None or await _has_begun(ledger, number)
            except StoreCorrupt:
                # The run is set aside when it is loaded.
                return None
            return RunAhead(place, number, False) if begun else None
    return None


async def _has_begun(ledger: "Ledger", number: int) -> bool:
    """Return whether the journal of a run has a call of this generation. The status is not stored
    when a run starts."""
    begun = False
    for _, fields in await ledger.scan("journal", ledger.number(number)):
        entry = decode(fields)
        if isinstance(entry, Redriven):
            begun = False
        elif not is_note(entry):
            begun = True
    return begun
