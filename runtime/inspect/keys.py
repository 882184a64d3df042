"""Keys: what each ordering key is doing, and the entities that have a state under it.

The status of a key comes from the records of `queue` and from the run at the head.
"""

import attrs

from keyrun.actors import checks
from keyrun.runtime.inspect.pages import Looked, cursor_of, place_after
from keyrun.runtime.inspect.slices import RUN, PageBudget
from keyrun.runtime.inspect.statuses import StatusReader
from keyrun.runtime.records.checks import check_key
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.tables import Evicted, at_place
from keyrun.runtime.values import QuarantineCause, State
from keyrun.storage.record import unseal

PAGE = 200
"""Records in the largest slice."""
COUNTED = 1000
"""Runs of one key that a page of `find_keys` counts, and up to a slice more."""


@attrs.frozen(kw_only=True)
class KeyStatus:
    """Describe a key that has unfinished runs."""

    key: str
    """The ordering key."""
    runs: int
    """The number of unfinished runs."""
    head: str
    """The id of the run at the head of the queue. Runs that yield the key while they wait are not
    in the queue; if there are no other runs, `head` is an empty string."""
    state: State
    """The state of the run at the head, or `waiting` if there is none."""
    paused: bool
    """Whether the key is paused."""
    quarantined: bool
    """Whether the run at the head is quarantined, or Keyrun's own code failed for the key. Another
    process does not see the second case."""
    reason: str | None
    """Why the key is quarantined, as text."""
    waiting_on: str | None = None
    """The timer, signal, gate or child that the run at the head waits for, as text."""
    waiting_until: float | None = None
    """When that wait ends at the latest, in seconds since the epoch. None if no time is set."""
    quarantine_cause: QuarantineCause | None = None
    """Why the key is quarantined, as a code."""
    more_runs: bool = False
    """Whether the key has more unfinished runs than `runs`. `find_keys` counts at most about 1,000
    runs of a key."""


@attrs.frozen(kw_only=True)
class KeyPage:
    """Hold one page of a listing of keys."""

    keys: tuple[KeyStatus, ...]
    """The keys that match. There may be fewer than `limit`, or none, although there are more
    pages."""
    cursor: str | None
    """Pass it to get the next page. None if this is the last page."""
    examined: int
    """The number of keys that Keyrun looked at for this page."""


@attrs.frozen(kw_only=True)
class EntityStatus:
    """Describe the state of an entity under a key. An empty state is not listed."""

    key: str
    """The ordering key."""
    name: str
    """The name of the entity."""
    size: int | None
    """The size of the state in bytes, or None if the record is damaged."""


@attrs.define
class _KeyQueue:
    """A key in the index: the number of its head run, and the number of its runs."""

    key: str
    first: int | None
    runs: int
    rest: bytes | None = None
    """The record at which the places begin that are not counted."""
    more: bool = False
    """Whether there are more runs than `runs`."""


async def keys(
    statuses: StatusReader,
    *,
    key: str | None = None,
    quarantined: bool | None = None,
    limit: int = 100,
    after: str | None = None,
) -> list[KeyStatus]:
    """Return the keys that have unfinished runs or are quarantined, in the order of the index, or
    only `key`, from as many pages as this takes."""
    checks.count("limit", limit, 1)
    found: list[KeyStatus] = []
    start = b"" if after is None else _end(statuses.ledger.key_prefix(check_key(after)))
    more = True
    while more and len(found) < limit:
        looked = await _look(statuses, key, quarantined, limit - len(found), start, None)
        found += looked.found
        start, more = looked.last, looked.more
    return found


