"""The survey: how far runs are and what happened to them, from the records alone.

Answers are of one durable commit, for a runtime as for a reader in another process. It is more than
most programs ask for, so it is imported when somebody does.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import trio

from keyrun.runtime.graphs.errors import MissingExtra
from keyrun.runtime.graphs.progress import in_nodes
from keyrun.runtime.graphs.view import ExecutionGraph
from keyrun.runtime.journal.exported import Records as Exported
from keyrun.runtime.records import Standing
from keyrun.runtime.recovery.damage import DAMAGE
from keyrun.runtime.views.drawings import Drawings
from keyrun.runtime.views.experience import Experiences
from keyrun.runtime.views.history import History
from keyrun.runtime.views.progress import Progress, Records, Tally, assess
from keyrun.runtime.views.reading import Reading, Seen
from keyrun.runtime.views.story import tell
from keyrun.runtime.views.watching import Look
from keyrun.storage import StoreError
from keyrun.storage.record import unseal

PAGE = 500


class Survey:
    """Looks closer at what `reading` reads."""

    def __init__(self, reading: Reading, wall: Callable[[], float]) -> None:
        self._reading = reading
        self._wall = wall
        self._ledger = reading.ledger
        self._experiences = Experiences(reading.ledger)
        self._drawings = Drawings(reading.ledger, reading.codec, reading.registry)

    async def progress(
        self, number: int, tally: Tally | None = None
    ) -> tuple[Progress | None, Tally]:
        """How far a run is, if it is there; `tally` is what an earlier look came to."""
        ledger, now = self._ledger, self._wall()
        record = ledger.number(number)
        if tally is None or tally.spent:
            tally = Tally()
        while True:
            with ledger.store.view():
                submission = await ledger.submission(number)
                if submission is None:
                    return None, tally
                if tally.outdated(await ledger.get("journal", ledger.entry(number, 0))):
                    tally = Tally()
                rows = await ledger.scan("journal", record, after=tally.after, limit=PAGE)
                tally.take(rows)
                if len(rows) < PAGE:
                    records = Records(
                        submission=submission,
                        standing=await ledger.standing(number) or Standing(),
                        begun=[fields for _, fields in await ledger.scan("begun", record)],
                        reports=[fields for _, fields in await ledger.scan("reports", record)],
                        held=await self._reading.held(submission.key, Seen()) == number,
                    )
                    break
            # What was read does not change but as a whole, so that others may have a turn.
            await trio.lowlevel.checkpoint()
        experience = None
        if not records.standing.state.terminal:
            name, version = submission.workflow, submission.version
            experience = await self._experiences.of(name, version, now)
        far = assess(records, tally, experience, now)
        status = self._reading.tolerant(submission, records.standing)
        with suppress(MissingExtra):
            graph = await self._drawings.draw(submission, status)
            far = far if graph is None else in_nodes(far, graph)
        return far, tally

    def looker(self, run_id: str) -> Look:
        """Looks again and again how far a run is."""
        number: int | None = None

        async def look(tally: Tally) -> tuple[Progress | None, Tally]:
            nonlocal number
            if number is None:
                number = await self._ledger.find(run_id)
            if number is None:
                return None, tally
            return await self.progress(number, tally)

        return look

    async def execution_graph(
        self, number: int, queues: Mapping[str, int] | None = None
    ) -> ExecutionGraph | None:
        """A run of a graph, node by node; None if it is of no graph, or is not there."""
        submission = await self._ledger.submission(number)
        status = await self._reading.status(number, result=False)
        if submission is None or status is None:
            return None
        return await self._drawings.draw(submission, status, queues)

    async def history(self, number: int | None) -> History:
        """What happened to a run, in order; nothing if there is none."""
        if number is None:
            return History()
        ledger, key = self._ledger, self._ledger.number(number)
        with ledger.store.view():
            raw = await ledger.store.get("runs", key)
            if raw is None:
                return History()
            rows = await ledger.store.scan("journal", prefix=key)
            standing: Standing | StoreError | None
            try:
                standing = await ledger.standing(number)
            except DAMAGE as error:
                standing = error
        submission = self._reading.read(key, raw)
        entries: list[tuple[int, list[Any]]] = []
        story: list[list[Any] | StoreError] = []
        for record, value in rows:
            entry = _entry(record, value)
            story.append(entry)
            if not isinstance(entry, StoreError):
                entries.append((int.from_bytes(record[-4:], "big"), entry))
        if (
            isinstance(submission, StoreError)
            or isinstance(standing, StoreError)
            or len(entries) < len(story)
        ):
            return History(story=tell(submission, standing, story))
        return History(Exported(submission, standing, tuple(entries)))


def _entry(key: bytes, raw: bytes) -> list[Any] | StoreError:
    """A journal entry, or why it cannot be read."""
    try:
        return unseal("journal", key, raw)
    except DAMAGE as error:
        return error
