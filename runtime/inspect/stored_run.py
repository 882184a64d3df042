"""A stored run: what the records of one run say, read in slices, and only what is new."""

from time import perf_counter
from typing import TYPE_CHECKING

import attrs
import trio

from keyrun.runtime.errors import MissingExtra
from keyrun.runtime.inspect.journal_follower import SLICE, JournalFollower
from keyrun.runtime.inspect.progress import JournalTally, StoredRecords
from keyrun.runtime.inspect.statuses import ListedRun, StatusReader
from keyrun.runtime.records.journal_entry import NextTurn, decode
from keyrun.runtime.records.pages import Rows
from keyrun.runtime.records.submission import Standing
from keyrun.runtime.records.tables import Ledger
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.graphs.journal_trace import Tracing
    from keyrun.runtime.inspect.execution_graphs import StoredGraphs


async def knows_journal(ledger: Ledger, number: int) -> bool:
    """Whether the status record of a run knows all that is in its journal. A machine replaces its
    entries, so nobody can tell."""
    rows = await ledger.store.scan("journal", prefix=ledger.number(number), limit=1, reverse=True)
    standing = await ledger.standing(number)
    if not rows or standing is None:
        return not rows
    if standing.journal_next != int.from_bytes(rows[0][0][-4:], "big") + 1:
        return False
    first = await ledger.get("journal", ledger.entry(number, 0))
    is_machine = first is not None and isinstance(decode(first), NextTurn)
    return not is_machine or standing.state.terminal


async def last_entry(ledger: Ledger, number: int) -> float | None:
    """When the latest journal entry of a run was made: the last one, or the first one where that
    is written anew for each turn of a machine."""
    store, prefix, first = ledger.store, ledger.number(number), ledger.entry(number, 0)
    rows = await store.scan("journal", prefix=prefix, limit=1, reverse=True)
    if rows and rows[0][0] != first:
        rows = [*rows, *await store.scan("journal", prefix=first, limit=1)]
    return max((decode(unseal("journal", key, raw)).at for key, raw in rows), default=None)


class StoredRun:
    """The records of a run as of the last `refresh`. A second refresh reads only the journal
    entries that came since the first. Without `drawings` its nodes are not traced."""

    def __init__(self, statuses: StatusReader, graphs: "StoredGraphs | None", number: int) -> None:
        self._statuses = statuses
        self._graphs = graphs
        self._ledger = statuses.ledger
        self._number = number
        self._known = False
        self.tally = JournalTally()
        self.tracing: Tracing | None = None
        """Of a run of a graph whose shape is known."""
        self._follower = JournalFollower(self._ledger, number, self._take, self._restart)

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
        records = await self._follower.catch_up(self._rest)
        if self.tracing is not None:
            started = perf_counter()
            while self.tracing.walk(self.tally.journal):
                if perf_counter() - started > SLICE:
                    await trio.lowlevel.checkpoint()
                    started = perf_counter()
        return records

    async def summarized(self) -> StoredRecords | None:
        """The records of a run whose status record says it all: the run has left memory, or has
        ended, and has no later journal entries. None if there is no such run, or the journal has to
        be read."""
        ledger, number = self._ledger, self._number
        with ledger.store.view():
            standing = await ledger.standing(number)
            if standing is None or not (standing.state.terminal or standing.summary):
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
            standing=await ledger.standing(number) or Standing(),
            begun=[fields for _, fields in await ledger.scan("begun", record)],
            reports=[fields for _, fields in await ledger.scan("reports", record)],
            held=await self._statuses.held(submission.key, ListedRun()) == number,
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
