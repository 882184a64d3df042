"""A branch of a run: one line of workflow code with a numbering of its own.

The workflow itself is the main branch; `gather` makes others. A call is identified by its name and
its occurrence within the branch, so branches that run side by side number their calls the same
way each time, whoever is faster.
"""

from typing import TYPE_CHECKING

import trio

from keyrun.runtime.errors import NonDeterminism, WrongTask
from keyrun.runtime.events import emitter
from keyrun.runtime.run.contradiction import REMEDY, halt
from keyrun.runtime.run.expected import END
from keyrun.runtime.run.journal import CallRecord, Ending, Journal
from keyrun.runtime.run.run import Run
from keyrun.runtime.run.running_step import running
from keyrun.runtime.unwinding import Halt

if TYPE_CHECKING:
    from keyrun.runtime.run.running_step import RunningStep

_NEVER = float("inf")
current_task = trio.lowlevel.current_task  # every step asks for it


class Branch:
    """Where a call of a workflow belongs."""

    __slots__ = (
        "_counts",
        "apart",
        "bound",
        "closed",
        "depth",
        "forks",
        "lost",
        "prefix",
        "run",
        "task",
    )

    def __init__(self, run: Run, prefix: str = "", *, apart: bool = False) -> None:
        self.run = run
        self.prefix = prefix
        self.apart = apart
        """Whether it runs beside others, so that cancelling the run would be too much."""
        self.lost = False
        """Whether the journal says that a sibling ended it: it starts nothing any more."""
        self.bound = False
        """Whether it is lost, or in a block with a time limit: it asks before it starts a thing."""
        self.closed = False
        self.depth = 0
        """How many children it is inside of."""
        self.forks: dict[Branch, None] = {}
        """What runs beside or inside it, in the order in which that began."""
        self._counts: dict[str, int] = {}
        self.task = trio.lowlevel.current_task()

    def fork(self, prefix: str) -> "Branch":
        """A branch beside others, for the current task."""
        fork = Branch(self.run, prefix, apart=True)
        fork.bound = self.bound
        fork.closed = self.closed
        fork.depth = self.depth
        self.forks[fork] = None
        return fork

    def part(self, prefix: str) -> "Branch":
        """A branch in the same task, which goes on when that one has ended: a child."""
        part = Branch(self.run, prefix, apart=self.apart)
        part.bound, part.closed, part.lost = self.bound, self.closed, self.lost
        self.forks[part] = None
        return part

    def leave(self, part: "Branch") -> None:
        """A child has ended."""
        part.closed = True
        del self.forks[part]

    def close(self) -> None:
        """From now on it, and what was forked from it, refuses everything."""
        self.closed = True
        resting = self.run.journal.resting
        if resting and (over := resting.pop(self, None)) is not None:
            over.set()
        for fork in self.forks:
            fork.close()

    def lines(self) -> "list[Branch]":
        """The branches in which something goes on: it, or what it waits for."""
        forks = [line for fork in self.forks if not fork.closed for line in fork.lines()]
        return forks or [self]

    def count(self, base: str) -> int:
        """Which occurrence of this name the next call is, from 1."""
        count = self._counts[base] = self._counts.get(base, 0) + 1
        return count

    def name(self, base: str) -> str:
        """The identity of the next call of this name."""
        counts = self._counts
        before = counts.get(base)
        if before is None:
            counts[base] = 1
            return self.prefix + base
        counts[base] = before + 1
        return f"{self.prefix}{base}#{before + 1}"

    def ask(self, ident: str, *, at_once: bool = False) -> bool:
        """The code asks for a call. Says whether the journal does not have it: then it is to start
        when all that the journal has was asked for. Raises if something else comes first."""
        expected = self.run.journal.expected
        if expected is None:
            return False
        instead = expected.ask(self.prefix, ident[len(self.prefix) :])
        if instead:
            journal = self.run.journal
            if self.open or ident in journal.memories or (at_once and not self.cut_off_next):
                raise self.contradicts(instead, ident)
            # It had to wait and was cut off before it had begun, and will be again.
            return True
        self.run.journal.asked(expected)
        return instead is None

    def ask_at_once(self, ident: str) -> None:
        """The code asks for what cannot wait, and has no effect but an entry."""
        if self.ask(ident, at_once=True):
            self.check_asked(ident)

    def ask_end(self, block: str) -> None:
        """The code leaves a block, and the journal says where it was left."""
        expected = self.run.journal.expected
        if expected is None:
            return
        instead = expected.ask(self.prefix, block[len(self.prefix) :] + END)
        if instead:
            raise self.contradicts(instead, block + END)
        self.run.journal.asked(expected)

    def check_place(self, ident: str, memory: CallRecord) -> None:
        """Raise if a call that was cut off in a block is asked for behind it."""
        block = memory.block
        if block is not None and block not in self.run.journal.scopes:
            run = self.run
            said = (
                f"the journal says that {ident!r} was cut off in the block {block!r}, and the "
                f"workflow asks for it outside of the block; {REMEDY}"
            )
            raise halt(run, NonDeterminism(said, run_id=run.run_id, key=run.key, step=ident))

    def pass_by(self, label: str) -> None:
        """The code comes to something that is only known by what is inside of it."""
        expected = self.run.journal.expected
        if expected is None:
            return
        instead = expected.ask(self.prefix, label)
        if instead == "":
            self.run.journal.asked(expected)
        elif instead and expected.has(self.prefix, label):
            raise self.contradicts(instead, self.prefix + label)

    def check_asked(self, then: str) -> None:
        """Raise if the journal has more, here or around: the code does something else `then`."""
        expected = self.run.journal.expected
        if expected is not None and self.open:
            missing = expected.next_around(self.prefix)
            if missing is not None:
                raise self.contradicts(missing, then)

    def check_ended(self) -> None:
        """The code of this branch has ended: raise if the journal has more in it."""
        expected = self.run.journal.expected
        if expected is not None and not self.cut_off_next:
            missing = expected.next(self.prefix)
            if missing is not None:
                raise self.contradicts(missing, None)

    async def start_new(self, ident: str) -> None:
        """Return when a call may start that the journal does not have."""
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
        """What to raise where the journal has one call, and the code asks for another, or for
        nothing more if that is None."""
        run = self.run
        said = contradicted(run.journal, missing, asked)
        about = missing if asked is None else asked
        return halt(run, NonDeterminism(said, run_id=run.run_id, key=run.key, step=about))

    async def rest(self) -> None:
        """Do nothing until what ended this branch, a sibling or a time limit, does so again."""
        run = self.run
        missing = await run.journal.rest(self)
        if missing is not None and run.going:
            said = f"the journal has an outcome of {missing!r} next, and nothing asks for it"
            raise halt(run, NonDeterminism(said, run_id=run.run_id, key=run.key, step=missing))
        await trio.lowlevel.checkpoint_if_cancelled()

    @property
    def open(self) -> bool:
        """Whether the journal knows nothing that ended this branch, or a block that it is in."""
        around = self.run.journal.around(self.prefix)
        return not self.lost and not any(scope.expires for scope in around)

    @property
    def cut_off_next(self) -> bool:
        """Whether the journal says that this branch is cut off where it next waits, or how it left
        a block after that. What the journal does not have leaves no entry then: the code did not
        get there."""
        around = self.run.journal.around(self.prefix)
        return self.lost or any(
            scope.expires and (scope.memory.left is not None or not scope.fired) for scope in around
        )

    async def admit(self) -> None:
        """Return when something may be started that the journal has no outcome of."""
        journal = self.run.journal
        around = journal.around(self.prefix)
        while self.lost or any(scope.expires and not scope.fired for scope in around):
            # What an inner one has cut off does not wait for an outer one.
            await trio.lowlevel.checkpoint_if_cancelled()
            await self.rest()
            self.check()
        if journal.caught_up() and not any(scope.fired for scope in around):
            for scope in around:
                scope.start_clock(exactly=True)
        self.notice()
        await trio.lowlevel.checkpoint_if_cancelled()

    def notice(self) -> bool:
        """Whether a time limit cuts this branch off; that is written down when it is first seen.
        What ends the whole pass, or just this branch, comes first."""
        if not self.bound or self.closed or not self.run.going:
            return False
        around = self.run.journal.around(self.prefix)
        fired = any(scope.fired for scope in around)
        for scope in around:
            # A shield of the workflow's own holds it up: then it has not been seen yet.
            if not scope.fired and scope.overdue and _cancelled():
                # What an inner one has cut off already is not cut off by this one.
                scope.end_as(Ending.IN_PASSING if fired else Ending.EXPIRED)
            if scope.fired:
                return True
        return False

    async def yield_to_scope(self, current: "RunningStep") -> None:
        """An attempt raised an error: if its time limit was up, that is how it stopped."""
        if self.notice() and _cancelled():
            current.store_memo()
            self.note_cancelled(current)
            await trio.lowlevel.checkpoint_if_cancelled()

    def note_cancelled(self, current: "RunningStep") -> None:
        """Write down that an attempt was cut off, by a sibling or by a time limit."""
        self.run.note(current.step, "step_cancelled", f"attempt {current.attempt}")
        emitter.step_cancelled(self.run, current)

    def check(self) -> None:
        """Raise unless this is the task, and the time, that the branch belongs to."""
        run = self.run
        if run.unwinding is not None or (run.deadline < _NEVER and run.scope.cancel_called):
            # A `finally` of a workflow that is being cancelled does nothing by mistake.
            raise Halt
        if self.closed:
            raise WrongTask(
                "this context has ended: the run was driven to its end, cancelled, or left memory",
                run_id=self.run.run_id,
                key=self.run.key,
            )
        step = running.get()
        if step is not None and step.is_of(run):
            raise WrongTask(
                f"the step {step.step!r} uses the context of its workflow; a step is one unit that "
                "is remembered as a whole: use current_step() in it, and the context outside",
                run_id=run.run_id,
                key=run.key,
                step=step.step,
            )
        if current_task() is not self.task:
            raise WrongTask(
                "a context can only be used by the task it was given to; to do several things at "
                "once, pass async functions to ctx.gather(...): each gets a context of its own",
                run_id=self.run.run_id,
                key=self.run.key,
            )


def contradicted(journal: Journal, missing: str, asked: str | None) -> str:
    """What to say where the journal has one call next, and the code asks for another, or ends."""
    has = f"{missing!r}, which has begun,"
    if journal.has_outcome(missing):
        has = f"an outcome of {missing!r}"
    elif missing.endswith(END):
        has = repr(missing)
    what = "ended without asking for it" if asked is None else f"asks for {asked!r} instead"
    return f"the journal has {has} next, and the workflow {what}; {REMEDY}"


def _cancelled() -> bool:
    """Whether the current task would be cancelled if it waited for something."""
    return trio.current_effective_deadline() == -_NEVER