async def find_keys(
    statuses: StatusReader,
    *,
    key: str | None = None,
    quarantined: bool | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> KeyPage:
    """Return one page of these keys."""
    checks.count("limit", limit, 1)
    ledger = statuses.ledger
    start = place_after(ledger, "keys", cursor)
    looked = await _look(statuses, key, quarantined, limit, start, COUNTED)
    return KeyPage(
        keys=tuple(looked.found),
        cursor=cursor_of(ledger, "keys", looked),
        examined=looked.examined,
    )


async def _look(
    statuses: StatusReader,
    key: str | None,
    quarantined: bool | None,
    limit: int,
    start: bytes,
    counted: int | None,
) -> Looked[KeyStatus]:
    """Look at keys from a record of the index on, in slices, until `limit` match or the page has
    read enough. Count at most `counted` runs of a key."""
    if key is not None:
        check_key(key)
    ledger, slices = statuses.ledger, PageBudget(first=PAGE, most=PAGE)
    looked: Looked[KeyStatus] = Looked(last=start)
    while looked.more and len(looked.found) < limit and slices.left > 0:
        slices.begin()
        with ledger.store.view():
            queues, end = await _page(statuses, key, looked.last)
        slices.left -= min(PAGE, sum(queue.runs for queue in queues))
        looked.more = end is not None
        await slices.end()
        for at, queue in enumerate(queues, 1):
            if queue.rest is not None:
                await _count(statuses, queue, counted, slices)
            looked.examined += 1
            looked.last = _end(ledger.key_prefix(queue.key))
            if quarantined:
                slices.left -= RUN // 2
            if not quarantined or await _may_be_quarantined(statuses, queue):
                slices.left -= RUN
                status = await _status(statuses, queue, slices)
                if quarantined in (None, status.quarantined):
                    looked.found.append(status)
            if len(looked.found) == limit or slices.left <= 0:
                looked.more = looked.more or at < len(queues)
                return looked
            await slices.pause()
        if end is not None:
            looked.last = max(end, looked.last)
    return looked


async def _page(
    statuses: StatusReader, only: str | None, start: bytes
) -> tuple[list[_KeyQueue], bytes | None]:
    """Return the next key queues of the index, and the record key at which the following queues
    begin. With `only`, return the queue of this key."""
    ledger = statuses.ledger
    prefix = ledger.prefix if only is None else ledger.key_prefix(only)
    queues: dict[str, _KeyQueue] = {}
    last: _KeyQueue | None = None
    rows = await ledger.store.scan("queue", prefix=prefix, start=start, limit=PAGE)
    for record, raw in rows:
        try:
            key, place = ledger.split_place(record)
        except DAMAGE:
            statuses.unreadable += 1
            continue
        if last is None or last.key != key:
            last = queues[key] = _KeyQueue(key, None, 0)
        last.runs += 1
        if last.first is None:
            there = at_place(record, raw, place)
            last.first = None if there.evicted is Evicted.YIELDS else there.number
    end = None
    if len(rows) == PAGE:
        end = rows[-1][0] + b"\0"
        if last is not None:
            last.rest = end
            end = max(end, _end(ledger.key_prefix(last.key)))
    for key in statuses.quarantined:
        at = ledger.key_prefix(key)
        if key not in queues and only in (None, key) and start <= at and (not end or at < end):
            queues[key] = _KeyQueue(key, None, 0)
    return sorted(queues.values(), key=lambda queue: ledger.key_prefix(queue.key)), end


async def _count(
    statuses: StatusReader, queue: _KeyQueue, most: int | None, slices: PageBudget
) -> None:
    """Count the places of a key queue that its page did not have, up to `most` in all. Look for the
    head of the queue among them if it was not before."""
    ledger = statuses.ledger
    stop = _end(ledger.key_prefix(queue.key))
    pages = ledger.pages("queue", start=queue.rest or b"", stop=stop, size=PAGE)
    async for rows in pages:
        queue.runs += len(rows)
        if queue.first is None:
            queue.first = ledger.head_of(rows)
        slices.left -= len(rows)
        if most is not None and queue.runs >= most and pages.more:
            queue.more = True
            return


def _end(queue: bytes) -> bytes:
    """Return a record key after all places of a key queue."""
    return queue + b"\xff" * 9


async def _may_be_quarantined(statuses: StatusReader, queue: _KeyQueue) -> bool:
    """Return whether a key may be quarantined, with few reads: there may be a million keys."""
    if queue.first is None or queue.key in statuses.quarantined:
        return queue.key in statuses.quarantined
    try:
        status = await statuses.ledger.current_status(queue.first)
        await statuses.ledger.submission(queue.first)
    except DAMAGE:
        return True
    return status is not None and status.state is State.QUARANTINED


async def _status(statuses: StatusReader, queue: _KeyQueue, slices: PageBudget) -> KeyStatus:
    ledger, head = statuses.ledger, None
    if queue.first is not None:
        head = await statuses.status(queue.first, result=False, slices=slices)
    held = statuses.quarantined.get(queue.key)
    reason: str | None = None
    cause: QuarantineCause | None = None
    if held is not None:
        state, reason, cause = State.QUARANTINED, held.reason, QuarantineCause.KEY
    elif head is None:
        state = State.WAITING if queue.runs else State.PENDING
    else:
        state, cause = head.state, head.quarantine_cause
        reason = head.reason if state is State.QUARANTINED else None
    return KeyStatus(
        key=queue.key,
        runs=queue.runs,
        head="" if head is None else head.run_id,
        state=state,
        paused=await ledger.store.get("held", ledger.name(queue.key)) is not None,
        quarantined=state is State.QUARANTINED,
        reason=reason,
        waiting_on=None if head is None or held is not None else head.waiting_on,
        waiting_until=None if head is None else head.waiting_until,
        quarantine_cause=cause,
        more_runs=queue.more,
    )


async def entities(statuses: StatusReader, key: str) -> list[EntityStatus]:
    """Return the entities that have a state under a key, sorted by name."""
    ledger = statuses.ledger
    prefix = ledger.key_prefix(check_key(key))
    found = []
    for record, raw in await ledger.store.scan("entities", prefix=prefix):
        name = record[len(prefix) :].decode(errors="replace")
        try:
            size = len(unseal("entities", record, raw)[0])
        except DAMAGE:
            statuses.unreadable += 1
            size = None
        found.append(EntityStatus(key=key, name=name, size=size))
    return found
