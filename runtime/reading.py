"""Reading: how runs and keys stand and what happened to them, from the records alone.

The same for a runtime and for a reader in another process; a runtime lays what it knows better on
top. Every answer is of one durable commit.
"""

from collections import Counter
from typing import Any

import attrs

from keyrun.runtime.exported import Records
from keyrun.runtime.history import History
from keyrun.runtime.ledger import Ledger
from keyrun.runtime.listing import Listing
from keyrun.runtime.records import Standing, Submission
from keyrun.runtime.values import RunStatus, State
from keyrun.runtime.workflow import Registry
from keyrun.storage import StoreError
from keyrun.storage.payload import PayloadCodec, PayloadError
from keyrun.storage.record import unseal

PAGE = 500


@attrs.frozen(kw_only=True)
class KeyStatus:
    """What a key is doing: how many runs have not ended, and the one whose turn it is."""

    key: str
    runs: int
    head: str
    state: State
    paused: bool


class Reading:
    """Answers from the ledger."""

    def __init__(self, ledger: Ledger, codec: PayloadCodec, registry: Registry) -> None:
        self._ledger = ledger
        self._codec = codec
        self._registry = registry
        self.listing = Listing(ledger, self.tolerant)

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
        elif not state.terminal and standing.paused:
            state = State.PAUSED
        result = None
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
        )

    async def status(self, number: int, *, result: bool = True) -> RunStatus | None:
        """How a run stands; its result is None if it is not asked for."""
        with self._ledger.store.view():
            submission = await self._ledger.submission(number)
            if submission is None:
                return None
            standing = await self._ledger.standing(number)
        if standing is not None and not result:
            standing.result = None
        return self.status_of(submission, standing)

    async def history(self, number: int) -> History:
        """What happened to a run, in order."""
        ledger = self._ledger
        with ledger.store.view():
            submission = await ledger.submission(number)
            if submission is None:
                return History()
            standing = await ledger.standing(number)
            rows = await ledger.scan("journal", ledger.number(number))
        entries = tuple((int.from_bytes(key[-4:], "big"), fields) for key, fields in rows)
        return History(Records(submission, standing, entries))

    def tolerant(self, submission: Submission, standing: Standing | None) -> RunStatus:
        """A result that today's code cannot read is no reason not to list the run."""
        try:
            return self.status_of(submission, standing)
        except (PayloadError, TypeError):
            assert standing is not None
            return self.status_of(submission, attrs.evolve(standing, result=None))

    async def keys(
        self, *, key: str | None = None, limit: int = 100, after: str | None = None
    ) -> list[KeyStatus]:
        """Keys that have runs which have not ended, in the order of the index; or `key` alone."""
        ledger = self._ledger
        prefix = ledger.prefix if key is None else ledger.line(key)
        heads: dict[str, tuple[bytes, bytes]] = {}
        counts: Counter[str] = Counter()
        start = ledger.line(after) + b"\xff" * 9 if after is not None else b""
        with ledger.store.view():
            while len(heads) <= limit:
                rows = await ledger.store.scan("queue", prefix=prefix, start=start, limit=PAGE)
                for row in rows:
                    try:
                        name = ledger.split_place(row[0])[0]
                    except StoreError:
                        self.listing.unreadable += 1
                        continue
                    heads.setdefault(name, row)
                    counts[name] += 1
                if len(rows) < PAGE:
                    break
                start = rows[-1][0] + b"\0"
            names = list(heads)[:limit]
            return [await self._key(name, counts[name], heads[name]) for name in names]

    async def _key(self, key: str, runs: int, place: tuple[bytes, bytes]) -> KeyStatus:
        try:
            head = await self.status(unseal("queue", *place)[0], result=False)
        except StoreError:
            head = None
        paused = await self._ledger.get("held", self._ledger.name(key)) is not None
        return KeyStatus(
            key=key,
            runs=runs,
            head="" if head is None else head.run_id,
            state=State.QUARANTINED if head is None else head.state,
            paused=paused,
        )
