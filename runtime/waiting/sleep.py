"""Durable timers: a wait whose end is written down before it begins."""

from keyrun.runtime.records.journal_entry import CallDone, Timer, TimerSet
from keyrun.runtime.run.branch import Branch
from keyrun.runtime.run.journal import CallKind, Entry
from keyrun.runtime.run.wait import TIMER, Wait
from keyrun.runtime.steps.attempts import ready
from keyrun.runtime.steps.execution import given_back


def check_seconds(seconds: float) -> None:
    """Raise unless a wait can be so long."""
    if not isinstance(seconds, int | float):
        raise TypeError(f"seconds must be a number, got {seconds!r}")
    if not seconds >= 0:
        raise ValueError(f"seconds must be at least 0, got {seconds!r}")


async def sleep(branch: Branch, seconds: float) -> None:
    """Wait until `seconds` after this was first reached, also across restarts. A clock that jumps
    back does not make the wait longer than it was meant to be."""
    run = branch.run
    branch.check()
    ident = branch.name("sleep()")
    is_new = branch.ask(ident)
    memory = run.journal.memory(ident)
    if memory.outcome is not None:
        await given_back(run, ident, memory)
        return
    branch.check_place(ident, memory)
    if branch.bound:
        await branch.admit()
    if is_new:
        await branch.start_new(ident)
    if memory.sleep_timer is None:
        memory.call = CallKind.TIMER
        memory.sleep_timer = Timer(run.partition.steady() + seconds, float(seconds))
        run.write(TimerSet(ident, run.partition.wall(), memory.sleep_timer))
    await run.wait(Wait(TIMER, timer=memory.sleep_timer, now=run.partition.steady()))
    await ready(run)
    run.write(CallDone(ident, run.partition.wall(), CallKind.TIMER, None, 1, None, None))
    run.journal.settled(ident, memory, Entry.DONE)
