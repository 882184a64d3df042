"""Receive: let a workflow wait for a signal, for the decision at an approval gate, or for a
child."""

from typing import TYPE_CHECKING, Any
from zlib import crc32

import attrs
import trio

from keyrun.actors import checks
from keyrun.runtime.errors import ApprovalRejected, SignalTimeout
from keyrun.runtime.records.journal_entry import (
    GATE,
    CallDone,
    CallKind,
    CallRecord,
    EntryKind,
    Timer,
    WaitBegan,
)
from keyrun.runtime.run.wait import Wait
from keyrun.runtime.steps.attempts import ready
from keyrun.runtime.steps.execution import given_back, read_outcome
from keyrun.runtime.texts import check_text

if TYPE_CHECKING:
    from keyrun.runtime.run.branch import Branch
    from keyrun.runtime.run.run import Run

MAX_NAME = 200


@attrs.frozen(kw_only=True)
class Approval:
    """Describe the approval that `ctx.approval` returns."""

    gate: str
    """The name of the gate."""
    by: str
    """The name of the person or service that approved."""
    comment: str
    """The comment, or an empty string."""
    at: float
    """When the approval was given, in seconds since the epoch."""


def check_channel(name: object, what: str = "name") -> str:
    """Return `name` if it is a valid name of a signal. Raise ValueError otherwise."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"{what} must be a non-empty string, got {name!r}")
    size = len(check_text(name, what).encode())
    if size > MAX_NAME:
        raise ValueError(f"{what} must have at most {MAX_NAME} bytes as UTF-8, got {size}")
    if name.startswith("keyrun."):
        raise ValueError(f"{what} must not start with 'keyrun.', which is reserved, got {name!r}")
    return name


def check_gate(gate: object) -> str:
    """Return `gate` if it is a valid name of an approval gate. Raise ValueError otherwise."""
    checked = check_channel(gate, "gate")
    if any(mark in checked for mark in "#/()"):
        raise ValueError(f"gate must not contain '#', '/', '(' or ')', got {gate!r}")
    return checked


def check_timeout(timeout: float | None) -> float | None:
    """Return `timeout` as a float, or None. Raise ValueError if it is not valid."""
    if timeout is None:
        return None
    if not checks.is_number(timeout) or not timeout >= 0:
        raise ValueError(f"timeout must be at least 0 seconds, or None, got {timeout!r}")
    return float(timeout)


async def wait_signal(branch: "Branch", name: str, timeout: float | None) -> Any:
    """Return the payload of the next signal of this name. Raise `SignalTimeout` if none arrives in
    time."""
    label = f"signal {name}"
    ident = branch.name("wait_signal()")
    payload = await receive(branch, ident, CallKind.SIGNAL, name, label, timeout)
    if payload is None:
        raise _timed_out(branch.run, ident, f"no signal {name!r} arrived", timeout)
    return read_outcome(branch.run, ident, payload[0])


async def wait_approval(
    branch: "Branch", gate: str, timeout: float | None, named: str | None = None
) -> Approval:
    """Return the approval at a gate. Raise `ApprovalRejected` or `SignalTimeout`. `named` is the
    public name of the gate, if it differs from its name in the workflow."""
    ident = branch.name(f"approval:{gate}()")
    if named is None:
        named = ident.replace("approval:", "", 1).replace("()", "", 1)
    label = f"approval {named}"
    payload = await receive(branch, ident, CallKind.APPROVAL, GATE + named, label, timeout)
    if payload is None:
        raise _timed_out(branch.run, ident, f"no decision at the gate {named!r}", timeout)
    (approved, by, comment), at, _ = payload
    if not approved:
        said = f": {comment}" if comment else ""
        raise ApprovalRejected(
            f"{by} rejected at the gate {named!r}{said}",
            by=by,
            comment=comment,
            run_id=branch.run.run_id,
            key=branch.run.key,
            step=named,
        )
    return Approval(gate=named, by=by, comment=comment, at=at)


def _timed_out(run: "Run", ident: str, what: str, timeout: float | None) -> SignalTimeout:
    return SignalTimeout(
        f"{what} within {timeout or 0:g} s", run_id=run.run_id, key=run.key, step=ident
    )


async def receive(
    branch: "Branch",
    ident: str,
    call: CallKind,
    channel: str,
    label: str,
    timeout: float | None,
    *,
    asked: bool = False,
) -> list[Any] | None:
    """Return the payload, the time and the id of the next signal on a channel. None if the wait
    times out. `asked` says that the call was already compared with the journal."""
    run = branch.run
    branch.check()
    is_new = not asked and branch.ask(ident)
    memory = run.journal.memory(ident)
    mark = crc32(channel.encode())
    if memory.fingerprint is not None and (memory.call, memory.fingerprint) != (call, mark):
        said = f"the journal has another call as {ident!r}, but the code calls {label}"
        raise run.contradicted(said, ident)
    if memory.outcome is not None:
        await given_back(run, ident, memory)
        return _taken(memory)
    branch.check_place(ident, memory)
    inbox = run.open_inbox
    try:
        arrived = memory.rank and branch.open and inbox.offers(channel)
        if branch.bound and not (arrived and run.journal.around(ident)):
            # Otherwise the signal arrived during the wait, so the run takes it, even if the time
            # limit of a block has passed while the evicted run was loaded.
            await branch.admit()
        if is_new:
            await branch.start_new(ident)
        if not memory.rank:
            limit = None
            if timeout is not None:
                limit = Timer(run.partition.steady() + timeout, float(timeout))
            memory.call, memory.channel, memory.fingerprint = call, channel, mark
            memory.wait_limit = limit
            run.write(WaitBegan(ident, run.partition.wall(), call, channel, limit))
            memory.rank = run.journal.next - 1
        now = run.partition.steady()
        limit = memory.wait_limit
        wait = Wait(label, ident, timer=limit, now=now, channel=channel, rank=memory.rank)
        inbox.enter(ident, wait, run.journal)
        if wait.signal is None:
            await run.wait(wait)
        if run.is_stopped():
            await ready(run)
        signal, wait.signal = wait.signal, None
        memory.payload = [channel, None]
        at = run.partition.wall()
        if signal is None:
            run.write(CallDone(ident, at, call, mark, 1, None, memory.payload))
        else:
            memory.payload = [channel, signal.payload, signal.at, signal.signal_id]
            with run.partition.together():
                run.partition.services.signals.take(run, signal)
                run.write(CallDone(ident, at, call, mark, 1, None, memory.payload))
        run.journal.settled(ident, memory, EntryKind.DONE)
    except trio.Cancelled:
        if memory.rank and run.going:
            # A sibling or a time limit ended the wait, so no signal is kept for it.
            memory.rank = 0
            run.note(ident, "wait_cancelled", label)
            inbox.match(run.journal)
        raise
    finally:
        inbox.leave(ident, run.journal)
    return _taken(memory)


def _taken(memory: CallRecord) -> list[Any] | None:
    _, *taken = memory.payload
    return taken if len(taken) > 1 else None
