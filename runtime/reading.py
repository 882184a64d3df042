"""Reading: how runs and keys stand and what happened to them, from the records alone.

The same for a runtime and for a reader in another process; a runtime lays what it knows better on
top. Every answer is of one durable commit.
"""

from collections.abc import Iterator
from typing import Any

import attrs

from keyrun.runtime.exported import Records
from keyrun.runtime.history import History
from keyrun.runtime.ledger import Ledger, Standing, Submission
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

    async def status(self, number: int) -> RunStatus | None:
        """How a run stands."""
        with self._ledger.store.view():
            submission = await self._ledger.submission(number)
            if submission is None:
                return None
            return self.status_of(submission, await self._ledger.standing(number))

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

    async def runs(
        self,
        *,
        state: State | None = None,
        key: str | None = None,
        workflow: str | None = None,
        tag: str | None = None,
        limit: int = 100,
        after: int = 0,
    ) -> list[RunStatus]:
        """Runs in the order of their admission, those that fit; `after` is a number."""
        found: list[RunStatus] = []
        ledger = self._ledger
        while len(found) < limit:
            with ledger.store.view():
                rows = await ledger.store.scan(
                    "runs", prefix=ledger.prefix, start=ledger.number(after + 1), limit=PAGE
                )
                for submission in self._readable(rows):
                    if (
                        (key is None or submission.key == key)
                        and (workflow is None or submission.workflow == workflow)
                        and (tag is None or tag in submission.tags)
                    ):
                        standing = await ledger.standing(submission.number)
                        status = self._tolerant(submission, standing)
                        if state is None or status.state is state:
                            found.append(status)
                            if len(found) == limit:
                                break
            if len(rows) < PAGE:
                break
            after = ledger.split_number(rows[-1][0])[0]
        return found

    def _readable(self, rows: list[tuple[bytes, bytes]]) -> Iterator[Submission]:
        """A damaged record is no reason not to show the others; `verify` tells of it."""
        for key, raw in rows:
            try:
                fields = unseal("runs", key, raw)
            except StoreError:
                continue
            yield Submission.read(self._ledger.split_number(key)[0], fields)

    def _tolerant(self, submission: Submission, standing: Standing | None) -> RunStatus:
        """A result that today's code cannot read is no reason not to list the run."""
        try:
            return self.status_of(submission, standing)
        except (PayloadError, TypeError):
            assert standing is not None
            return self.status_of(submission, attrs.evolve(standing, result=None))

    async def keys(self, *, limit: int = 100, after: str | None = None) -> list[KeyStatus]:
        """Keys that have runs which have not ended, in the order of the index."""
        ledger = self._ledger
        found: dict[str, list[int]] = {}
        start = ledger.line(after) + b"\xff" * 9 if after is not None else b""
        with ledger.store.view():
            while len(found) <= limit:
                rows = await ledger.scan("queue", ledger.prefix, after=start, limit=PAGE)
                for key, (number,) in rows:
                    found.setdefault(ledger.split_place(key)[0], []).append(number)
                if len(rows) < PAGE:
                    break
                start = rows[-1][0]
            return [await self._key(key, numbers) for key, numbers in list(found.items())[:limit]]

    async def _key(self, key: str, numbers: list[int]) -> KeyStatus:
        head = await self.status(numbers[0])
        paused = await self._ledger.get("held", self._ledger.name(key)) is not None
        return KeyStatus(
            key=key,
            runs=len(numbers),
            head="" if head is None else head.run_id,
            state=State.QUARANTINED if head is None else head.state,
            paused=paused,
        )

    async def dead_letters(self, *, limit: int = 100, after: int = 0) -> list[RunStatus]:
        """Runs that failed for good and wait to be redriven or forgotten, oldest first."""
        ledger = self._ledger
        with ledger.store.view():
            rows = await ledger.store.scan(
                "dead", prefix=ledger.prefix, start=ledger.number(after + 1), limit=limit
            )
            found = [await self.status(ledger.split_number(key)[0]) for key, _ in rows]
        return [status for status in found if status is not None]
