"""Reading: perform the operations that only read, on a store that no process has open."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from keyrun.control.operation import Operation
from keyrun.control.overview import Overview, stored_overview
from keyrun.control.owner import PlainStatuses
from keyrun.control.requests import RecentEvents
from keyrun.control.roles import Caller, require
from keyrun.control.shapes import LargePayload
from keyrun.runtime.definitions.workflow import Registry, Workflow
from keyrun.runtime.inspect.reader import Reader
from keyrun.runtime.records.submission import StatusRecord
from keyrun.runtime.records.tables import Ledger
from keyrun.runtime.runtime import Runtime
from keyrun.runtime.values import RunStatus
from keyrun.storage import LmdbStore, StoreReadOnly
from keyrun.storage.payload import PayloadCodec, PayloadError, Transform

OF_A_PROCESS = frozenset({"result", "outcomes", "statistics", "events"})
"""Operations that read what only the process that has the store open knows. So do the methods of
`Runtime` that `Reader` does not have."""


class PlainReader(Reader):
    """A reader that returns values as plain data, and says so if it cannot decode one."""

    async def status(self, run_id: str, *, result: bool = True) -> RunStatus | None:
        try:
            return await super().status(run_id, result=result)
        except PayloadError:
            return await super().status(run_id, result=False)

    def value(self, stored: bytes) -> Any:
        try:
            return LargePayload.value(self._statuses.codec, stored)
        except PayloadError as error:
            return f"(this value cannot be decoded here: {error})"

    async def overview(self) -> Overview:
        """Return what the store knows of the overview."""
        return await stored_overview(self._ledger)

    def recent_events(self, *_: Any) -> RecentEvents:
        """Return no events: no process makes any."""
        return RecentEvents(events=[], cursor="", missed=None)

    async def find_submission(self, run_id: str) -> str:
        """Return what `wait_for_end` takes."""
        return run_id

    async def wait_for_end(self, run_id: str) -> StatusRecord | None:
        """Wait for the end of a run, which does not come: no process runs it."""
        await trio.sleep_forever()


class StoredRuns:
    """Performs operations that read."""

    def __init__(self, reader: PlainReader) -> None:
        self._reader = reader

    async def perform(
        self, operation: Operation, arguments: Mapping[str, Any], caller: Caller, why: str
    ) -> Any:
        """Perform an operation, and return its answer. `why` says why only reading is possible."""
        require(caller, operation.role, operation.name)
        operation.require(arguments)
        self._check(operation, why)
        return await operation.function(self._reader, **arguments)

    async def stream(
        self, operation: Operation, arguments: Mapping[str, Any], caller: Caller, why: str
    ) -> AsyncGenerator[Any, None]:
        """Begin an operation that streams, and return its answers. Close them at the end."""
        answers: AsyncGenerator[Any, None] = await self.perform(operation, arguments, caller, why)
        return answers

    @staticmethod
    def _check(operation: Operation, why: str) -> None:
        """Raise `StoreReadOnly` unless a reader can perform an operation."""
        method = getattr(Runtime, operation.name, None)
        needs_runtime = method is operation.function and not hasattr(Reader, operation.name)
        if operation.writes or needs_runtime or operation.name in OF_A_PROCESS:
            raise StoreReadOnly(f"{operation.name} is not possible here: {why}")


@asynccontextmanager
async def stored_runs(
    path: Path, namespace: str, workflows: Iterable[Workflow[Any, Any]], transform: Transform | None
) -> AsyncIterator[StoredRuns]:
    """Open a store for reading while the block runs."""
    async with LmdbStore(path, read_only=True) as store:
        ledger = Ledger(store.namespace(namespace))
        statuses = PlainStatuses(ledger, PayloadCodec(transform), Registry(workflows), plain=True)
        yield StoredRuns(PlainReader(ledger, statuses))
