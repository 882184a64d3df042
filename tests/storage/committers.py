"""The child of a process committer, for tests of what happens between its commit and its answer."""

import os
import select
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from keyrun.storage import Batch, LmdbStore
from keyrun.storage.committer import ProcessCommitter


def committer_of(store: LmdbStore) -> ProcessCommitter:
    """The process committer of an open store."""
    assert isinstance(store._committer, ProcessCommitter)
    return store._committer


@asynccontextmanager
async def held_back(store: LmdbStore, batch: Batch | None = None) -> AsyncIterator[None]:
    """Begin to commit what is staged, with `batch`, and stop the child before it can commit. The
    block goes on while the commit is under way, and ends when the commit has returned."""
    child = committer_of(store).process
    os.kill(child.pid, signal.SIGSTOP)
    try:
        async with trio.open_nursery() as nursery:
            group = store.open_group() if batch is None else store.stage(batch)
            nursery.start_soon(store.durable, group)
            await trio.testing.wait_all_tasks_blocked()
            yield
            os.kill(child.pid, signal.SIGCONT)
    finally:
        os.kill(child.pid, signal.SIGCONT)


def wait_until_applied(store: LmdbStore) -> None:
    """Let the child commit and answer. No task runs meanwhile, so the answer is not read."""
    committer = committer_of(store)
    os.kill(committer.process.pid, signal.SIGCONT)
    answered, _, _ = select.select([committer._connection], [], [], 30)
    assert answered, "the committer did not answer"
