"""A branch of a run: one line of workflow code with a numbering of its own.

The workflow itself is the main branch; `gather` makes others. A call is identified by its name and
its occurrence within the branch, so branches that run side by side number their calls the same
way each time, whoever is faster.
"""

import trio

from keyrun.runtime.current import running
from keyrun.runtime.errors import WrongTask
from keyrun.runtime.run import Halt, Run

_NEVER = float("inf")


class Branch:
    """Where a call of a workflow belongs."""

    __slots__ = ("_counts", "_task", "apart", "closed", "forks", "lost", "prefix", "run")

    def __init__(self, run: Run, prefix: str = "", *, apart: bool = False) -> None:
        self.run = run
        self.prefix = prefix
        self.apart = apart
        """Whether it runs beside others, so that cancelling the run would be too much."""
        self.lost = False
        """Whether the journal says that a sibling ended it: it starts nothing any more."""
        self.closed = False
        self.forks: list[Branch] = []
        self._counts: dict[str, int] = {}
        self._task = trio.lowlevel.current_task()

    def fork(self, prefix: str) -> "Branch":
        """A branch beside others, for the current task."""
        fork = Branch(self.run, prefix, apart=True)
        self.forks.append(fork)
        return fork

    def close(self) -> None:
        """From now on it, and what was forked from it, refuses everything."""
        self.closed = True
        for fork in self.forks:
            fork.close()

    def count(self, base: str) -> int:
        """Which occurrence of this name the next call is, from 1."""
        count = self._counts[base] = self._counts.get(base, 0) + 1
        return count

    def name(self, base: str) -> str:
        """The identity of the next call of this name."""
        counts = self._counts
        if base in counts:
            return f"{self.prefix}{base}#{self.count(base)}"
        counts[base] = 1
        return self.prefix + base

    async def rest(self) -> None:
        """Do nothing until the sibling that ended this branch does so again."""
        journal = self.run.journal
        journal.idle += 1
        journal.look()
        try:
            await trio.sleep_forever()
        finally:
            journal.idle -= 1

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
        if trio.lowlevel.current_task() is not self._task:
            raise WrongTask(
                "a context can only be used by the task it was given to; to do several things at "
                "once, pass async functions to ctx.gather(...): each gets a context of its own",
                run_id=self.run.run_id,
                key=self.run.key,
            )
