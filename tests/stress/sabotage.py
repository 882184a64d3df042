"""A child that breaks one promise on purpose: python -m tests.stress.sabotage NAME.

Each sabotage takes away one thing that Keyrun does, as a mistake in it might, and then goes on as
any other child. A fixture that does not notice is worth nothing.
"""

import sys
from collections.abc import Callable
from typing import Any

import trio

from keyrun import Runtime
from keyrun.runtime.queue.delays import Delays
from keyrun.runtime.queue.key_queue import KeyQueue
from keyrun.runtime.queue.outbox import Outbox
from keyrun.runtime.records.journal_entry import CallDone, Interrupted, JournalEntry
from keyrun.runtime.records.submission import StatusRecord, Submission
from keyrun.runtime.run.journal import Journal
from keyrun.runtime.steps import outcome
from keyrun.runtime.steps.current_step import CurrentStep
from keyrun.storage.group import Group
from keyrun.storage.group_commit import GroupCommit
from keyrun.stress import child


def gate() -> None:
    """What is staged is said to be durable, and committed a while later."""

    async def early(self: GroupCommit, staged: Group) -> None:
        tables = staged.tables
        staged.settle(durable=True)
        await trio.sleep(0.3)
        await self._commit(tables)
        self._publish(tables)

    replace(GroupCommit, "_commit_group", early)


def order() -> None:
    """What a restart finds of a key is put in line backwards."""
    found = KeyQueue.found

    def backwards(self: KeyQueue, *place: Any) -> None:
        found(self, *place)
        self.window.insert(0, self.window.pop())

    replace(KeyQueue, "found", backwards)


def ceiling() -> None:
    """One attempt too many."""
    judge = outcome._judge

    def lenient(*arguments: Any) -> Any:
        failure, again = judge(*arguments)
        return failure, again or (failure.attempt == 3 and failure.kind == "step_failed")

    replace(outcome, "_judge", lenient)


def replay() -> None:
    """The journal forgets what was finished."""
    fold = Journal.fold

    def forgetful(self: Journal, sequence: int, entry: JournalEntry) -> None:
        if isinstance(entry, CallDone):
            self.next = sequence + 1
        else:
            fold(self, sequence, entry)

    replace(Journal, "fold", forgetful)


def hook() -> None:
    """Some ends do not reach the outbox."""
    put = Outbox.put

    def lossy(self: Outbox, group: Group, submission: Submission, status: Any) -> None:
        if submission.number % 5:
            put(self, group, submission, status)

    replace(Outbox, "put", lossy)


def cancel() -> None:
    """A cancel is answered and not done."""

    async def idle(self: Runtime, run_id: str) -> bool:
        return True

    replace(Runtime, "cancel", idle)


def pause() -> None:
    """A pause is answered and not done."""

    async def idle(self: Runtime, run_id: str) -> bool:
        return True

    replace(Runtime, "pause", idle)


def state() -> None:
    """What steps make of their key's state is not stored."""
    replace(CurrentStep, "seal_state", lambda self: None)


def delay() -> None:
    """Runs that are to begin later begin at once."""
    admit = Delays._admit

    def hasty(self: Delays, submission: Submission, due: float) -> None:
        admit(self, submission, due)
        self._heap[:] = [(0.0, number) for _, number in self._heap]
        self._loop.wake()

    replace(Delays, "_admit", hasty)


def once() -> None:
    """What a crash cut off is forgotten, so that what may run once runs again."""
    fold = Journal.fold

    def forgetful(self: Journal, sequence: int, entry: JournalEntry) -> None:
        if isinstance(entry, Interrupted):
            self.next = sequence + 1
        else:
            fold(self, sequence, entry)

    replace(Journal, "fold", forgetful)


def redrive() -> None:
    """A redrive is answered and not done."""

    async def idle(self: Runtime, run_id: str) -> int:
        return 2

    replace(Runtime, "redrive", idle)


def deadline() -> None:
    """The time of a run begins anew with each process."""
    read = StatusRecord.read

    def forgetful(fields: list[Any]) -> StatusRecord:
        status = read(fields)
        if not status.state.terminal:
            status.started_at = status.deadline = None
        return status

    replace(StatusRecord, "read", staticmethod(forgetful))


def replace(owner: Any, name: str, by: Callable[..., Any]) -> None:
    """Put something else in the place of what is there."""
    assert hasattr(owner, name), f"there is no {name} to be sabotaged any more"
    setattr(owner, name, by)


if __name__ == "__main__":
    kept = (gate, order, ceiling, replay, hook, cancel, pause, state)
    known = {each.__name__: each for each in (*kept, delay, once, redrive, deadline)}
    known[sys.argv[1]]()
    child.main()
