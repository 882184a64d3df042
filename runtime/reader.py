"""The reader: the read-only side of a store, for any process, also while a runtime is live."""

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from keyrun.runtime.errors import UnknownRun
from keyrun.runtime.history import History
from keyrun.runtime.ledger import Ledger
from keyrun.runtime.reading import KeyStatus, Reading
from keyrun.runtime.values import RunStatus, State
from keyrun.runtime.workflow import Registry, Workflow
from keyrun.storage import LmdbStore, Store
from keyrun.storage.payload import PayloadCodec, Transform


class Reader:
    """Answers about runs and keys as of the last durable commit; it never disturbs the writer."""

    def __init__(self, ledger: Ledger, reading: Reading) -> None:
        self._ledger = ledger
        self._reading = reading

    async def status(self, run_id: str) -> RunStatus | None:
        """How a run stands, or None if there is no such run."""
        number = await self._ledger.find(run_id)
        return None if number is None else await self._reading.status(number)

    async def history(self, run_id: str) -> History:
        """What happened to a run; empty if there is no such run. It can be saved to a file, and
        replayed against changed code with `keyrun.testing.replay`."""
        number = await self._ledger.find(run_id)
        return History() if number is None else await self._reading.history(number)

    async def runs(
        self,
        *,
        state: State | None = None,
        key: str | None = None,
        workflow: str | None = None,
        tag: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[RunStatus]:
        """Runs in the order of their admission; `after` is the id of the last one you have."""
        number = await self._number(after)
        return await self._reading.runs(
            state=state, key=key, workflow=workflow, tag=tag, limit=limit, after=number
        )

    async def keys(self, *, limit: int = 100, after: str | None = None) -> list[KeyStatus]:
        """What each key is doing that has runs which have not ended."""
        return await self._reading.keys(limit=limit, after=after)

    async def dead_letters(self, *, limit: int = 100, after: str | None = None) -> list[RunStatus]:
        """Runs whose step failed for good, oldest first."""
        return await self._reading.dead_letters(limit=limit, after=await self._number(after))

    async def _number(self, run_id: str | None) -> int:
        if run_id is None:
            return 0
        number = await self._ledger.find(run_id)
        if number is None:
            raise UnknownRun(f"no run has the id {run_id!r}, or it was forgotten", run_id=run_id)
        return number


@asynccontextmanager
async def open_reader(
    store: "str | os.PathLike[str] | Store",
    *,
    workflows: Iterable[Workflow[Any, Any]] = (),
    namespace: str = "default",
    transform: Transform | None = None,
) -> AsyncIterator[Reader]:
    """Open a store for reading. `workflows` are only needed for results of declared classes."""
    if not isinstance(store, Store):
        store = LmdbStore(store, read_only=True)
    async with store:
        ledger = Ledger(store.namespace(namespace))
        yield Reader(ledger, Reading(ledger, PayloadCodec(transform), Registry(workflows)))
