"""Start-up: resume the unfinished runs of a store that is opened.

1. A crash interrupted the steps that have a start marker and no outcome. An entry about it is
   written into the journals of their runs, and the start markers are removed, in one commit per
   page. After a crash in the middle, the next open finds only the markers that are left.
2. The index of places is read page by page, and the queue of each key is woken. A run is loaded
   when it is at the head of its key. Of keys that an evicted run holds, only the names are in
   memory.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import trio

from keyrun.runtime.logger import logger
from keyrun.runtime.records.journal_entry import Interrupted
from keyrun.runtime.records.tables import Evicted, Ledger, at_place
from keyrun.runtime.run.loading import read_together
from keyrun.storage import StoreCorrupt
from keyrun.storage.record import seal, unseal

if TYPE_CHECKING:
    from keyrun.runtime.host.tracing import RunTracer
    from keyrun.runtime.operations.damaged_runs import DamagedRuns
    from keyrun.runtime.queue.key_queue import KeyQueue
    from keyrun.runtime.queue.key_queues import KeyQueues
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.tuning import Tuning


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Disable Python's garbage collector in a block. Loading runs makes many objects and no
    garbage, and the collector would take longer than the loading. No other task runs meanwhile, if
    the reads of the store do not suspend."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


async def note_interruptions(partition: "PartitionState", tuning: "Tuning") -> None:
    """Write an entry into the journal for each step that a crash cut off."""
    ledger, store = partition.ledger, partition.store
    reported = bool(await store.scan("reports", prefix=ledger.prefix, limit=1))
    while True:
        rows = await store.scan("begun", prefix=ledger.prefix, limit=tuning.startup_markers)
        if not rows:
            return
        at = partition.wall()
        numbers = list(dict.fromkeys(ledger.split_number(key)[0] for key, _ in rows))
        journals = [ledger.number(number) for number in numbers]
        last = await store.scan_each("journal", journals, limit=1, reverse=True)
        following = {
            number: 1 + (int.from_bytes(entries[0][0][-4:], "big") if entries else 0)
            for number, entries in zip(numbers, last, strict=True)
        }
        group = store.open_group()
        journal, markers = group.table("journal"), group.table("begun")
        entries: list[tuple[int, Interrupted]] = []
        for key, raw in rows:
            number = ledger.split_number(key)[0]
            entry = ledger.entry(number, following[number])
            following[number] += 1
            interrupted = interruption(ledger, key, raw, at)
            journal[entry] = seal("journal", entry, interrupted.encode())
            entries.append((number, interrupted))
            markers[key] = None
            if reported:
                group.table("reports")[key] = None
        if partition.metrics is not None:
            partition.metrics.interruptions += len(rows)
        await store.durable()
        if partition.tracer is not None:
            await _trace(partition.tracer, ledger, entries)


async def _trace(
    tracer: "RunTracer", ledger: Ledger, entries: "list[tuple[int, Interrupted]]"
) -> None:
    """Export the spans of the attempts that a crash cut off."""
    for number, entry in entries:
        with suppress(StoreCorrupt):
            submission = await ledger.submission(number)
            status = await ledger.status(number)
            if submission is not None:
                generation = 1 if status is None else status.generation
                tracer.interrupted(ledger.number(number), submission, generation, entry)


def interruption(ledger: Ledger, key: bytes, raw: bytes, at: float) -> Interrupted:
    """Return the journal entry about the attempt with a start marker."""
    try:
        ident, attempt, begun, alone = unseal("begun", key, raw)
    except StoreCorrupt:
        # The key of the record has the number of the run and the name of the step.
        step = ledger.split_number(key)[1]
        ident, attempt, begun, alone = step.decode(errors="replace"), 0, None, False
    return Interrupted(ident, at, attempt, alone, begun)


async def _wake(
    partition: "PartitionState", queues: "KeyQueues", found: "list[KeyQueue]", together: int
) -> None:
    """Wake key queues. The head runs of those that the concurrency gate admits are read together,
    which is much faster than if their actors read them one by one."""
    for at in range(0, len(found), together):
        part = found[at : at + together]
        firsts = [queue for queue in part if queue.unloaded][: queues.gate.room]
        heads = [(queue.key, queue.window[0][1]) for queue in firsts]
        read = await read_together(partition, heads) if heads else []
        stored = dict(zip(firsts, read, strict=False))
        for queue in part:
            was_idle = not queue.awake
            queue.wake()
            first = stored.get(queue)
            if first is not None and was_idle and queue.awake:
                # The actor of the key reads the run again and handles the error.
                with suppress(Exception):
                    queue.take_stored(first)


async def wake_keys(
    partition: "PartitionState", queues: "KeyQueues", damaged_runs: "DamagedRuns", tuning: "Tuning"
) -> None:
    """Wake every key that has unfinished runs. If a place in a queue is damaged, set aside the
    runs that have no place."""
    ledger = partition.ledger
    any_damaged = False
    queue: KeyQueue | None = None
    places = ledger.pages("queue", size=tuning.startup_page)
    while True:
        with _undisturbed():
            found: dict[KeyQueue, None] = {}
            for key, raw in await places.next():
                try:
                    ordering_key, place = ledger.split_place(key)
                except StoreCorrupt as error:
                    logger.error(
                        "a queue record is damaged, and its run is unknown: %s",
                        error,
                        extra={"event": "queue_damaged"},
                    )
                    any_damaged = True
                    continue
                number, priority, evicted, damaged = at_place(key, raw, place)
                any_damaged = any_damaged or damaged
                if place >= partition.opened_at:
                    # A run that got its place since was counted and woken by its own admission.
                    if damaged:
                        partition.store.open_group().delete("queue", key)
                    continue
                if not queues.backlog.count_place(key):
                    continue
                if evicted is not Evicted.NO:
                    if evicted is Evicted.HOLDS:
                        queues.found_evicted(ordering_key, number)
                    continue
                if partition.metrics is not None:
                    partition.metrics.entered(number)
                if queues.is_held_by_evicted(ordering_key):
                    queues.enter(ordering_key)
                    continue
                if queues.gate.find(ordering_key, priority):
                    continue
                if queue is not None and queue.key != ordering_key:
                    queue.listed()
                # This is another object than before if its runs have been driven meanwhile.
                queue = queues.of(ordering_key)
                queues.backlog.enter(queue)
                queue.found(place, number, priority)
                found[queue] = None
            await _wake(partition, queues, list(found), tuning.startup_heads)
        if not places.more:
            if queue is not None:
                queue.listed()
            partition.recovered = True
            partition.counted.set()
            if any_damaged:
                await damaged_runs.set_aside_unplaced()
            return
        # Let the woken keys run, so that their workers are free for the next page.
        for _ in range(tuning.startup_passes):
            await trio.lowlevel.checkpoint()
