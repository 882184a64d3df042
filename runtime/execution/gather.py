"""Gather: several branches of a run side by side.

When a branch fails, one journal entry says which, and its siblings are cancelled. Driven again
after a crash, the siblings give back what they had, and start nothing that they had not finished.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from keyrun.runtime.internal_errors import is_internal
from keyrun.runtime.pass_end import Halt
from keyrun.runtime.records.journal_entry import CallDone, CallKind, EntryKind
from keyrun.runtime.run.branch import Branch
from keyrun.runtime.run.expected import END, INSIDE
from keyrun.runtime.user_errors import is_cancellation, is_fatal

Start = Callable[[Any, Branch], Awaitable[Any]]


async def gather(branch: Branch, parts: Sequence[Any], start: Start) -> tuple[Any, ...]:
    """Return the results of all `parts` in their order, or raise the error of the first part that
    failed."""
    run = branch.run
    branch.check()
    if run.pending and not branch.apart:
        run.partition.suspension.callback = None
    journal = run.journal
    scope = f"{branch.prefix}g{branch.count('gather()')}"
    ident = f"{scope}()"
    decision = journal.memories.get(ident)
    if journal.expected is not None:
        name = ident[len(branch.prefix) :]
        branch.pass_by(name + INSIDE)
        missing = journal.expected and journal.expected.beyond(scope, len(parts))
        if missing:
            raise branch.contradicts(missing, None)
    results: list[Any] = [None] * len(parts)
    failed: list[BaseException] = []
    left = len(parts)

    async def live(index: int, nursery: trio.Nursery) -> None:
        nonlocal left
        child = branch.fork(f"{scope}.{index}/")
        fails = decision is not None and decision.payload == index
        if branch.lost or (decision is not None and not fails):
            child.lost = child.bound = True
        try:
            if failed:
                return
            results[index] = await start(parts[index], child)
            if journal.expected is not None:
                child.check_ended()
            if fails:
                said = f"the journal says that branch {index} of {scope!r} failed, but it did not"
                raise run.contradicted(said)
        except BaseException as error:
            if is_fatal(error) or (not failed and is_cancellation(error)):
                raise
            if is_internal(error):
                error = run.crash(error)
            while child.lost and not (fails or failed or child.closed or isinstance(error, Halt)):
                await child.wait_cut_off()
            if not failed:
                failed.append(error)
                # First, so that the journal does not wait for branches that are cancelled.
                for sibling in branch.forks:
                    sibling.close()
                if not (branch.closed or isinstance(error, Halt) or run.partition.failure):
                    _decide(branch, ident, index)
                # No code asks for the outcomes of the other branches after the decision.
                journal.abandon(f"{scope}.", halted=isinstance(error, Halt))
                nursery.cancel_scope.cancel()
        finally:
            child.closed = True
            left -= 1
            if left:  # after the last branch, the branch around it resumes
                journal.tasks -= 1
                journal.check_stuck()
                if run.waiting_branches and not failed:
                    # All that is left may wait.
                    run.partition.services.eviction.consider(run)

    if parts:
        journal.tasks += left - 1
        try:
            async with trio.open_nursery() as nursery:
                for index in range(left):
                    nursery.start_soon(live, index, nursery)
        except* trio.Cancelled:
            # The failure of a branch is in the journal, so it comes before any other cancellation.
            if not failed:
                raise
        finally:
            branch.forks.clear()
    if failed:
        journal.abandon(f"{scope}.", halted=isinstance(failed[0], Halt))
        raise failed[0]
    return tuple(results)


def _decide(branch: Branch, ident: str, index: int) -> None:
    """Record which branch failed first, unless the journal has it."""
    run = branch.run
    memory = run.journal.memory(ident)
    if memory.outcome is not None:
        branch.pass_by(ident[len(branch.prefix) :] + END)
        run.journal.deliver(memory)
        return
    memory.call = CallKind.GATHER
    memory.payload = index
    run.write(CallDone(ident, run.partition.wall(), CallKind.GATHER, None, 1, None, index))
    run.journal.settled(ident, memory, EntryKind.DONE)
