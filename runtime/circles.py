"""Circles: runs that hold their keys and wait for children under each other's would wait for ever.

A circle is found when it closes, by walking the records of children from key to key.
"""

from typing import TYPE_CHECKING

from keyrun.runtime.ledger import Sleep, at_place
from keyrun.storage import StoreCorrupt
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.engine import Engine

PAGE = 500


async def circle(
    engine: "Engine", key: str, target: str, number: int
) -> list[tuple[str, int]] | None:
    """The keys from `key` to `target`, each waiting for the next, and whom it waits for; `number`
    is the child under the first. Only those count who came before it, since who came later looks
    for itself: so it is the youngest in what is found, and one of a circle always is."""
    path = [(key, number)]
    return await _walk(engine, key, target, path, {key})


async def _walk(
    engine: "Engine", key: str, target: str, path: list[tuple[str, int]], seen: set[str]
) -> list[tuple[str, int]] | None:
    for other, number in await _waits_for(engine, key):
        if number > path[0][1]:
            continue
        if other == target:
            return [*path, (other, number)]
        if other not in seen:
            seen.add(other)
            found = await _walk(engine, other, target, [*path, (other, number)], seen)
            if found is not None:
                return found
    return None


async def _waits_for(engine: "Engine", key: str) -> list[tuple[str, int]]:
    """The keys that the run which holds `key` waits for, and the children that it has there."""
    ledger, start = engine.ledger, b""
    while rows := await engine.store.scan(
        "queue", prefix=ledger.line(key), start=start, limit=PAGE
    ):
        for record, raw in rows:
            there = at_place(record, raw, ledger.split_place(record)[1])
            if there.sleep is not Sleep.YIELDS and not _will_yield(engine, there.number):
                found = await engine.store.scan("children", prefix=ledger.number(there.number))
                pairs = [_open(*row) for row in found]
                return [pair for pair in pairs if pair is not None]
        start = rows[-1][0] + b"\0"
    return []


def _will_yield(engine: "Engine", number: int) -> bool:
    """Whether a run in memory lets others go ahead while it waits."""
    run = engine.live.get(number)
    workflow = None if run is None else run.workflow
    return workflow is not None and workflow.while_waiting == "yield"


def _open(record: bytes, raw: bytes) -> tuple[str, int] | None:
    try:
        _, key, ended, orphaned = unseal("children", record, raw)
    except StoreCorrupt:
        return None
    return None if ended or orphaned else (key, int.from_bytes(record[-8:], "big"))
