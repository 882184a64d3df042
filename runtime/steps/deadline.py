"""The deadline of an attempt."""

from logging import INFO
from math import inf
from typing import TYPE_CHECKING

import trio

from keyrun.runtime.events import emitter
from keyrun.runtime.events.logs import log

if TYPE_CHECKING:
    from keyrun.runtime.run.run import Run
    from keyrun.runtime.steps.current_step import CurrentStep


def start_clock(run: "Run", current: "CurrentStep") -> float:
    """Start the timeout of an attempt. Return the deadline of the attempt: the end of its own
    timeout, or the deadline of the run if that is earlier."""
    now = trio.current_time()
    until = current.until = now + current.timeout
    if until <= run.deadline:
        return until
    if until < inf:
        left = max(0.0, run.deadline - now)
        said = f"{current.timeout:g} s is longer than the {left:.3f} s until the run's deadline"
        run.note(current.step, "timeout_clamped", said)
        if run.workflow.kind == "machine":
            run.journal.turn_entries += (run.journal.next - 1,)
        if run.partition.feed is not None:
            emitter.clamped(run.partition.feed, run, current, said)
        message = f"the timeout of step {current.step!r}, {said}"
        log(run, "timeout_clamped", message, current=current, level=INFO)
    return run.deadline
