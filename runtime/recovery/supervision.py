"""Internal errors: restart a key whose actor crashed, and quarantine it after too many crashes.

A bug that one key triggers must not end the other keys. The key is dropped from memory, and the
supervision of its actor restarts it from the store, with a backoff and a limited number of times.
Then the key is quarantined until an operator releases it. That is known in memory only, so a
restart of the process tries again. A failure of the store itself ends the runtime.
"""

from logging import INFO
from typing import TYPE_CHECKING

import attrs
import trio

from keyrun.actors import Supervision
from keyrun.runtime.events import emitter
from keyrun.runtime.events.logs import log_key
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.internal_errors import store_failure
from keyrun.runtime.records.submission import Quarantine, StatusRecord
from keyrun.runtime.recovery.startup import interruption
from keyrun.runtime.run.run import Location
from keyrun.runtime.run.settlement import settle
from keyrun.runtime.texts import named
from keyrun.runtime.values import QuarantineCause, State
from keyrun.storage import StoreCorrupt

if TYPE_CHECKING:
    from keyrun.actors import ActorSystem
    from keyrun.runtime.queue.key_queue import KeyQueue
    from keyrun.runtime.queue.key_queues import KeyQueues
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.run.run import Run
    from keyrun.runtime.runs import RunTable


@attrs.frozen
class QuarantinedKey:
    """A key that waits for an operator: the reason, and the run that was at its head at the last
    crash, if there was one. That run is quarantined with the key. The runs behind it wait."""

    reason: str
    number: int | None

    @property
    def status(self) -> StatusRecord:
        """Return the status of that run."""
        cause = Quarantine(QuarantineCause.KEY)
        return StatusRecord(state=State.QUARANTINED, reason=self.reason, quarantine=cause)


