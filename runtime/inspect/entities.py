"""Entities of a key: which classes keep something under it, and how much."""

from typing import TYPE_CHECKING

import attrs

from keyrun.runtime.records.checks import check_key
from keyrun.runtime.records.damage import DAMAGE
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.inspect.statuses import StatusReader


@attrs.frozen(kw_only=True)
class EntityStatus:
    """What an entity keeps under a key: the name of its class, and how many bytes its state takes,
    or None if that is damaged. A state that is empty is not there."""

    key: str
    name: str
    size: int | None


async def entities(statuses: "StatusReader", key: str) -> list[EntityStatus]:
    """The entities that keep something under a key, by name."""
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
