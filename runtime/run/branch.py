"""A branch of a run: workflow code that runs sequentially and numbers its own calls.

The workflow function is the main branch, and `gather` makes others. A call is identified by its
name and its occurrence within the branch. So branches that run side by side number their calls the
same way each time, whichever is faster.
"""

from typing import TYPE_CHECKING

import trio
from trio.lowlevel import current_task

from keyrun.runtime.errors import WrongTask
from keyrun.runtime.events import emitter
from keyrun.runtime.pass_end import Halt
from keyrun.runtime.records.journal_entry import CallRecord, Ending
from keyrun.runtime.run.empty import NOTHING, writable
from keyrun.runtime.run.expected import END, REMEDY
from keyrun.runtime.run.journal import Journal
from keyrun.runtime.run.run import Run
from keyrun.runtime.run.running_step import running

if TYPE_CHECKING:
    from keyrun.runtime.run.running_step import RunningStep

_NEVER = float("inf")


class Branch:
    """The branch that a call of a workflow belongs to."""

    __slots__ = (
        "_counts",
        "apart",
        "bound",
        "closed",
        "depth",
        "forks",
        "logged",
        "lost",
        "prefix",
        "run",
        "step",
        "task",
    )

    def __init__(self, run: Run, prefix: str = "", *, apart: bool = False) -> None:
        self.run = run
        self.prefix = prefix
        self.apart = apart
        """Whether the branch runs beside others, so that a timeout must not cancel the whole
        run."""
        self.lost = False
        """Whether the journal says that a sibling cut the branch off. Then it starts nothing."""
        self.bound = False
        """Whether the branch is lost, or in a block with a time limit. Then it calls `admit` before
        it starts a call."""
        self.closed = False
        self.depth = 0
        """The number of children that the branch is inside of."""
        self.forks: dict[Branch, None] = NOTHING
        """The branches that it waits for, in the order in which they began."""
        self._counts: dict[str, int] = {}
        self.step: str | None = None
        """The step that it asked for last."""
        self.logged = 0
        """The number of lines of `ctx.log` so far."""
        self.task = current_task()

    @property
    def node(self) -> str | None:
        """Return the node of a graph that the branch belongs to, in its turn, as in `review#2`."""
        return None if self.run.graph is None else self.prefix.partition("/")[0] or None

    def fork(self, prefix: str) -> "Branch":
        """Return a branch that runs beside others, for the current task."""
        fork = Branch(self.run, prefix, apart=True)
        fork.bound = self.bound
        fork.closed = self.closed
        fork.depth = self.depth
        self.add_fork(fork)
        return fork

    def part(self, prefix: str) -> "Branch":
        """Return a branch for a child in the same task. This branch resumes when it has ended."""
        part = Branch(self.run, prefix, apart=self.apart)
        part.bound, part.closed, part.lost = self.bound, self.closed, self.lost
        self.add_fork(part)
        return part

    def add_fork(self, fork: "Branch") -> None:
        """Record that a branch runs beside or inside this one."""
        self.forks = writable(self.forks)
        self.forks[fork] = None

    def leave(self, part: "Branch") -> None:
        """Record that a child has ended."""
        part.closed = True
        del self.forks[part]

    def close(self) -> None:
        """Refuse all further calls of this branch and of its forks."""
        self.closed = True
        resting = self.run.journal.resting
        if resting and (over := resting.pop(self, None)) is not None:
            over.set()
        for fork in self.forks:
            fork.close()

    def active_branches(self) -> "list[Branch]":
        """Return the branches that run: this one, or those that it waits for."""
        found: list[Branch] = []
        for fork in self.forks:
            if not fork.closed:
                found += fork.active_branches()
        return found or [self]

    def count(self, base: str) -> int:
        """Return the occurrence of the next call of this name, from 1."""
        count = self._counts[base] = self._counts.get(base, 0) + 1
        return count

    def name(self, base: str) -> str:
        """Return the identity of the next call of this name."""
        counts = self._counts
        before = counts.get(base)
        if before is None:
            counts[base] = 1
            return self.prefix + base
        counts[base] = before + 1
        return f"{self.prefix}{base}#{before + 1}"

    def ask(self, ident: str, *, at_once: bool = False) -> bool:
        """Compare a call of the code with the journal. Return whether the call is new: then it may
        start when the code has asked for all calls of the journal. Raise if the journal has another
        call first."""
        expected = self.run.journal.expected
        if expected is None:
            return False
        instead = expected.ask(self.prefix, ident[len(self.prefix) :])
        if instead:
            journal = self.run.journal
            if self.open or ident in journal.memories or (at_once and not self.cut_off_next):
                raise self.contradicts(instead, ident)
            # The call was cut off while it waited to begin, and will be cut off again.
            return True
        self.run.journal.call_asked(expected)
        return instead is None

    def ask_at_once(self, ident: str) -> None:
        """Compare a call with the journal that cannot wait, because it only writes an entry."""
        if self.ask(ident, at_once=True):
            self.check_asked(ident)

    def ask_end(self, block: str) -> None:
        """Compare the end of a block with the journal, which says where the block was left."""
        expected = self.run.journal.expected
        if expected is None:
            return
        instead = expected.ask(self.prefix, block[len(self.prefix) :] + END)
        if instead:
            raise self.contradicts(instead, block + END)
        self.run.journal.call_asked(expected)

    def check_place(self, ident: str, memory: CallRecord) -> None:
        """Raise if the code asks for a call outside of the block in which it was cut off."""
        block = memory.block
        if block is not None and block not in self.run.journal.scopes:
            run = self.run
            said = (
                f"the journal says that {ident!r} was cut off in the block {block!r}, but the "
                f"workflow asks for it outside of the block; {REMEDY}"
            )
            raise run.contradicted(said, ident)

    def pass_by(self, label: str) -> None:
        """Compare a `gather` or a child with the journal, which has only the calls inside it."""
        expected = self.run.journal.expected
        if expected is None:
            return
        instead = expected.ask(self.prefix, label)
        if instead == "":
            self.run.journal.call_asked(expected)
        elif instead and expected.has(self.prefix, label):
            raise self.contradicts(instead, self.prefix + label)

    def check_asked(self, then: str) -> None:
        """Raise if the journal has more calls in this branch or around it. `then` is the call that
        the code makes instead."""
        expected = self.run.journal.expected
        if expected is not None and self.open:
            missing = expected.next_around(self.prefix)
            if missing is not None:
                raise self.contradicts(missing, then)

    def check_ended(self) -> None:
        """Raise if the journal has more calls in this branch, whose code has ended."""
        expected = self.run.journal.expected
        if expected is not None and not self.cut_off_next:
            missing = expected.next(self.prefix)
            if missing is not None:
                raise self.contradicts(missing, None)

    async def start_new(self, ident: str) -> None:
        """Return when a new call may start: when the code has asked for all calls of the
        journal."""
        journal = self.run.journal
        self.check_asked(ident)
        if journal.expected is None:
            return
        missing = await journal.all_asked()
        if missing is not None:
            if not self.run.going:
                raise Halt
            raise self.contradicts(missing, ident)
        # A branch beside this one may have failed, or contradicted the journal, meanwhile.
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.run.decision is not None:
            raise Halt
        self.check()

    def contradicts(self, missing: str, asked: str | None) -> Halt:
        """Return the exception to raise if the journal has the call `missing` next, but the code
        asks for `asked`, or has ended if that is None."""
        run = self.run
        said = contradiction_text(run.journal, missing, asked)
        about = missing if asked is None else asked
        return run.contradicted(said, about)

    async def wait_cut_off(self) -> None:
        """Wait until the sibling or the time limit that cut this branch off does so again."""
        run = self.run
        missing = await run.journal.wait_cut_off(self)
        if missing is not None and run.going:
            said = (
                f"the journal has an outcome of {missing!r} next, but the code does not ask for it"
            )
            raise run.contradicted(said, missing)
        await trio.lowlevel.checkpoint_if_cancelled()

    @property
    def open(self) -> bool:
        """Return whether the journal has no entry that cut off this branch or a block around it."""
        around = self.run.journal.around(self.prefix)
        return not self.lost and not any(scope.expires for scope in around)

    @property
    def cut_off_next(self) -> bool:
        """Return whether the journal says that this branch is cut off where it next waits, or how
        it left a block after that. Then a new call writes no entry, because the earlier pass did
        not reach it."""
        around = self.run.journal.around(self.prefix)
        return self.lost or any(
            scope.expires and (scope.memory.left is not None or not scope.fired) for scope in around
        )

    async def admit(self) -> None:
        """Return when a call without a journaled outcome may start."""
        journal = self.run.journal
        around = journal.around(self.prefix)
        while self.lost or any(scope.expires and not scope.fired for scope in around):
            # A branch that an inner block has cut off does not wait for an outer block.
            await trio.lowlevel.checkpoint_if_cancelled()
            await self.wait_cut_off()
            self.check()
        if journal.caught_up() and not any(scope.fired for scope in around):
            for scope in around:
                scope.start_clock(exactly=True)
        self.notice()
        await trio.lowlevel.checkpoint_if_cancelled()

    def notice(self) -> bool:
        """Return whether a time limit cuts this branch off, and write that into the journal when it
        is first noticed. The end of the whole pass, or of this branch, takes precedence."""
        if not self.bound or self.closed or not self.run.going:
            return False
        around = self.run.journal.around(self.prefix)
        fired = any(scope.fired for scope in around)
        for scope in around:
            # If the workflow has shielded itself, the time limit has not taken effect yet.
            if not scope.fired and scope.overdue and _cancelled():
                # An inner block has cut the branch off already.
                scope.end_as(Ending.IN_PASSING if fired else Ending.EXPIRED)
            if scope.fired:
                return True
        return False

    async def yield_to_scope(self, current: "RunningStep") -> None:
        """Cancel an attempt that raised an error when its time limit was over. The error is only
        how it stopped."""
        if self.notice() and _cancelled():
            current.store_memo()
            self.note_cancelled(current)
            await trio.lowlevel.checkpoint_if_cancelled()

    def note_cancelled(self, current: "RunningStep") -> None:
        """Write into the journal that a sibling or a time limit cut an attempt off."""
        self.run.note(current.step, "step_cancelled", f"attempt {current.attempt}")
        emitter.step_cancelled(self.run, current)

    def check(self) -> None:
        """Raise if the branch has ended, or the current task is not the one that it belongs to."""
        run = self.run
        if run.unwinding is not None or (run.deadline < _NEVER and run.scope.cancel_called):
            # A `finally` block of a workflow that is being cancelled must start nothing.
            raise Halt
        if self.closed:
            raise WrongTask(
                "this context is closed, because its run or branch has ended, was cancelled or was "
                "evicted; use the context that the workflow receives in its next call",
                run_id=self.run.run_id,
                key=self.run.key,
            )
        step = running.get()
        if step is not None and step.is_of(run):
            raise WrongTask(
                f"the step {step.step!r} uses the context of its workflow; use current_step() "
                "inside a step, and the context outside",
                run_id=run.run_id,
                key=run.key,
                step=step.step,
            )
        try:
            is_own_task = current_task() is self.task
        except RuntimeError:
            is_own_task = False  # a thread, or a task of asyncio
        if not is_own_task:
            raise WrongTask(
                "a context can be used only in the task that received it; to do several things at "
                "once, pass async functions to ctx.gather(...): each gets a context of its own",
                run_id=self.run.run_id,
                key=self.run.key,
            )


def contradiction_text(journal: Journal, missing: str, asked: str | None) -> str:
    """Return the message for a journal that has the call `missing` next, and code that asks for
    `asked` instead, or has ended if that is None."""
    has = f"{missing!r}, which has begun,"
    if journal.has_outcome(missing):
        has = f"an outcome of {missing!r}"
    elif missing.endswith(END):
        has = repr(missing)
    what = "ended without asking for it" if asked is None else f"asks for {asked!r} instead"
    return f"the journal has {has} next, but the workflow {what}; {REMEDY}"


def _cancelled() -> bool:
    """Return whether the current task would be cancelled if it suspended."""
    return trio.current_effective_deadline() == -_NEVER
