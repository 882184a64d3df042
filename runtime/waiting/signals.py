"""Signals: send signals and decisions to runs, before or while the runs wait for them.

A signal is stored when it arrives. The run that takes it removes it and writes it into its journal
in one commit. If a branch waits already, that is the commit that stores the signal. A signal wakes
an evicted run that waits for it.
"""

from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import trio

from keyrun.runtime.errors import GateNotWaiting, RunEnded, UnknownRun
from keyrun.runtime.records.journal_entry import GATE, decode
from keyrun.runtime.records.operation import Write
from keyrun.runtime.records.submission import StatusRecord, Submission
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.run.inbox import Signal, waits_on
from keyrun.runtime.run.journal import Journal
from keyrun.runtime.run.run import Run
from keyrun.runtime.values import State
from keyrun.storage import StoreCorrupt

if TYPE_CHECKING:
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.runs import RunTable
    from keyrun.runtime.waiting.eviction import EvictedQueues, Evictor
    from keyrun.storage.group import Group


class Delivery(StrEnum):
    """Tell how a run received a signal."""

    DELIVERED = "delivered"
    """The run was waiting for the signal."""
    BUFFERED = "buffered"
    """The store keeps the signal until the run waits for it."""


class Signals:
    """Sends signals, and knows the signals that are not durable yet."""

    def __init__(
        self,
        partition: "PartitionState",
        runs: "RunTable",
        queues: "EvictedQueues",
        eviction: "Evictor",
    ) -> None:
        self._partition = partition
        self._runs = runs
        self._queues = queues
        self._eviction = eviction
        self.used = False
        """Whether any run may have been sent a signal."""
        self._staged: dict[int, dict[int, Signal]] = {}
        """Signals that the store does not show yet, by the number of the run, in order."""
        self._replaced: dict[int, set[int]] = {}
        """Removed signals that the store still shows, by the number of the run."""
        self._ids: dict[tuple[int, str], Group] = {}

    async def recover(self) -> None:
        """Find out whether the store has signals."""
        prefix = self._partition.ledger.prefix
        self.used = bool(await self._partition.store.scan("signals", prefix=prefix, limit=1))

    def staged(self, number: int) -> bool:
        """Return whether a signal to a run is being committed."""
        return number in self._staged

    async def recall(self, run: Run) -> None:
        """Put the stored signals of a run into its inbox."""
        for signal in await self.stored(run.number):
            run.open_inbox.put(signal, run.journal)

    async def stored(self, number: int) -> list[Signal]:
        """Return the signals that a run has not taken, in order, including staged ones."""
        partition = self._partition
        found: dict[int, Signal] = {}
        for key, fields in await partition.ledger.scan("signals", partition.ledger.number(number)):
            channel, payload, at, signal_id = fields
            sequence = int.from_bytes(key[-8:], "big")
            found[sequence] = Signal(
                sequence=sequence, channel=channel, payload=payload, at=at, signal_id=signal_id
            )
        found.update(self._staged.get(number, {}))
        for sequence in self._replaced.get(number, ()):
            found.pop(sequence, None)
        return [found[sequence] for sequence in sorted(found)]

    async def send(
        self,
        run_id: str,
        channel: str,
        payload: Any,
        *,
        replace: bool = False,
        signal_id: str | None = None,
        only_to: int | None = None,
        handle: object = None,
    ) -> Delivery:
        """Send a signal, and return when it is durable. With `only_to`, raise `UnknownRun` if
        another run than this number has the id by now. `handle` is the answer of the operation, if
        that is `submit_or_signal`."""
        partition = self._partition
        try:
            number, submission = await self._find(run_id)
        except RunEnded:
            if signal_id is None or not await self._has_taken(run_id, signal_id, only_to):
                raise
            return Delivery.DELIVERED
        if only_to not in (None, number):
            raise _unknown(run_id)
        if signal_id is not None and await self._repeats(number, signal_id):
            waiting = any(one.signal_id == signal_id for one in await self.stored(number))
            return Delivery.BUFFERED if waiting else Delivery.DELIVERED
        delivered = await self._wake(number, submission, channel)
        ended = (await self._status(number)).state.terminal
        if ended or self._runs.changing(number) is not None:
            # While the run was being woken, another operation began, or the run ended.
            return await self.send(
                run_id,
                channel,
                payload,
                replace=replace,
                signal_id=signal_id,
                only_to=only_to,
                handle=handle,
            )
        # Read last, so that signals which arrived while the run was being woken are replaced, too.
        sent = await self.stored(number) if replace else []
        old = [one for one in sent if one.channel == channel]
        # Nothing is awaited between here and the end of the staging.
        run = self._runs.live(number)
        with partition.together() as group:
            for one in old:
                self._remove(group, number, one, run)
            signal = self.stage(group, number, channel, payload, signal_id)
            if partition.performing:
                partition.applied(Write.SUBMIT_OR_SIGNAL, handle, submission)
                partition.applied(Write.SIGNAL, Delivery.BUFFERED, submission)
        taken = run is not None and run.deliver(signal)
        if run is None:
            self._forget_submission(number, submission)
            delivered = delivered or await self._is_awaited(number, channel)
            delivered = delivered and not await self._is_quarantined(number, submission)
        elif taken:
            delivered = True
        else:
            # The run is replaying its journal, and has not reached its wait yet.
            delivered = run.open_inbox.is_awaited(signal, run.journal)
            delivered = delivered and not await self._is_quarantined(number, submission)
        if delivered and partition.performing:
            partition.applied(Write.SIGNAL, Delivery.DELIVERED, submission)
        if taken:
            # Usually the waiting branch resumes before the commit begins, so that the commit also
            # has the journal entry of the branch.
            await trio.lowlevel.checkpoint()
        await partition.store.durable(group)
        await self._trace(number, submission, f"signal {channel}")
        return Delivery.DELIVERED if delivered else Delivery.BUFFERED

    def begin_with(
        self,
        group: "Group",
        submission: Submission,
        channel: str,
        payload: Any,
        signal_id: str | None,
    ) -> None:
        """Stage a signal in the group that admits its run."""
        self.stage(group, submission.number, channel, payload, signal_id)
        # This runs after the run was put into its queue, and before the actor looks at the queue.
        group.when_durable(self._forget_submission, submission.number, submission)

    def _forget_submission(self, number: int, submission: Submission) -> None:
        """Let a run be loaded from the store, because its signals are there, and not made from the
        submission in memory."""
        queue = self._queues.get(submission.key)
        if queue is not None:
            queue.forget_submission(number)

    async def _find(self, run_id: str) -> tuple[int, Submission]:
        """Return the run to send a signal to. Raise `UnknownRun` or `RunEnded`."""
        partition = self._partition
        partition.check_caller()
        await partition.counted.wait()
        number = await self._runs.number_of(run_id)
        submission = None if number is None else await partition.ledger.submission(number)
        if number is None or submission is None:
            raise _unknown(run_id)
        known = self._runs.find(number)
        if known is not None and known.status.state.terminal:
            # An end that is only staged has not happened yet.
            await known.gate()
        status = await self._status(number)
        if status.state.terminal:
            raise RunEnded(
                f"the run {run_id!r} has ended ({status.state}) and receives nothing any more",
                run_id=run_id,
                key=submission.key,
            )
        return number, submission

    async def _status(self, number: int) -> StatusRecord:
        partition = self._partition
        known = self._runs.find(number)
        if known is not None:
            return known.status
        return await partition.ledger.status(number) or StatusRecord(place=number)

    async def _is_quarantined(self, number: int, submission: Submission) -> bool:
        """Return whether a run is quarantined, or will be as soon as it is loaded."""
        known = self._partition.registry.find(submission.workflow, submission.version)
        missing = known is None and not self._partition.operator
        return missing or (await self._status(number)).state is State.QUARANTINED

    async def _repeats(self, number: int, signal_id: str) -> bool:
        """Return whether a signal with this id was sent before. If that signal is being committed,
        wait for the commit."""
        committing = self._ids.get((number, signal_id))
        if committing is not None:
            await committing.wait()
            return True
        partition = self._partition
        return (
            await partition.store.get("sent", partition.ledger.step(number, signal_id)) is not None
        )

    async def _has_taken(self, run_id: str, signal_id: str, only_to: int | None) -> bool:
        """Return whether a run that has ended took the signal with this id, so that a repeat is
        answered as before."""
        number = await self._partition.ledger.find(run_id)
        if number is None or only_to not in (None, number):
            return False
        left = [one.signal_id for one in await self.stored(number)]
        return signal_id not in left and await self._repeats(number, signal_id)

    async def _wake(self, number: int, submission: Submission, channel: str) -> bool:
        """Wake an evicted run that waits for this. Return whether it did."""
        status = await self._status(number)
        wait = status.evicted_wait
        if wait is None or channel not in wait.channels or self._runs.live(number):
            return False
        eviction = self._eviction
        woken = await eviction.wake(number, submission.key, status.place, wait.due)
        return woken is not None

    def stage(
        self,
        group: "Group",
        number: int,
        channel: str,
        payload: Any,
        signal_id: str | None = None,
    ) -> Signal:
        """Stage a signal to a run."""
        partition = self._partition
        self.used = True
        signal = Signal(
            sequence=partition.take_number(),
            channel=channel,
            payload=payload,
            at=partition.wall(),
            signal_id=signal_id,
        )
        key = partition.ledger.sequenced(number, signal.sequence)
        group.put("signals", key, sealed("signals", key, channel, payload, signal.at, signal_id))
        if signal_id is not None:
            name = partition.ledger.step(number, signal_id)
            group.put("sent", name, sealed("sent", name, signal_id))
            self._ids[number, signal_id] = group
        self._staged.setdefault(number, {})[signal.sequence] = signal
        group.when_dropped(self._forget_staged, number, signal)
        group.when_durable(self._forget_staged, number, signal)
        return signal

    def _forget_staged(self, number: int, signal: Signal) -> None:
        """Forget a signal that is durable, or that was not staged after all."""
        if signal.signal_id is not None:
            self._ids.pop((number, signal.signal_id), None)
        staged = self._staged.get(number)
        if staged is not None:
            staged.pop(signal.sequence, None)
            if not staged:
                del self._staged[number]

    def _remove(self, group: "Group", number: int, signal: Signal, run: Run | None) -> None:
        inbox = None if run is None else run.inbox
        if inbox is not None and signal not in inbox.signals:
            return  # a branch has taken it
        if inbox is not None:
            at = inbox.signals.index(signal)
            del inbox.signals[at]
            group.when_dropped(inbox.signals.insert, at, signal)
        self._unstage(group, number, signal)
        self._replaced.setdefault(number, set()).add(signal.sequence)
        group.when_durable(self._removed, number, signal.sequence)
        group.when_dropped(self._removed, number, signal.sequence)

    def _removed(self, number: int, sequence: int) -> None:
        replaced = self._replaced.get(number, set())
        replaced.discard(sequence)
        if not replaced:
            self._replaced.pop(number, None)

    def take(self, run: Run, signal: Signal) -> None:
        """Stage that a run has taken a signal. Its journal entry goes into the same group."""
        group = run.staged = self._partition.commits.open_group()
        self._unstage(group, run.number, signal)

    def discard(self, run: Run, channel: str) -> bool:
        """Stage the removal of the signals to a run on a channel. Return whether there were any."""
        sent = [] if run.inbox is None else run.inbox.signals
        unwanted = [signal for signal in sent if signal.channel == channel]
        for signal in unwanted:
            sent.remove(signal)
            self.take(run, signal)
        return bool(unwanted)

    def _unstage(self, group: "Group", number: int, signal: Signal) -> None:
        group.delete("signals", self._partition.ledger.sequenced(number, signal.sequence))
        staged = self._staged.get(number)
        if staged is not None:
            staged.pop(signal.sequence, None)

    async def decide(self, run_id: str, gate: str, decision: list[Any]) -> None:
        """Settle an approval gate that the run waits at."""
        channel = GATE + gate
        number, submission = await self._find(run_id)
        await self._check_gate(number, submission, gate)
        partition = self._partition
        await self._wake(number, submission, channel)
        if await self._is_decided(number, channel):
            raise _not_waiting(submission, gate, "the gate was decided already")
        # Nothing is awaited between here and the end of the staging.
        run = self._runs.live(number)
        with partition.together() as group:
            signal = self.stage(group, number, channel, decision)
            partition.applied(Write.APPROVE if decision[0] else Write.REJECT, None, submission)
        if run is None:
            self._forget_submission(number, submission)
        else:
            run.deliver(signal)
        await partition.store.durable(group)
        await self._trace(number, submission, f"{'approve' if decision[0] else 'reject'} {gate}")

    async def _trace(self, number: int, submission: Submission, name: str) -> None:
        """Export a span about what was sent, if tracing is on."""
        tracer = self._partition.tracer
        if tracer is not None:
            generation = (await self._status(number)).generation
            tracer.sent(self._partition.ledger.number(number), submission, generation, name)

    async def _is_awaited(self, number: int, channel: str) -> bool:
        """Return whether a run that is not in memory waits for the last signal of a channel."""
        journal = await self._journal(number)
        sent = [one for one in await self.stored(number) if one.channel == channel]
        return len(sent) <= waits_on(journal, channel)

    async def _journal(self, number: int) -> Journal:
        """Return the journal of a run, also if that is not in memory."""
        partition, journal = self._partition, Journal()
        run = self._runs.find(number)
        if run is not None:
            return run.journal
        with suppress(StoreCorrupt):
            for key, fields in await partition.ledger.scan(
                "journal", partition.ledger.number(number)
            ):
                journal.fold(int.from_bytes(key[-4:], "big"), decode(fields))
        return journal

    async def _is_decided(self, number: int, channel: str) -> bool:
        """Return whether a channel has a signal that was not taken."""
        run = self._runs.live(number)
        if run is not None:
            return run.inbox is not None and run.inbox.has(channel)
        return any(one.channel == channel for one in await self.stored(number))

    async def _check_gate(self, number: int, submission: Submission, gate: str) -> None:
        journal = await self._journal(number)
        open_ = sorted(
            memory.channel.removeprefix(GATE)
            for memory in journal.memories.values()
            if memory.rank and memory.outcome is None and (memory.channel or "").startswith(GATE)
            if memory.channel is not None
        )
        if gate not in open_:
            at = f"it waits at {', '.join(map(repr, open_))}" if open_ else "it waits at no gate"
            raise _not_waiting(submission, gate, at)


def _unknown(run_id: str) -> UnknownRun:
    return UnknownRun(f"no run has the id {run_id!r}, or it was forgotten", run_id=run_id)


def _not_waiting(submission: Submission, gate: str, why: str) -> GateNotWaiting:
    return GateNotWaiting(
        f"the run {submission.run_id!r} does not wait at the gate {gate!r}: {why}",
        run_id=submission.run_id,
        key=submission.key,
        step=gate,
    )