class KeySupervisor:
    """Restarts keys whose actor crashed, and knows the keys that are quarantined because of it."""

    actors: "ActorSystem[str, KeyQueue, None]"
    """The actors of the keys. The wiring sets them."""

    def __init__(
        self,
        partition: "PartitionState",
        runs: "RunTable",
        queues: "KeyQueues",
        supervision: Supervision,
    ) -> None:
        self._partition = partition
        self._runs = runs
        self._queues = queues
        self._supervision = supervision
        self.quarantined: dict[str, QuarantinedKey] = {}
        self._last: tuple[str, int | None] = ("", None)
        """The key that crashed last, and its head run. The supervision decides about a crash before
        the next crash is recorded here."""

    async def crashed(self, queue: "KeyQueue", error: BaseException) -> bool:
        """Handle an internal error of a key's actor. Return whether the actor is restarted."""
        partition = self._partition
        if self.actors.scope().cancel_called:
            self.actors.renew_scope()
        failure = store_failure(error)
        if failure is not None:
            partition.services.fail(failure)
            return False
        try:
            self._log_crash(queue, error)
            # The scope in which the run was driven may be cancelled.
            with trio.CancelScope(shield=True):
                await self._restore(queue)
                self._last = queue.key, await partition.ledger.head(queue.key)
        except Exception as other:
            if store_failure(other) is not None:
                partition.services.fail(other)
            else:
                said = f"the key {queue.key!r} could not be restored from the store"
                redaction = partition.redaction
                log_key(queue.key, "key_crashed", said, error=other, redaction=redaction)
        return partition.failure is None and not partition.draining

    def _log_crash(self, queue: "KeyQueue", error: BaseException) -> None:
        run_id, workflow, at = "", None, ""
        if queue.head is not None:
            run_id, _, workflow = queue.head.submission.about
            at = f", at {workflow} run {run_id}"
        redaction = self._partition.redaction
        said = (
            f"Keyrun failed at the key {queue.key!r}{at}; other keys continue: "
            f"{named(error, redaction)}"
        )
        log_key(
            queue.key,
            "key_crashed",
            said,
            run_id=run_id,
            workflow=workflow,
            error=error,
            redaction=redaction,
        )

    def quarantine(self, key: str, error: BaseException) -> None:
        """Quarantine a key whose actor has crashed too often."""
        redaction = self._partition.redaction
        last = named(error, redaction)
        most, window = self._supervision.max_restarts, self._supervision.window
        reason = (
            f"the key {key!r} is quarantined: Keyrun failed again after {most} restarts within "
            f"{window:g} s, the last time with {last}; release_key({key!r}) tries again"
        )
        crashed, number = self._last
        held = QuarantinedKey(reason, number if crashed == key else None)
        self.quarantined[key] = held
        if held.number is not None:
            self._runs.report_end(held.number, held.status)
        self._emit(EventKind.KEY_QUARANTINED, key, reason)
        log_key(key, "key_quarantined", reason, error=error, redaction=redaction)

    def _emit(self, kind: EventKind, key: str, reason: str | None = None) -> None:
        partition = self._partition
        if partition.feed is not None:
            emitter.key_changed(partition.feed, None, kind, key, reason)

    def quarantined_run(self, key: str) -> tuple[bool, int | None]:
        """Return whether a key is quarantined, and the run at its head when it crashed."""
        held = self.quarantined.get(key)
        return held is not None, None if held is None else held.number

    def release(self, key: str) -> bool:
        """Release a key. Return whether it was quarantined."""
        if self.quarantined.pop(key, None) is None:
            return False
        self._emit(EventKind.KEY_RELEASED, key)
        log_key(key, "key_released", f"the key {key!r} is released", level=INFO)
        return self.actors.release(key)

    async def _restore(self, queue: "KeyQueue") -> None:
        """Drop the queue of a key from memory, so that it is read again from the store."""
        partition, run = queue.partition, queue.head
        queue.forget_runs()
        if run is None:
            await partition.store.durable()
            return
        # From here on no actor drives the run, so it can be cancelled like other runs at rest.
        self._runs.move(run, Location.QUEUED)
        for _ in range(len(run.current)):
            # The crash left a step that has not given back its slot.
            partition.slots.give()
        run.current.clear()
        await partition.store.durable()
        await _end_attempts(run)
        while True:
            await partition.store.durable()
            status = await _stored(run)
            # The group may be empty, if the crash was right before a record was staged.
            if run.staged is None or run.staged.durable or not run.staged.tables:
                break
        if self._runs.find(run.number) is not run:
            # Its end is durable. The crash may have come before the run was counted as started.
            run.begin()
            return
        if status is not None and status.state.terminal:
            # The end was staged before the crash, and its callbacks were not called.
            run.status = status
            run.begin()
            partition.services.run_ended(run)
            return
        self._runs.remove(run)
        if not run.pending:
            run.pending = True
            self._queues.backlog.enter(queue)
        compensates = run.journal.undoing is not None or run.journal.undoable
        if status is not None and status.cancel_requested and not compensates:
            # The caller of `cancel` waits for the end, and nothing has to be stopped.
            run.status = status
            settle(run, State.CANCELLED)
            self._runs.move(run, Location.QUEUED)


async def _end_attempts(run: "Run") -> None:
    """Remove the start markers that the crash left. An attempt that is not over is recorded as
    interrupted, as after a crash of the process, because an `at_most_once` step must not run
    again."""
    partition, journal = run.partition, run.journal
    for key, raw in await partition.store.scan("begun", prefix=run.record):
        entry = interruption(partition.ledger, key, raw, partition.wall())
        memory = journal.memories.get(entry.ident)
        over = memory is not None and memory.attempts >= entry.attempt
        with partition.together() as group:
            run.delete("begun", key)
            if not over and not journal.has_outcome(entry.ident):
                run.write(entry)
                if partition.tracer is not None:
                    about = run.record, run.submission, run.status.generation, entry
                    group.when_durable(partition.tracer.interrupted, *about)


async def _stored(run: "Run") -> StatusRecord | None:
    try:
        return await run.partition.ledger.status(run.number)
    except StoreCorrupt:
        # The run is set aside when it is loaded again.
        return None
