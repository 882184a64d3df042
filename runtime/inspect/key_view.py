"""One key: what it does and why, its queue, and what is stored under it."""

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import attrs

from keyrun.actors import checks
from keyrun.runtime.inspect.explain import Explanation
from keyrun.runtime.inspect.keys import KeyStatus, find_keys
from keyrun.runtime.inspect.pages import cursor_of, look, place_after
from keyrun.runtime.inspect.slices import RUN, PageBudget
from keyrun.runtime.inspect.statuses import StatusReader
from keyrun.runtime.records.checks import check_key
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.tables import at_place
from keyrun.runtime.values import RunStatus
from keyrun.storage.payload import PayloadError
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.inspect.explain import Explainer

ENTITIES = 100
"""Entities that a view shows."""


class Unshown(StrEnum):
    """Name the reason why a stored value is not shown."""

    TOO_LARGE = "too_large"
    """The value is larger than `max_value`."""
    ENCRYPTED = "encrypted"
    """The value cannot be decoded, because the reader does not have the `transform` of the
    runtime."""
    DAMAGED = "damaged"
    """The record is damaged."""


@attrs.frozen(kw_only=True)
class StoredValue:
    """Hold a stored value as plain data."""

    value: Any
    """The value. None if it is not shown."""
    size: int | None
    """The size of the stored value in bytes. None if the record is damaged."""
    unshown: Unshown | None
    """Why the value is not shown. None if it is shown."""


@attrs.frozen(kw_only=True)
class EntityView:
    """Show the state of an entity under a key."""

    name: str
    """The name of the entity."""
    state: StoredValue
    """Its state, a mapping."""


@attrs.frozen(kw_only=True)
class KeyView:
    """Show one key: what it does and why, its queue, and what is stored under it."""

    key: str
    """The ordering key."""
    status: KeyStatus | None
    """The status. None if the key has no unfinished run and is not quarantined."""
    why: Explanation
    """Why the run that holds the key does not move."""
    paused: bool
    """Whether the key is paused."""
    all_paused: bool
    """Whether the whole runtime is paused."""
    runs: tuple[RunStatus, ...]
    """The unfinished runs in the queue of the key, without delayed runs. One page of them."""
    cursor: str | None
    """Pass it to get more runs. None if there are no more."""
    state: StoredValue | None
    """The state of the key: what steps keep in `current_step().state`. None if there is none."""
    entities: tuple[EntityView, ...]
    """The entities that have a state under the key, at most 100."""


async def key_view(
    statuses: StatusReader,
    explainer: "Explainer",
    key: str,
    *,
    limit: int,
    cursor: str | None,
    max_value: int,
) -> KeyView:
    """Return a view of a key, with one page of its queue."""
    checks.count("limit", limit, 1)
    checks.count("max_value", max_value, 0)
    ledger, store = statuses.ledger, statuses.ledger.store
    prefix = ledger.key_prefix(check_key(key))
    after = place_after(ledger, "key", cursor)
    if after and not after.startswith(prefix):
        raise ValueError(f"cursor must be the cursor of a view of the key {key!r}")

    async def read(record: bytes, raw: bytes, slices: PageBudget) -> list[RunStatus]:
        slices.left -= RUN
        try:
            number = at_place(record, raw, ledger.split_place(record)[1]).number
        except DAMAGE:
            statuses.unreadable += 1
            return []
        status = await statuses.status(number, result=False, slices=slices)
        return [] if status is None else [status]

    looked = await look(ledger, "queue", read, limit=limit, prefix=prefix, after=after)
    entities = []
    for record, raw in await store.scan("entities", prefix=prefix, limit=ENTITIES):
        name = record[len(prefix) :].decode(errors="replace")
        state = _value(statuses, "entities", record, raw, max_value)
        entities.append(EntityView(name=name, state=state))
    kept = await store.get("state", prefix)
    page = await find_keys(statuses, key=key)
    return KeyView(
        key=key,
        status=page.keys[0] if page.keys else None,
        why=await explainer.key(key),
        paused=await store.get("held", ledger.name(key)) is not None,
        all_paused=await store.get("held", ledger.name("")) is not None,
        runs=tuple(looked.found),
        cursor=cursor_of(ledger, "key", looked),
        state=None if kept is None else _value(statuses, "state", prefix, kept, max_value),
        entities=tuple(entities),
    )


def _value(
    statuses: StatusReader, table: str, record: bytes, raw: bytes, max_value: int
) -> StoredValue:
    """Return the value in a record of a payload."""
    try:
        payload = unseal(table, record, raw)[0]
    except DAMAGE:
        return StoredValue(value=None, size=None, unshown=Unshown.DAMAGED)
    size = len(payload)
    if size > max_value:
        return StoredValue(value=None, size=size, unshown=Unshown.TOO_LARGE)
    try:
        return StoredValue(value=statuses.codec.decode(payload), size=size, unshown=None)
    except PayloadError:
        return StoredValue(value=None, size=size, unshown=Unshown.ENCRYPTED)
