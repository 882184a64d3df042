"""The log of a run: the logger `ctx.log`.

Workflow code runs again after a restart, an eviction or a timeout, but a line that it logs should
appear once. So a line is dropped in three cases:

- The journal has a call that the code has not asked for yet in this pass. An earlier pass made that
  call after this line, so it logged the line.
- An earlier pass in this process got further in the same branch. The lines of a branch are counted.
- The code is being unwound and will be called again, or this is a dry run.

A step is not called again once it has its outcome, so the lines of its function are not dropped.
"""

import logging
from typing import TYPE_CHECKING, Any

from keyrun.runtime.events.logs import fields, log
from keyrun.runtime.pass_end import Unwind
from keyrun.runtime.run.branch import Branch
from keyrun.runtime.run.empty import writable
from keyrun.runtime.run.running_step import running

if TYPE_CHECKING:
    from keyrun.runtime.run.running_step import RunningStep

LINES = logging.getLogger("keyrun.workflow")
"""Where the lines of workflows go."""

_COMES_BACK = frozenset({Unwind.AGAIN, Unwind.LEAVE, Unwind.EVICT})


class RunLog(logging.LoggerAdapter[logging.Logger]):
    """Log lines of one branch of a run. Each record has the run, key, workflow and step as
    attributes."""

    def __init__(self, branch: Branch) -> None:
        super().__init__(LINES)
        self._branch = branch

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line, unless it was logged before the workflow was called again.

        An exception of a handler does not reach the workflow: a replay, which logs nothing, would
        not raise it."""
        if self._step() is None and self._is_repeat():
            return
        # The place in the code is that of the workflow, not this one.
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        try:
            super().log(level, msg, *args, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            said = f"ctx.log could not log {msg!r}: {type(error).__name__}"
            log(self._branch.run, "log_failed", said, level=logging.ERROR)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Add the fields of the run to those of the line."""
        branch, step = self._branch, self._step()
        where = (branch.step, None) if step is None else (step.step, step.attempt)
        about = fields(None, *branch.run.submission.about, *where)
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **about}
        return msg, kwargs

    def _step(self) -> "RunningStep | None":
        """Return the step whose function logs the line, if the workflow does not log it."""
        step = running.get()
        return step if step is not None and step.is_of(self._branch.run) else None

    def _is_repeat(self) -> bool:
        """Return whether the next line of the branch was logged before, or will be logged later."""
        branch, run = self._branch, self._branch.run
        if run.is_dry_run or run.unwinding in _COMES_BACK:
            return True
        branch.logged += 1
        if branch.logged <= run.logged.get(branch.prefix, 0):
            return True
        run.logged = writable(run.logged)
        run.logged[branch.prefix] = branch.logged
        journal = run.journal
        return journal.is_replaying() or (
            journal.expected is not None and journal.expected.left > 0
        )
