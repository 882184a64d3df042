"""Approvals: the gates that wait for a decision of a person, over all unfinished runs.

Only unfinished runs are read, from the index of the queues. A run in memory knows its gates. An
evicted run has them in its status record. For a live run of another process, the journal says at
which gates it waits.
"""

import attrs

from keyrun.actors import checks
from keyrun.runtime.inspect.pages import cursor_of, look, place_after
from keyrun.runtime.inspect.slices import JOURNAL, PageBudget
from keyrun.runtime.inspect.statuses import StatusReader
from keyrun.runtime.records.checks import check_key
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.journal_entry import GATE, CallDone, CallKind, Note, WaitBegan, decode
from keyrun.runtime.records.submission import Submission
from keyrun.runtime.records.tables import Ledger, at_place
from keyrun.runtime.texts import check_text
from keyrun.runtime.values import State
from keyrun.storage.record import unseal

_SLICE = 100
"""Journal entries that are read at once, from the end."""
_MORE = " more"
"""The end of a text that does not name all that a run waits for."""


@attrs.frozen(kw_only=True)
class OpenGate:
    """Describe an approval gate that waits for a decision. `rt.approve` and `rt.reject` decide."""

    run_id: str
    """The id of the run."""
    key: str
    """The ordering key of the run."""
    workflow: str
    """The name of the workflow."""
    version: int
    """The version of the workflow."""
    gate: str
    """The name of the gate."""
    since: float
    """When the run began to wait, in seconds since the epoch."""
    deadline: float | None
    """When the wait times out. None if never."""


@attrs.frozen(kw_only=True)
class ApprovalPage:
    """Hold one page of the approval gates that wait for a decision."""

    approvals: tuple[OpenGate, ...]
    """The gates. There may be fewer than `limit`, or none, although there are more pages."""
    cursor: str | None
    """Pass it to get the next page. None if this is the last page."""
    examined: int
    """The number of unfinished runs that Keyrun looked at for this page."""


async def find_approvals(
    statuses: StatusReader,
    *,
    key: str | None = None,
    workflow: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> ApprovalPage:
    """Return one page of the gates that wait for a decision."""
    checks.count("limit", limit, 1)
    if workflow is not None:
        check_text(workflow, "workflow")
    ledger = statuses.ledger

    async def read(record: bytes, raw: bytes, slices: PageBudget) -> list[OpenGate]:
        try:
            number = at_place(record, raw, ledger.split_place(record)[1]).number
            waits = await _waits(statuses, number, slices)
            if not waits:
                return []
            live = statuses.live(number)
            about = await ledger.submission(number) if live is None else live.submission
        except DAMAGE:
            statuses.unreadable += 1
            return []
        slices.left -= 1
        if about is None or (workflow is not None and about.workflow != workflow):
            return []
        waits.sort(key=lambda wait: (wait.at, wait.channel))
        return [_gate(about, wait) for wait in waits]

    looked = await look(
        ledger,
        "queue",
        read,
        limit=limit,
        prefix=None if key is None else ledger.key_prefix(check_key(key)),
        after=place_after(ledger, "approvals", cursor),
    )
    return ApprovalPage(
        approvals=tuple(looked.found),
        cursor=cursor_of(ledger, "approvals", looked),
        examined=looked.examined,
    )


def _gate(about: Submission, wait: WaitBegan) -> OpenGate:
    return OpenGate(
        run_id=about.run_id,
        key=about.key,
        workflow=about.workflow,
        version=about.version,
        gate=wait.channel.removeprefix(GATE),
        since=wait.at,
        deadline=None if wait.limit is None else wait.limit.due,
    )


async def _waits(statuses: StatusReader, number: int, slices: PageBudget) -> list[WaitBegan]:
    """Return the entries with which the open waits of a run for decisions began."""
    ledger, live = statuses.ledger, statuses.live(number)
    if live is not None:
        waits = [each for each in live.waits if each.signal is None and _is_gate(each.channel)]
        slices.left -= len(waits)
        entries = [await ledger.get("journal", ledger.entry(number, each.rank)) for each in waits]
        # A wait that is not durable yet has not begun.
        began = [decode(fields) for fields in entries if fields is not None]
        return [entry for entry in began if isinstance(entry, WaitBegan)]
    slices.left -= 2
    status = await ledger.current_status(number)
    if status is None or status.state is not State.WAITING or status.cancel_requested:
        return []
    wait, text = status.evicted_wait, status.waiting_on or ""
    if wait is not None:
        channels = {channel for channel in wait.channels if _is_gate(channel)}
        return await _began(ledger, number, channels, slices) if channels else []
    if "approval " in text or text.endswith(_MORE):
        return await _began(ledger, number, None, slices)
    return []


def _is_gate(channel: str | None) -> bool:
    return channel is not None and channel.startswith(GATE)


async def _began(
    ledger: Ledger, number: int, channels: set[str] | None, slices: PageBudget
) -> list[WaitBegan]:
    """Return the last waits at these gates, or at all gates, that have not ended. The journal is
    read from its end, up to a number of entries."""
    found: dict[str, WaitBegan] = {}
    over: set[str] = set()
    stop, left = None, JOURNAL
    while left > 0 and (channels is None or channels - {one.channel for one in found.values()}):
        rows = await ledger.store.scan(
            "journal",
            prefix=ledger.number(number),
            stop=stop,
            limit=min(_SLICE, left),
            reverse=True,
        )
        for record, raw in rows:
            entry = decode(unseal("journal", record, raw))
            match entry:
                case CallDone(ident=ident, call=CallKind.APPROVAL):
                    over.add(ident)
                case Note(ident=ident, what="wait_cancelled"):
                    over.add(ident)
                case WaitBegan(ident=ident, call=CallKind.APPROVAL):
                    if ident not in over and ident not in found:
                        found[ident] = entry
        slices.left -= len(rows)
        left -= len(rows)
        if len(rows) < _SLICE:
            break
        stop = rows[-1][0]
        await slices.pause()
    known = found.values()
    return [each for each in known if channels is None or each.channel in channels]
