"""The child of a process committer, for tests of what happens between its commit and its answer."""

import os
import select
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from keyrun.storage import Batch, LmdbStore
from keyrun.storage.committer import ProcessCommitter


def committer_of(store: LmdbStore) -> ProcessCommitter:
    """The process committer of an open store."""
    assert isinstance(store._committer, ProcessCommitter)
    return store._committer


@contextmanager
def stopped(store: LmdbStore) -> Iterator[None]:
    """A block that begins with a stopped child and ends with one that runs."""
    pid = committer_of(store).process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def held_back(store: LmdbStore, batch: Batch | None = None) -> AsyncIterator[None]:
    """Begin to commit what is staged, with `batch`, and stop the child before it can commit. The
    commit is under way in the block, which ends when the commit has returned."""
    async with trio.open_nursery() as nursery:
        with stopped(store):
            group = store.open_group() if batch is None else store.stage(batch)
            nursery.start_soon(store.durable, group)
            await trio.testing.wait_all_tasks_blocked()
            yield


def wait_until_applied(store: LmdbStore) -> None:
    """Let the child commit and answer. No task runs meanwhile, so the answer is not read."""
    committer = committer_of(store)
    os.kill(committer.process.pid, signal.SIGCONT)
    answered, _, _ = select.select([committer._connection], [], [], 30)
    assert answered, "the committer did not answer"
