"""Sleep: let a workflow wait for a time. The end of the wait is durable before it begins."""

from keyrun.runtime.records.journal_entry import CallDone, CallKind, EntryKind, Timer, TimerSet
from keyrun.runtime.run.branch import Branch
from keyrun.runtime.run.wait import TIMER, Wait
from keyrun.runtime.steps.attempts import ready
from keyrun.runtime.steps.execution import given_back


async def sleep(branch: Branch, seconds: float) -> None:
    """Wait until `seconds` seconds after the first call, also across restarts. A wall clock that is
    set back does not make the wait longer."""
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
    await run.wait(Wait(TIMER, ident, timer=memory.sleep_timer, now=run.partition.steady()))
    await ready(run)
    run.write(CallDone(ident, run.partition.wall(), CallKind.TIMER, None, 1, None, None))
    run.journal.settled(ident, memory, EntryKind.DONE)
