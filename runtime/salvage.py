"""Salvage: what becomes of a run whose records are damaged.

It gives its place free, so that its key goes on, and stays visible as quarantined until a person
has looked at it. What cannot be read any more is kept as it is, as the input of a stand-in.
"""

from typing import TYPE_CHECKING

from keyrun.runtime.ledger import sealed
from keyrun.runtime.limits import ResolvedLimits
from keyrun.runtime.logs import logger
from keyrun.runtime.records import SALVAGED, Standing, Submission
from keyrun.runtime.values import Priority, State
from keyrun.storage import StoreCorrupt
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.engine import Engine

PAGE = 1000


async def set_aside(
    engine: "Engine", key: str, place: int, number: int, error: StoreCorrupt
) -> None:
    """Quarantine the run at this place of this key, and take it out of the line."""
    ledger, store = engine.ledger, engine.store
    record = ledger.number(number)
    stand_in: Submission | None = None
    try:
        submission = await ledger.submission(number)
    except StoreCorrupt:
        submission = stand_in = await _stand_in(engine, key, number)
    run_id = "" if submission is None else submission.run_id
    group = store.open_group()
    if stand_in is not None:
        group.put("runs", record, sealed("runs", record, *stand_in.fields()))
        name = ledger.run_id(run_id)
        group.put("ids", name, sealed("ids", name, number))
    standing = Standing(state=State.QUARANTINED, reason=str(error))
    group.put("status", record, sealed("status", record, *standing.fields()))
    group.delete("queue", ledger.place(key, place))
    logger.error(
        "run %s (key %s) is damaged and set aside: %s",
        run_id,
        key,
        error,
        extra={"run": run_id, "key": key, "event": "run_quarantined"},
    )
    await store.durable(group)


async def _stand_in(engine: "Engine", key: str, number: int) -> Submission:
    """What is still known of a run whose submission cannot be read."""
    ledger = engine.ledger
    raw = await engine.store.get("runs", ledger.number(number))
    return Submission(
        number=number,
        run_id=await _id_of(engine, number) or f"damaged-{number}",
        key=key,
        workflow="",
        version=0,
        input=raw or b"",
        digest=b"",
        headers={},
        tags=(),
        priority=Priority.NORMAL,
        limits=ResolvedLimits.of(),
        submitted_at=0.0,
        delay=0.0,
        origin=SALVAGED,
    )


async def _id_of(engine: "Engine", number: int) -> str | None:
    """The id that leads to `number`: a look at all of them, but damage is rare."""
    ledger, after = engine.ledger, b""
    while True:
        start = after + b"\0" if after else b""
        rows = await engine.store.scan("ids", prefix=ledger.prefix, start=start, limit=PAGE)
        for key, raw in rows:
            try:
                if unseal("ids", key, raw) == [number]:
                    return key[len(ledger.prefix) :].decode()
            except StoreCorrupt:
                continue
        if len(rows) < PAGE:
            return None
        after = rows[-1][0]
