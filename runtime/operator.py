"""Operator mode: open a store that no process has open, to act on its runs without running them.

Nothing starts: no run, timer, schedule, retention sweep or hook. The actors of keys do not start,
and the partition is draining from the beginning, so that no queue wakes one. So every run is at
rest, and an operation stages what the next runtime needs to continue: a cancelled run with
compensations is `cancelling`, an evicted run that was sent a signal is awake, and an end is in the
outbox if the store collects ends. It is not known here which workflows the application has, so no
run is quarantined because of that.
"""

import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Any

import trio

from keyrun.actors import Supervision
from keyrun.runtime.definitions.workflow import Registry, Workflow
from keyrun.runtime.host.host import Host
from keyrun.runtime.limits import Limits
from keyrun.runtime.open import as_store, check_on_trio, read_pauses
from keyrun.runtime.options import WhenLocked, check_options
from keyrun.runtime.partition import Partition
from keyrun.runtime.recovery.retention import Retention
from keyrun.runtime.recovery.startup import note_interruptions
from keyrun.runtime.redaction import Redact
from keyrun.runtime.runtime import Runtime
from keyrun.runtime.tuning import Tuning
from keyrun.storage import Store, StoreError
from keyrun.storage.claiming import claimed
from keyrun.storage.payload import PayloadCodec, Transform


@asynccontextmanager
async def open_operator(
    store: "str | os.PathLike[str] | Store",
    *,
    workflows: Iterable[Workflow[Any, Any]] = (),
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    namespace: str = "default",
    when_locked: WhenLocked = "fail",
    lock_timeout: float = 30.0,
    transform: Transform | None = None,
    redact: Redact | None = None,
    wall: Callable[[], float] = time.time,
) -> AsyncIterator[Runtime]:
    """Open a store that no runtime has open, to act on its runs without running them:
    `async with open_operator("state/") as rt: await rt.cancel("order-7")`.

    No run, timer, schedule, retention sweep or hook starts, and no run is quarantined. The next
    `open_runtime` of the application continues: it runs the compensations of a cancelled run, and
    calls the terminal hook for its end. `run.result()` raises an error for a run that has not
    ended.

    - `store`: a path or a `Store`.
    - `workflows`, `limits`: needed only to submit runs and to create schedules: those of the
      application. Without them these calls raise `UnknownWorkflow`.
    - `namespace`, `transform`, `redact`: those of the application.
    - `when_locked`, `lock_timeout`: as in `open_runtime`.
    - `wall`: the wall clock, in seconds since the epoch.
    """
    store = as_store(store, namespace=namespace)
    check_on_trio()
    claim_timeout = lock_timeout if when_locked == "wait" else None
    check_options({"redact": redact})
    registry, tuning = Registry(workflows), Tuning()
    async with claimed(store, namespace, timeout=claim_timeout):
        host = Host(wall=wall, max_concurrent_steps=1, redact=redact, tuning=tuning)
        partition = Partition(
            store,
            host=host,
            registry=registry,
            namespace=namespace,
            limits=limits,
            hook=None,
            hook_timeout=inf,
            retention=Retention(),
            codec=PayloadCodec(transform),
            supervision=Supervision(),
            max_pending=sys.maxsize,
            max_pending_per_key=sys.maxsize,
            backpressure_timeout=0,
            evict_after=inf,
            tuning=tuning,
        )
        try:
            async with _serve(partition):
                yield Runtime(partition)
        finally:
            host.subscribers.close()


@asynccontextmanager
async def _serve(partition: Partition) -> AsyncIterator[None]:
    """Read what operations have to know, and close the partition when the block is left. The mark
    of the last open stays: it says whether the owner before was killed."""
    state = partition.state
    state.operator = state.draining = state.stopped = True
    state.start = _start_nothing
    state.store.when_failed(partition.fail)
    state.commits.on_commit.append(state.counts.stage)
    try:
        await state.read_counter()
        await state.counts.recover()
        await read_pauses(partition)
        if partition.instances is not None:
            await partition.instances.recover()
        # A run that an operation ends must not keep start markers.
        await note_interruptions(state, partition.tuning)
        await partition.delays.recover()
        await partition.signals.recover()
        await partition.children.recover()
        await partition.outbox.open(hook=False)
        if partition.outbox.converting:
            await partition.outbox.convert()
        state.recovered = True
        state.counted.set()
        with partition.block:
            yield
        with trio.CancelScope(shield=True), suppress(StoreError):
            if state.failure is None:
                await state.store.durable()
    finally:
        partition.close()
        state.commits.on_commit.remove(state.counts.stage)
    if state.failure is not None:
        raise state.failure


def _start_nothing(task: object) -> None:
    """Start no background task."""
