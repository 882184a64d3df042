"""A stored run: read the records of one run in slices, and again only what is new.

A journal may have any number of entries, and a reader shares the event loop with all runs. So a
slice takes about `SLICE` seconds, and other tasks run between two slices. A journal only grows,
except that a machine and `continue_as` replace it: then the first entry changes, and the follower
starts again from the beginning.
"""

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import attrs
import trio

from keyrun.runtime.errors import MissingExtra
from keyrun.runtime.inspect.progress import JournalTally, StoredRecords
from keyrun.runtime.inspect.slices import SLICE, PageBudget
from keyrun.runtime.inspect.statuses import SeenKeys, StatusReader
from keyrun.runtime.records.journal_entry import NextTurn, decode
from keyrun.runtime.records.pages import Rows
from keyrun.runtime.records.submission import StatusRecord
from keyrun.runtime.records.tables import Ledger
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.graphs.journal_trace import JournalTrace
    from keyrun.runtime.inspect.graph_shapes import StoredGraphs


T = TypeVar("T")


class JournalFollower:
    """Reads what is new in the journal of a run. It calls `take` with the records of each slice,
    and `restart` when the records that it has read are gone."""

    def __init__(
        self,
        ledger: Ledger,
        number: int,
        take: Callable[[Rows], None],
        restart: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._prefix = ledger.number(number)
        self._first = ledger.entry(number, 0)
        self._take = take
        self._restart = restart
        self._slices = PageBudget()
        self.read = 0
        """The number of entries that were read."""
        self._after = b""
        self._before: bytes | None = None
        """The entry with sequence number 0, which replaces earlier entries."""

    async def catch_up(self, finish: Callable[[], Awaitable[T]]) -> T:
        """Read all entries since the last call. Return the result of `finish`, which is called in
        the view of the last slice, so that it reads records of the same commit."""
        store, slices = self._ledger.store, self._slices
        while True:
            slices.begin()
            with store.view():
                before = await store.get("journal", self._first)
                if before != self._before:
                    if self._after:
                        self._after = b""
                        self._restart()
                    self._before = before
                start = self._after + b"\0" if self._after else b""
                size = slices.size
                rows = await store.scan("journal", prefix=self._prefix, start=start, limit=size)
                if rows:
                    self.read += len(rows)
                    self._take(rows)
                    self._after = rows[-1][0]
                if len(rows) < size:
                    return await finish()
            await slices.end()


async def journal_length(ledger: Ledger, number: int) -> int:
    """Return the sequence number of the next journal entry of a run."""
    rows = await ledger.store.scan("journal", prefix=ledger.number(number), limit=1, reverse=True)
    return int.from_bytes(rows[0][0][-4:], "big") + 1 if rows else 0


async def knows_journal(ledger: Ledger, number: int) -> bool:
    """Return whether the status record of a run is up to date with its journal. For an unfinished
    machine this is unknown, because it replaces its entries, and the result is False."""
    length, status = await journal_length(ledger, number), await ledger.status(number)
    if not length or status is None:
        return not length
    if status.journal_next != length:
        return False
    first = await ledger.get("journal", ledger.entry(number, 0))
    is_machine = first is not None and isinstance(decode(first), NextTurn)
    return not is_machine or status.state.terminal


async def last_entry(ledger: Ledger, number: int) -> float | None:
    """Return when the latest journal entry of a run was made. That is the last entry, or the first
    one, which is written again for each turn of a machine."""
    store, prefix, first = ledger.store, ledger.number(number), ledger.entry(number, 0)
    rows = await store.scan("journal", prefix=prefix, limit=1, reverse=True)
    if rows and rows[0][0] != first:
        rows = [*rows, *await store.scan("journal", prefix=first, limit=1)]
    return max((decode(unseal("journal", key, raw)).at for key, raw in rows), default=None)


class StoredRun:
    """The records of a run as of the last `refresh`. A second refresh reads only the journal
    entries that came since the first. Without `graphs`, its nodes are not traced."""

    def __init__(self, statuses: StatusReader, graphs: "StoredGraphs | None", number: int) -> None:
        self._statuses = statuses
        self._graphs = graphs
        self._ledger = statuses.ledger
        self._number = number
        self._known = False
        self.tally = JournalTally()
        self.tracing: JournalTrace | None = None
        """The tracing of a run of a graph, if the shape of the graph is known."""
        self.follower = JournalFollower(self._ledger, number, self._take, self._restart)

    async def refresh(self) -> StoredRecords | None:
        """Read what is new. Return the records besides the journal, or None if there is no such
        run."""
        if not self._known and self._graphs is not None:
            submission = await self._ledger.submission(self._number)
            if submission is None:
                return None
            self._known = True
            try:
                self.tracing = await self._graphs.tracing(submission)
            except MissingExtra:
                # The graph has templates, and their library is not installed here.
                self.tracing = None
        records = await self.follower.catch_up(self._rest)
        if self.tracing is not None:
            started = perf_counter()
            while self.tracing.walk(self.tally.journal):
                if perf_counter() - started > SLICE:
                    await trio.lowlevel.checkpoint()
                    started = perf_counter()
        return records

    async def summarized(self) -> StoredRecords | None:
        """Return the records of a run whose status record is enough, because the run was evicted or
        has ended and has no later journal entries. None if there is no such run, or the journal has
        to be read."""
        ledger, number = self._ledger, self._number
        with ledger.store.view():
            status = await ledger.status(number)
            if status is None or not (status.state.terminal or status.summary):
                return None
            if not await knows_journal(ledger, number):
                return None
            records = await self._rest()
            if records is None:
                return None
            return attrs.evolve(records, last=await last_entry(ledger, number))

    async def _rest(self) -> StoredRecords | None:
        ledger, number = self._ledger, self._number
        submission = await ledger.submission(number)
        if submission is None:
            return None
        record = ledger.number(number)
        return StoredRecords(
            submission=submission,
            status=await ledger.current_status(number) or StatusRecord(),
            begun=[fields for _, fields in await ledger.scan("begun", record)],
            reports=[fields for _, fields in await ledger.scan("reports", record)],
            held=await self._statuses.paused_head(submission.key, SeenKeys()) == number,
        )

    def _take(self, rows: Rows) -> None:
        entries = [
            (int.from_bytes(key[-4:], "big"), decode(unseal("journal", key, raw)))
            for key, raw in rows
        ]
        self.tally.take(entries)
        if self.tracing is not None:
            self.tracing.take(entry for _, entry in entries)

    def _restart(self) -> None:
        self.tally = JournalTally()
        if self.tracing is not None:
            self.tracing.restart()
