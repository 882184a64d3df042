"""Reading: how runs stand, from the records alone.

The same for a runtime and for a reader in another process; a runtime lays what it knows better on
top. Every answer is of one durable commit. What is damaged is shown as that: no single record
keeps the others from being read.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from keyrun.runtime.definitions.workflow import Registry
from keyrun.runtime.records.damage import DAMAGE, stand_in, traces
from keyrun.runtime.records.journal_entry import decode, is_driven, is_note
from keyrun.runtime.records.submission import DAMAGED, Standing, Submission
from keyrun.runtime.records.tables import Ledger
from keyrun.runtime.values import QuarantineCause, RunStatus, State
from keyrun.storage import StoreError
from keyrun.storage.payload import PayloadCodec, PayloadError
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.recovery.supervision import QuarantinedKey
    from keyrun.runtime.run.run import Run

_NAMED = 3
"""Quarantined children that the status of their parent names."""

_DERIVED = (State.PENDING, State.WAITING)
"""What the status record says that the journal may know better."""
_NOTES = 16
"""Journal entries to look at for one that is not a note."""

Show = Callable[[Submission, Standing | None], RunStatus]
"""Makes of records what a user sees."""


@attrs.define
class ListedRun:
    """What a listing has learned of keys."""

    heads: dict[str, int | None] = attrs.Factory(dict)
    """By key: the number of the run whose turn it is, if the key is paused."""
    holders: dict[str, tuple[int, str] | None] = attrs.Factory(dict)
    """By key: number and id of the run whose turn it is, if it is quarantined."""


def _nothing(number: int) -> None:
    """A reader has no runs in memory."""


class StatusReader:
    """Answers from the ledger. A runtime knows better about the runs that are `live` and the keys
    that are `quarantined`, with the reason."""

    def __init__(
        self,
        ledger: Ledger,
        codec: PayloadCodec,
        registry: Registry,
        *,
        live: "Callable[[int], Run | None]" = _nothing,
        quarantined: "Mapping[str, QuarantinedKey] | None" = None,
    ) -> None:
        self.ledger = ledger
        self.live = live
        self.quarantined: Mapping[str, QuarantinedKey] = {} if quarantined is None else quarantined
        self.unreadable = 0
        """Damaged records that listings left out, since nobody can tell what they are about."""
        self.codec = codec
        self.registry = registry

    def decode_result(self, workflow: str, version: int, payload: bytes) -> Any:
        """The result of a run as its workflow declares it."""
        known = self.registry.find(workflow, version)
        return self.codec.decode(payload, Any if known is None else known.result_type)

    def status_of(self, submission: Submission, standing: Standing | None) -> RunStatus:
        """The public form of what is stored."""
        standing = standing or Standing()
        state = standing.state
        quarantined = state is State.QUARANTINED
        if not state.terminal and not quarantined:
            if standing.cancel_requested:
                state = State.CANCELLING
            elif standing.paused:
                state = State.PAUSED
        result, wait = None, standing.evicted_wait
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
            waiting_on=None if quarantined else standing.waiting_on,
            result=result,
            reason=standing.reason,
            failure=standing.failure,
            generation=standing.generation,
            waiting_until=wait.due if wait is not None and state is State.WAITING else None,
            quarantine_cause=None if standing.quarantine is None else standing.quarantine.cause,
            compensation=standing.compensation,
        )

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
        show = self.status_of if result else self.without_result
        return await self._status(number, show, named=True)

    async def state(self, number: int) -> State | None:
        """Where a run stands; None if there is no such run."""
        status = await self._status(number, self.without_result, named=False)
        return None if status is None else status.state

    async def _status(self, number: int, show: Show, *, named: bool) -> RunStatus | None:
        """How a run stands; if `named`, with the quarantined run that it waits for."""
        ledger, key, seen = self.ledger, self.ledger.number(number), ListedRun()
        driven = self._driven(number)
        if driven is not None:
            return await self.with_quarantined(driven, number, seen) if named else driven
        with ledger.store.view():
            raw = await ledger.store.get("runs", key)
            if raw is None:
                return None
            read = self.read(key, raw)
            if not isinstance(read, StoreError):
                status = await self.stands(read, show, seen)
                if named:
                    status = await self.with_quarantined(status, number, seen)
        if isinstance(read, StoreError):
            return (await self.damaged({number: read}))[number]
        return await self.up_to_date(number, status) if named else status

    def _driven(self, number: int) -> RunStatus | None:
        """How a run stands that is in memory. An end that is only staged has not happened yet."""
        live = self.live(number)
        return None if live is None or live.standing.state.terminal else live.status()

    def read(self, key: bytes, raw: bytes) -> Submission | StoreError:
        """What a record of `runs` holds, or why it cannot be read. What is driven knows better."""
        live = self.live(self.ledger.split_number(key)[0])
        if live is not None:
            return live.submission
        try:
            return self.ledger.read_submission(key, raw)
        except DAMAGE as error:
            return error

    async def stands(self, submission: Submission, show: Show, seen: "ListedRun") -> RunStatus:
        """How a run stands, as `show` puts it; `seen` remembers what is known of keys."""
        number = submission.number
        driven = self._driven(number)
        if driven is not None:
            return driven
        try:
            standing = await self.ledger.standing(number)
            untouched = standing is None or standing.state is State.PENDING
            if untouched and await self._was_driven(number):
                standing = attrs.evolve(standing or Standing(), state=State.RUNNING)
        except DAMAGE as error:
            standing = Standing.damaged(error)
        status = show(submission, standing)
        if status.state.terminal or status.state is State.QUARANTINED:
            return status
        held = self.quarantined.get(status.key)
        if held is not None and held.number == number:
            return attrs.evolve(
                status,
                state=State.QUARANTINED,
                reason=held.reason,
                waiting_on=None,
                waiting_until=None,
                quarantine_cause=QuarantineCause.KEY,
            )
        if status.state is State.CANCELLING or not (
            status.state is State.PAUSED or await self.held(status.key, seen) == number
        ):
            return status
        # A step that runs is let finish.
        begun = await self.ledger.store.scan("begun", prefix=self.ledger.number(number), limit=1)
        return attrs.evolve(status, state=State.RUNNING if begun else State.PAUSED)

    async def with_quarantined(
        self, status: RunStatus, number: int, seen: "ListedRun"
    ) -> RunStatus:
        """The status of a run with the quarantined run or key that it waits behind, or with the
        quarantined children that it waits for."""
        if status.state.terminal or status.state is State.QUARANTINED:
            return status
        if status.waiting_on is not None:
            return await self._with_children(status, number)
        if self.live(number) is not None:
            return status
        behind = await self._holder(status.key, number, seen)
        if behind is None or await self._is_delayed(number):
            return status
        return attrs.evolve(status, waiting_on=behind)

    async def _is_delayed(self, number: int) -> bool:
        """Whether a run that has not started has no place in the order yet."""
        with suppress(*DAMAGE):
            standing = await self.ledger.standing(number)
            if standing is not None:
                return standing.place is None
            submission = await self.ledger.submission(number)
            return submission is not None and bool(submission.delay)
        return False

    async def _holder(self, key: str, number: int, seen: "ListedRun") -> str | None:
        """The quarantined run or key that a run of this key waits behind, as its status puts it."""
        if key in self.quarantined:
            return f"key {key} (quarantined)"
        if key not in seen.holders:
            seen.holders[key] = await self._quarantined_head(key)
        holder = seen.holders[key]
        if holder is None or holder[0] == number:
            return None
        return f"run {holder[1]} (quarantined)"

    async def _quarantined_head(self, key: str) -> tuple[int, str] | None:
        """Number and id of the run that holds a key, if it is quarantined."""
        with suppress(*DAMAGE):
            number = await self.ledger.head(key)
            if number is not None and await self._is_quarantined(number):
                submission = await self.ledger.submission(number)
                return None if submission is None else (number, submission.run_id)
        return None

    async def _is_quarantined(self, number: int) -> bool:
        """Whether a run that holds its key, or is awaited by another, is quarantined by itself."""
        live = self.live(number)
        if live is not None:
            return live.standing.state is State.QUARANTINED
        try:
            standing = await self.ledger.standing(number)
        except DAMAGE:
            return True
        return standing is not None and standing.state is State.QUARANTINED

    async def _with_children(self, status: RunStatus, number: int) -> RunStatus:
        """The status of a run that may wait for children, with those that are quarantined."""
        waits = status.waiting_on
        if waits is None or "child " not in waits:
            return status
        quarantined: list[str] = []
        prefix = self.ledger.number(number)
        for record, raw in await self.ledger.store.scan("children", prefix=prefix):
            with suppress(*DAMAGE):
                run_id, key, ended, orphaned = unseal("children", record, raw)
                child = int.from_bytes(record[-8:], "big")
                held = self.quarantined.get(key)
                with_key = held is not None and held.number == child
                if not (ended or orphaned) and (with_key or await self._is_quarantined(child)):
                    quarantined.append(f"child {run_id}")
        if not quarantined:
            return status
        others = [label for label in waits.split(", ") if label not in quarantined]
        named = [f"{label} (quarantined)" for label in quarantined[:_NAMED]]
        if len(quarantined) > _NAMED:
            named.append(f"{len(quarantined) - _NAMED} more (quarantined)")
        return attrs.evolve(status, waiting_on=", ".join(named + others))

    async def _was_driven(self, number: int) -> bool:
        """Whether the journal shows that a run was driven in its present generation."""
        rows = await self.ledger.store.scan(
            "journal", prefix=self.ledger.number(number), limit=_NOTES, reverse=True
        )
        entries = (decode(unseal("journal", key, raw)) for key, raw in rows)
        last = next((entry for entry in entries if not is_note(entry)), None)
        return last is not None and is_driven(last)

    async def up_to_date(self, number: int, status: RunStatus) -> RunStatus:
        """The status of a run with what the journal knows and the status record does not. The
        record is written when a run waits, not with every step, so it may be older. Reading the
        journal takes its time: this must not be called in a view."""
        if status.state.terminal or status.state is State.QUARANTINED:
            return status
        if self.live(number) is not None:
            return status
        from keyrun.runtime.inspect.progress import stored
        from keyrun.runtime.inspect.stored_run import StoredRun, knows_journal

        try:
            with self.ledger.store.view():
                if await knows_journal(self.ledger, number):
                    return status
            run = StoredRun(self, None, number)
            records = await run.refresh()
        except DAMAGE:
            return status
        if records is None or records.standing.state.terminal:
            return status
        found = stored(records, run.tally)
        status = attrs.evolve(status, steps_done=found.steps.done, started_at=found.started_at)
        if status.state in _DERIVED and found.state is State.RUNNING:
            return attrs.evolve(status, state=State.RUNNING, waiting_on=None, waiting_until=None)
        return status

    async def held(self, key: str, seen: "ListedRun") -> int | None:
        """The run whose turn it is, if its key is paused, or all are. Those behind it just wait."""
        heads = seen.heads
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
            standing = attrs.evolve(standing, reason=str(error))
            if not standing.state.terminal:
                standing.state, standing.quarantine = State.QUARANTINED, DAMAGED
            told[number] = self.tolerant(stand_in(number, known[number], b""), standing)
        return told
