"""Keys: what each ordering key is doing, from the index of places and the run whose turn it is."""

import attrs
import trio

from keyrun.runtime.inspect.statuses import StatusReader
from keyrun.runtime.records.checks import check_key
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.tables import Sleep, at_place
from keyrun.runtime.values import QuarantineCause, State

PAGE = 500


@attrs.frozen(kw_only=True)
class KeyStatus:
    """What a key is doing: how many runs have not ended, and the one whose turn it is, with what it
    waits for and until when at most. Runs that let others go ahead while they sleep do not count as
    that; if there are no others, `head` is empty and the key is waiting.

    It is quarantined if that run is, or if Keyrun itself failed to serve the key; `reason` says
    why, and `quarantine_cause` for programs. The latter is known in memory only, so a reader in
    another process does not see it."""

    key: str
    runs: int
    head: str
    state: State
    paused: bool
    quarantined: bool
    reason: str | None
    waiting_on: str | None = None
    waiting_until: float | None = None
    quarantine_cause: QuarantineCause | None = None


@attrs.define
class _Line:
    """A key in the index: the number of the run whose turn it is, and how many runs it has."""

    key: str
    first: int | None
    runs: int


async def keys(
    statuses: StatusReader,
    *,
    key: str | None = None,
    quarantined: bool | None = None,
    limit: int = 100,
    after: str | None = None,
) -> list[KeyStatus]:
    """Keys that have runs which have not ended, or are quarantined, in the order of the index; or
    `key` alone."""
    ledger = statuses.ledger
    for given in (key, after):
        if given is not None:
            check_key(given)
    found: list[KeyStatus] = []
    start = b"" if after is None else _end(ledger.key_prefix(after))
    while len(found) < limit:
        with ledger.store.view():
            lines, end = await _page(statuses, key, start)
            if quarantined:
                lines = [line for line in lines if await _may_be_quarantined(statuses, line)]
        for line in lines:
            status = await _status(statuses, line)
            if quarantined in (None, status.quarantined):
                found.append(status)
                if len(found) == limit:
                    return found
        if end is None:
            break
        start = end
        await trio.lowlevel.checkpoint()
    return found


async def _page(
    statuses: StatusReader, only: str | None, start: bytes
) -> tuple[list[_Line], bytes | None]:
    """The next lines of the index, whole ones, and where the following begin; or `only` this."""
    ledger = statuses.ledger
    prefix = ledger.prefix if only is None else ledger.key_prefix(only)
    lines: dict[str, _Line] = {}
    last: _Line | None = None
    rows = await ledger.store.scan("queue", prefix=prefix, start=start, limit=PAGE)
    for record, raw in rows:
        try:
            key, place = ledger.split_place(record)
        except DAMAGE:
            statuses.unreadable += 1
            continue
        if last is None or last.key != key:
            last = lines[key] = _Line(key, None, 0)
        last.runs += 1
        if last.first is None:
            there = at_place(record, raw, place)
            last.first = None if there.sleep is Sleep.YIELDS else there.number
    end = None
    if len(rows) == PAGE:
        end = rows[-1][0] + b"\0"
        if last is not None:
            rest = _end(ledger.key_prefix(last.key))
            last.runs += await _count(statuses, end, rest)
            if last.first is None:
                last.first = await ledger.head(last.key)
            end = max(end, rest)
    for key in statuses.quarantined:
        at = ledger.key_prefix(key)
        if key not in lines and only in (None, key) and start <= at and (not end or at < end):
            lines[key] = _Line(key, None, 0)
    return sorted(lines.values(), key=lambda line: ledger.key_prefix(line.key)), end


async def _count(statuses: StatusReader, start: bytes, end: bytes) -> int:
    total = 0
    pages = statuses.ledger.pages("queue", start=start, stop=end, size=10 * PAGE)
    while rows := await pages.next():
        total += len(rows)
    return total


def _end(line: bytes) -> bytes:
    """What comes after all places of a line."""
    return line + b"\xff" * 9


async def _may_be_quarantined(statuses: StatusReader, line: _Line) -> bool:
    """A quick look, since there may be a million keys that are not."""
    if line.first is None or line.key in statuses.quarantined:
        return line.key in statuses.quarantined
    try:
        standing = await statuses.ledger.standing(line.first)
        await statuses.ledger.submission(line.first)
    except DAMAGE:
        return True
    return standing is not None and standing.state is State.QUARANTINED


async def _status(statuses: StatusReader, line: _Line) -> KeyStatus:
    ledger = statuses.ledger
    head = None if line.first is None else await statuses.status(line.first, result=False)
    held = statuses.quarantined.get(line.key)
    reason: str | None = None
    cause: QuarantineCause | None = None
    if held is not None:
        state, reason, cause = State.QUARANTINED, held.reason, QuarantineCause.KEY
    elif head is None:
        state = State.WAITING if line.runs else State.PENDING
    else:
        state, cause = head.state, head.quarantine_cause
        reason = head.reason if state is State.QUARANTINED else None
    return KeyStatus(
        key=line.key,
        runs=line.runs,
        head="" if head is None else head.run_id,
        state=state,
        paused=await ledger.store.get("held", ledger.name(line.key)) is not None,
        quarantined=state is State.QUARANTINED,
        reason=reason,
        waiting_on=None if head is None or held is not None else head.waiting_on,
        waiting_until=None if head is None else head.waiting_until,
        quarantine_cause=cause,
    )
