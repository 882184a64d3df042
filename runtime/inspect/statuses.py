"""Statuses: return the public status of runs, from their records.

A runtime and a reader in another process use the same code. A runtime also knows the runs in
memory. Every status describes one durable commit. A damaged run has a status, too: one damaged
record does not prevent others from being read.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from keyrun.runtime.definitions.workflow import Registry
from keyrun.runtime.records.damage import DAMAGE, stand_in, traces
from keyrun.runtime.records.journal_entry import decode, is_driven, is_note
from keyrun.runtime.records.submission import DAMAGED, StatusRecord, Submission
from keyrun.runtime.records.tables import Ledger
from keyrun.runtime.values import QuarantineCause, RunStatus, State
from keyrun.storage import StoreError
from keyrun.storage.payload import PayloadCodec, PayloadError
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.inspect.slices import PageBudget
    from keyrun.runtime.recovery.supervision import QuarantinedKey
    from keyrun.runtime.run.run import Run

HEAD = 1500
"""Runs that yield their key among which the status of a run looks for the head of its queue."""
_NAMED = 3
"""Quarantined children that the status of their parent names."""

_DERIVED = (State.PENDING, State.WAITING)
"""States in the status record that the journal may contradict, because it is newer."""
_NOTES = 16
"""Journal entries to look at for one that is not a note."""

Show = Callable[[Submission, StatusRecord | None], RunStatus]
"""Returns the public status of a run from its records."""


@attrs.define
class SeenKeys:
    """A cache of the facts about keys that a listing has read, so that it reads each once."""

    heads: dict[str, int | None] = attrs.Factory(dict)
    """By key: the number of the head run, if the key is paused."""
    holders: dict[str, tuple[int, str] | None] = attrs.Factory(dict)
    """By key: the number and the id of the head run, if it is quarantined."""
    children: int = 500
    """The number of children that may still be looked at, to find quarantined ones."""


def _nothing(number: int) -> None:
    """Return no run: a reader has no runs in memory."""


class StatusReader:
    """Reads statuses from the ledger. A runtime passes the runs that are `live` and the keys that
    are `quarantined`, which memory knows better than the store. With `plain`, a result is plain
    data, whatever its workflow declares."""

    def __init__(
        self,
        ledger: Ledger,
        codec: PayloadCodec,
        registry: Registry,
        *,
        live: "Callable[[int], Run | None]" = _nothing,
        quarantined: "Mapping[str, QuarantinedKey] | None" = None,
        plain: bool = False,
    ) -> None:
        self.ledger = ledger
        self.live = live
        self.quarantined: Mapping[str, QuarantinedKey] = {} if quarantined is None else quarantined
        self.unreadable = 0
        """The number of damaged records that listings left out, because it is not known which run
        they belong to."""
        self.codec = codec
        self.registry = registry
        self._plain = plain

    def decode_result(self, workflow: str, version: int, payload: bytes) -> Any:
        """Return the result of a run, decoded with the type that its workflow declares."""
        known = None if self._plain else self.registry.find(workflow, version)
        return self.codec.decode(payload, Any if known is None else known.result_type)

    def status_of(self, submission: Submission, stored: StatusRecord | None) -> RunStatus:
        """Return the public status of a run from its records."""
        stored = stored or StatusRecord()
        state = stored.visible_state()
        quarantined = state is State.QUARANTINED
        result, wait = None, stored.evicted_wait
        if stored.result is not None:
            result = self.decode_result(submission.workflow, submission.version, stored.result)
        return RunStatus(
            run_id=submission.run_id,
            key=submission.key,
            workflow=submission.workflow,
            version=submission.version,
            state=state,
            step=stored.step,
            attempt=stored.attempt,
            steps_done=stored.steps_done,
            submitted_at=submission.submitted_at,
            started_at=stored.started_at,
            ended_at=stored.ended_at,
            deadline=stored.deadline,
            headers=submission.headers,
            tags=submission.tags,
            origin=submission.origin,
            waiting_on=None if quarantined else stored.waiting_on,
            result=result,
            reason=stored.reason,
            failure=stored.failure,
            generation=stored.generation,
            waiting_until=wait.due if wait is not None and state is State.WAITING else None,
            quarantine_cause=None if stored.quarantine is None else stored.quarantine.cause,
            compensation=stored.compensation,
        )

    def lenient_status(self, submission: Submission, stored: StatusRecord | None) -> RunStatus:
        """Return the public status of a run, without the result if its type cannot read it."""
        try:
            return self.status_of(submission, stored)
        except (PayloadError, TypeError):
            return self.without_result(submission, stored)

    def without_result(self, submission: Submission, stored: StatusRecord | None) -> RunStatus:
        """Return the public status of a run without the result."""
        if stored is not None and stored.result is not None:
            stored = attrs.evolve(stored, result=None)
        return self.status_of(submission, stored)

    async def status(
        self, number: int, *, result: bool = True, slices: "PageBudget | None" = None
    ) -> RunStatus | None:
        """Return the status of a run, without the result if `result` is False. `slices` are those
        of a page that reads a bounded number of records."""
        show = self.status_of if result else self.without_result
        return await self._status(number, show, named=True, slices=slices)

    async def state(self, number: int) -> State | None:
        """Return the state of a run, or None if there is no such run."""
        status = await self._status(number, self.without_result, named=False)
        return None if status is None else status.state

    async def _status(
        self, number: int, show: Show, *, named: bool, slices: "PageBudget | None" = None
    ) -> RunStatus | None:
        """Return the status of a run. With `named`, it names the quarantined run or key that the
        run waits for."""
        ledger, key, seen = self.ledger, self.ledger.number(number), SeenKeys()
        driven = self._live_status(number)
        if driven is not None:
            return await self.with_quarantined(driven, number, seen) if named else driven
        with ledger.store.view():
            raw = await ledger.store.get("runs", key)
            if raw is None:
                return None
            read = self.read(key, raw)
            if not isinstance(read, StoreError):
                status = await self.status_in_view(read, show, seen)
                if named:
                    status = await self.with_quarantined(status, number, seen)
        if isinstance(read, StoreError):
            return (await self.damaged({number: read}))[number]
        return await self.with_journal(number, status, slices) if named else status

    def _live_status(self, number: int) -> RunStatus | None:
        """Return the status of a run in memory. None if its end is staged: the end has not happened
        yet, and the store has the status before it."""
        live = self.live(number)
        return None if live is None or live.status.state.terminal else live.public_status()

    def read(self, key: bytes, raw: bytes) -> Submission | StoreError:
        """Return the submission of a run, from memory or from a record of `runs`, or the error that
        reading the record raises."""
        live = self.live(self.ledger.split_number(key)[0])
        if live is not None:
            return live.submission
        try:
            return self.ledger.read_submission(key, raw)
        except DAMAGE as error:
            return error

    async def status_in_view(
        self, submission: Submission, show: Show, seen: "SeenKeys"
    ) -> RunStatus:
        """Return the status of a run. Call this in a view of the store. `show` makes the public
        status, and `seen` keeps what was read about keys."""
        number = submission.number
        driven = self._live_status(number)
        if driven is not None:
            return driven
        try:
            stored = await self.ledger.current_status(number)
            untouched = stored is None or stored.state is State.PENDING
            if untouched and await self._was_driven(number):
                stored = attrs.evolve(stored or StatusRecord(), state=State.RUNNING)
        except DAMAGE as error:
            stored = StatusRecord.damaged(error)
        status = show(submission, stored)
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
            status.state is State.PAUSED or await self.paused_head(status.key, seen) == number
        ):
            return status
        # A running step finishes before the run is paused.
        begun = await self.ledger.store.scan("begun", prefix=self.ledger.number(number), limit=1)
        return attrs.evolve(status, state=State.RUNNING if begun else State.PAUSED)

    async def with_quarantined(self, status: RunStatus, number: int, seen: "SeenKeys") -> RunStatus:
        """Return a status that names the quarantined run or key that the run waits behind, or the
        quarantined children that it waits for."""
        if status.state.terminal or status.state is State.QUARANTINED:
            return status
        if status.waiting_on is not None:
            return await self._with_children(status, number, seen)
        if self.live(number) is not None:
            return status
        behind = await self._holder(status.key, number, seen)
        if behind is None or await self._is_delayed(number):
            return status
        return attrs.evolve(status, waiting_on=behind)

    async def _is_delayed(self, number: int) -> bool:
        """Return whether a run that has not started is delayed, so that it has no place yet."""
        with suppress(*DAMAGE):
            stored = await self.ledger.status(number)
            if stored is not None:
                return stored.place is None
            submission = await self.ledger.submission(number)
            return submission is not None and bool(submission.delay)
        return False

    async def _holder(self, key: str, number: int, seen: "SeenKeys") -> str | None:
        """Return the text for the quarantined run or key that a run of this key waits behind."""
        if key in self.quarantined:
            return f"key {key} (quarantined)"
        if key not in seen.holders:
            seen.holders[key] = await self._quarantined_head(key)
        holder = seen.holders[key]
        if holder is None or holder[0] == number:
            return None
        return f"run {holder[1]} (quarantined)"

    async def _quarantined_head(self, key: str) -> tuple[int, str] | None:
        """Return the number and the id of the head run of a key, if it is quarantined."""
        with suppress(*DAMAGE):
            number = await self.ledger.head(key, most=HEAD)
            if number is not None and await self._is_quarantined(number):
                submission = await self.ledger.submission(number)
                return None if submission is None else (number, submission.run_id)
        return None

    async def _is_quarantined(self, number: int) -> bool:
        """Return whether a run is quarantined."""
        live = self.live(number)
        if live is not None:
            return live.status.state is State.QUARANTINED
        try:
            stored = await self.ledger.current_status(number)
        except DAMAGE:
            return True
        return stored is not None and stored.state is State.QUARANTINED

    async def _with_children(self, status: RunStatus, number: int, seen: "SeenKeys") -> RunStatus:
        """Return a status that names the quarantined children which the run waits for."""
        waits = status.waiting_on
        if waits is None or "child " not in waits:
            return status
        quarantined: list[str] = []
        prefix = self.ledger.number(number)
        store = self.ledger.store
        rows = await store.scan("children", prefix=prefix, limit=seen.children)
        seen.children -= len(rows)
        for record, raw in rows:
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
        """Return whether the journal shows that a run was driven in its present generation."""
        rows = await self.ledger.store.scan(
            "journal", prefix=self.ledger.number(number), limit=_NOTES, reverse=True
        )
        entries = (decode(unseal("journal", key, raw)) for key, raw in rows)
        last = next((entry for entry in entries if not is_note(entry)), None)
        return last is not None and is_driven(last)

    async def with_journal(
        self, number: int, status: RunStatus, slices: "PageBudget | None" = None
    ) -> RunStatus:
        """Return a status that is up to date with the journal. The status record is written when a
        run waits, not with every step, so it may be older. Reading the journal may take long, so do
        not call this in a view.

        With the `slices` of a page, a journal of more than `JOURNAL` entries is not read. It is
        newer than the status record, so the run is running."""
        if status.state.terminal or status.state is State.QUARANTINED:
            return status
        if self.live(number) is not None:
            return status
        from keyrun.runtime.inspect.progress import snapshot_of_records
        from keyrun.runtime.inspect.slices import JOURNAL
        from keyrun.runtime.inspect.stored_run import StoredRun, journal_length, knows_journal

        try:
            with self.ledger.store.view():
                if await knows_journal(self.ledger, number):
                    return status
                length = 0 if slices is None else await journal_length(self.ledger, number)
            if length > JOURNAL:
                return _as_running(status)
            run = StoredRun(self, None, number)
            records = await run.refresh()
        except DAMAGE:
            return status
        if slices is not None:
            slices.left -= run.follower.read
        if records is None or records.status.state.terminal:
            return status
        found = snapshot_of_records(records, run.tally)
        status = attrs.evolve(status, steps_done=found.steps.done, started_at=found.started_at)
        return _as_running(status) if found.state is State.RUNNING else status

    async def paused_head(self, key: str, seen: "SeenKeys") -> int | None:
        """Return the number of the head run of a key, if the key or the runtime is paused. The runs
        behind the head only wait."""
        heads = seen.heads
        if key not in heads:
            ledger, store = self.ledger, self.ledger.store
            held = await store.get("held", ledger.name("")) or await store.get(
                "held", ledger.name(key)
            )
            heads[key] = None
            with suppress(*DAMAGE):
                heads[key] = await ledger.head(key, most=HEAD) if held else None
        return heads[key]

    async def damaged(self, errors: Mapping[int, StoreError]) -> dict[int, RunStatus]:
        """Return the statuses of runs whose submissions cannot be read, with these errors."""
        known = await traces(self.ledger, errors) if errors else {}
        found: dict[int, RunStatus] = {}
        for number, error in errors.items():
            try:
                stored = await self.ledger.status(number) or StatusRecord()
            except DAMAGE:
                stored = StatusRecord(ended_at=known[number].ended_at)
            stored = attrs.evolve(stored, reason=str(error))
            if not stored.state.terminal:
                stored.state, stored.quarantine = State.QUARANTINED, DAMAGED
            found[number] = self.lenient_status(stand_in(number, known[number], b""), stored)
        return found


def _as_running(status: RunStatus) -> RunStatus:
    """Return a status whose journal is newer than its record and says that the run is running."""
    if status.state not in _DERIVED:
        return status
    return attrs.evolve(status, state=State.RUNNING, waiting_on=None, waiting_until=None)
