"""Reading: how runs stand and what happened to them, from the records alone.

The same for a runtime and for a reader in another process; a runtime lays what it knows better on
top. Every answer is of one durable commit. What is damaged is shown as that: no single record
keeps the others from being read.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs
import trio

from keyrun.runtime.graphs.errors import MissingExtra
from keyrun.runtime.graphs.progress import in_nodes
from keyrun.runtime.graphs.view import ExecutionGraph
from keyrun.runtime.journal.exported import Records
from keyrun.runtime.ledger import Ledger
from keyrun.runtime.records import Standing, Submission
from keyrun.runtime.recovery.damage import DAMAGE, stand_in, traces
from keyrun.runtime.values import RunStatus, State
from keyrun.runtime.views import progress
from keyrun.runtime.views.drawings import Drawings
from keyrun.runtime.views.experience import Experiences
from keyrun.runtime.views.history import History
from keyrun.runtime.views.story import tell
from keyrun.runtime.workflow import Registry
from keyrun.storage import StoreError
from keyrun.storage.payload import PayloadCodec, PayloadError
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.run import Run

PAGE = 500

_UNHELD = (State.QUARANTINED, State.CANCELLING)
"""What a run is whether or not somebody holds it."""

Show = Callable[[Submission, Standing | None], RunStatus]
"""Makes of records what a user sees."""
Heads = dict[str, int | None]
"""By key: the number of the run whose turn it is, if the key is held."""


class Reading:
    """Answers from the ledger. A runtime knows better about the runs that are `live` and the keys
    that are `quarantined`, with the reason."""

    def __init__(
        self,
        ledger: Ledger,
        codec: PayloadCodec,
        registry: Registry,
        *,
        live: "Mapping[int, Run] | None" = None,
        quarantined: Mapping[str, str] | None = None,
    ) -> None:
        self.ledger = ledger
        self.live = {} if live is None else live
        self.quarantined = {} if quarantined is None else quarantined
        self.unreadable = 0
        """Damaged records that listings left out, since nobody can tell what they are about."""
        self._codec = codec
        self._registry = registry
        self._experiences = Experiences(ledger)
        self._drawings = Drawings(ledger, codec, registry)

    def decode_result(self, workflow: str, version: int, payload: bytes) -> Any:
        """The result of a run as its workflow declares it."""
        known = self._registry.find(workflow, version)
        return self._codec.decode(payload, Any if known is None else known.result_type)

    def status_of(self, submission: Submission, standing: Standing | None) -> RunStatus:
        """The public form of what is stored."""
        standing = standing or Standing()
        state = standing.state
        if not state.terminal and standing.cancel_requested:
            state = State.CANCELLING
        elif not state.terminal and state is not State.QUARANTINED and standing.paused:
            state = State.PAUSED
        result, berth = None, standing.berth
        if standing.result is not None:
            result = self.decode_result(submission.workflow, submission.version, standing.result)
        return RunStatus(
            run_id=submission.run_id,
            key=submission.key,
            workflow=submission.workflow,
            version=submission.version,
            state=state,
            step=standing.step,
            attempt=standing.attempt,
            steps_done=standing.steps_done,
            submitted_at=submission.submitted_at,
            started_at=standing.started_at,
            ended_at=standing.ended_at,
            deadline=standing.deadline,
            headers=submission.headers,
            tags=submission.tags,
            origin=submission.origin,
            waiting_on=standing.waiting_on,
            result=result,
            reason=standing.reason,
            failure=standing.failure,
            generation=standing.generation,
            waiting_until=berth.due if berth is not None and state is State.WAITING else None,
        )

    async def progress(
        self, number: int, tally: progress.Tally, now: float
    ) -> tuple[progress.Progress | None, progress.Tally]:
        """How far a run is, if it is there; `tally` is what an earlier look came to."""
        ledger = self.ledger
        record = ledger.number(number)
        if tally.spent:
            tally = progress.Tally()
        while True:
            with ledger.store.view():
                submission = await ledger.submission(number)
                if submission is None:
                    return None, tally
                if tally.outdated(await ledger.get("journal", ledger.entry(number, 0))):
                    tally = progress.Tally()
                rows = await ledger.scan("journal", record, after=tally.after, limit=PAGE)
                tally.take(rows)
                if len(rows) < PAGE:
                    records = progress.Records(
                        submission=submission,
                        standing=await ledger.standing(number) or Standing(),
                        begun=[fields for _, fields in await ledger.scan("begun", record)],
                        reports=[fields for _, fields in await ledger.scan("reports", record)],
                        held=await self._held(submission.key, {}) == number,
                    )
                    break
            # What was read does not change but as a whole, so that others may have a turn.
            await trio.lowlevel.checkpoint()
        experience = None
        if not records.standing.state.terminal:
            name, version = submission.workflow, submission.version
            experience = await self._experiences.of(name, version, now)
        far = progress.assess(records, tally, experience, now)
        status = self.tolerant(submission, records.standing)
        with suppress(MissingExtra):
            graph = await self._drawings.draw(submission, status)
            far = far if graph is None else in_nodes(far, graph)
        return far, tally

    async def execution_graph(
        self, number: int, queues: Mapping[str, int] | None = None
    ) -> ExecutionGraph | None:
        """A run of a graph, node by node; None if it is of no graph, or is not there."""
        submission = await self.ledger.submission(number)
        status = await self.status(number, result=False)
        if submission is None or status is None:
            return None
        return await self._drawings.draw(submission, status, queues)

    def tolerant(self, submission: Submission, standing: Standing | None) -> RunStatus:
        """A result that today's code cannot read is no reason not to list the run."""
        try:
            return self.status_of(submission, standing)
        except (PayloadError, TypeError):
            return self.without_result(submission, standing)

    def without_result(self, submission: Submission, standing: Standing | None) -> RunStatus:
        """The result is not asked for."""
        if standing is not None and standing.result is not None:
            standing = attrs.evolve(standing, result=None)
        return self.status_of(submission, standing)

    async def status(self, number: int, *, result: bool = True) -> RunStatus | None:
        """How a run stands; its result is None if it is not asked for."""
        driven = self._driven(number)
        if driven is not None:
            return driven
        ledger, key = self.ledger, self.ledger.number(number)
        with ledger.store.view():
            raw = await ledger.store.get("runs", key)
            if raw is None:
                return None
            read = self._submission(key, raw)
            if not isinstance(read, StoreError):
                show = self.status_of if result else self.without_result
                return await self.stands(read, show, {})
        return (await self.damaged({number: read}))[number]

    def _driven(self, number: int) -> RunStatus | None:
        """How a run stands that is in memory. An end that is only staged has not happened yet."""
        live = self.live.get(number)
        return None if live is None or live.standing.state.terminal else live.status()

    def _submission(self, key: bytes, raw: bytes) -> Submission | StoreError:
        """What a record of `runs` holds, or why it cannot be read. What is driven knows better."""
        live = self.live.get(self.ledger.split_number(key)[0])
        if live is not None:
            return live.submission
        try:
            return self.ledger.read_submission(key, raw)
        except DAMAGE as error:
            return error

    async def stands(self, submission: Submission, show: Show, heads: Heads) -> RunStatus:
        """How a run stands, as `show` puts it; `heads` remembers what is known of keys."""
        number = submission.number
        driven = self._driven(number)
        if driven is not None:
            return driven
        try:
            standing = await self.ledger.standing(number)
        except DAMAGE as error:
            standing = Standing(state=State.QUARANTINED, reason=str(error))
        status = show(submission, standing)
        if status.state.terminal:
            return status
        reason = self.quarantined.get(status.key)
        if reason is not None:
            return attrs.evolve(status, state=State.QUARANTINED, reason=reason)
        if status.state in _UNHELD or not (
            status.state is State.PAUSED or await self._held(status.key, heads) == number
        ):
            return status
        # A step that runs is let finish.
        begun = await self.ledger.store.scan("begun", prefix=self.ledger.number(number), limit=1)
        return attrs.evolve(status, state=State.RUNNING if begun else State.PAUSED)

    async def _held(self, key: str, heads: Heads) -> int | None:
        """The run whose turn it is, if its key is paused, or all are. Those behind it just wait."""
        if key not in heads:
            ledger, store = self.ledger, self.ledger.store
            held = await store.get("held", ledger.name("")) or await store.get(
                "held", ledger.name(key)
            )
            heads[key] = None
            with suppress(*DAMAGE):
                heads[key] = await ledger.head(key) if held else None
        return heads[key]

    async def damaged(self, errors: Mapping[int, StoreError]) -> dict[int, RunStatus]:
        """What can be said of runs whose submissions cannot be read, for these reasons."""
        known = await traces(self.ledger, errors) if errors else {}
        told: dict[int, RunStatus] = {}
        for number, error in errors.items():
            try:
                standing = await self.ledger.standing(number) or Standing()
            except DAMAGE:
                standing = Standing(ended_at=known[number].ended_at)
            state = standing.state if standing.state.terminal else State.QUARANTINED
            standing = attrs.evolve(standing, state=state, reason=str(error))
            told[number] = self.tolerant(stand_in(number, known[number], b""), standing)
        return told

    async def history(self, number: int) -> History:
        """What happened to a run, in order."""
        ledger, key = self.ledger, self.ledger.number(number)
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
        submission = self._submission(key, raw)
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
        return History(Records(submission, standing, tuple(entries)))


def _entry(key: bytes, raw: bytes) -> list[Any] | StoreError:
    """A journal entry, or why it cannot be read."""
    try:
        return unseal("journal", key, raw)
    except DAMAGE as error:
        return error
