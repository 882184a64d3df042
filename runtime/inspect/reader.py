"""The reader: the read-only side of a store, for any process, also while a runtime is live."""

import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from keyrun.runtime.definitions.workflow import Registry, Workflow
from keyrun.runtime.errors import UnknownRun
from keyrun.runtime.inspect.listing import Listing, ListingFilter
from keyrun.runtime.inspect.statuses import StatusReader
from keyrun.runtime.records.submission import OF_GROUP
from keyrun.runtime.records.tables import Ledger
from keyrun.runtime.texts import brief
from keyrun.runtime.values import RunStatus, State
from keyrun.storage import LmdbStore, Store
from keyrun.storage.payload import PayloadCodec, Transform

if TYPE_CHECKING:
    # What few programs ask for is imported by the first who does.
    from keyrun.runtime.graphs.view import ExecutionGraph
    from keyrun.runtime.groups.records import GroupStatus
    from keyrun.runtime.inspect.counts import StoreCounts
    from keyrun.runtime.inspect.entities import EntityStatus
    from keyrun.runtime.inspect.history import History
    from keyrun.runtime.inspect.keys import KeyStatus
    from keyrun.runtime.inspect.progress import Progress
    from keyrun.runtime.inspect.surveys import RunInspector
    from keyrun.runtime.inspect.watch import Watch
    from keyrun.runtime.queue.outbox import OutboxStatus
    from keyrun.runtime.schedules.records import ScheduleStatus


class Reader:
    """Answers about runs and keys as of the last durable commit; it never disturbs the writer."""

    def __init__(
        self, ledger: Ledger, statuses: StatusReader, wall: Callable[[], float] = time.time
    ) -> None:
        self._ledger = ledger
        self._statuses = statuses
        self._listing = Listing(statuses)
        self._wall = wall

    @cached_property
    def _survey(self) -> "RunInspector":
        from keyrun.runtime.inspect.surveys import RunInspector

        return RunInspector(self._statuses, self._wall)

    async def status(self, run_id: str, *, result: bool = True) -> RunStatus | None:
        """How a run stands, or None if there is no such run. With `result=False` its result is
        not read, which needs neither the classes nor the codec that it was written with."""
        number = await self._ledger.find(run_id)
        return None if number is None else await self._statuses.status(number, result=result)

    async def history(self, run_id: str) -> "History":
        """What happened to a run; empty if there is no such run. It can be saved to a file, and
        replayed against changed code with `keyrun.testing.replay`."""
        return await self._survey.history(await self._ledger.find(run_id))

    async def progress(self, run_id: str) -> "Progress | None":
        """How far a run is, as of the last commit; None if there is no such run."""
        number = await self._ledger.find(run_id)
        return None if number is None else await self._survey.progress(number)

    async def execution_graph(self, run_id: str) -> "ExecutionGraph | None":
        """A run of a graph, node by node and edge by edge, as of the last commit; None if there is
        no such run, or it is of no graph."""
        number = await self._ledger.find(run_id)
        if number is None:
            return None
        return await self._survey.execution_graph(number, self._queues())

    def _queues(self) -> dict[str, int] | None:
        """How many calls wait, by step, where that is known."""
        return None

    def watch(self, run_id: str, *, interval: float = 0.2) -> "Watch":
        """How far a run is, at once and then whenever a look every `interval` seconds shows a
        change, until it has ended: async for progress in reader.watch(run_id)."""
        from keyrun.runtime.inspect.watch import Watch

        if not interval:
            raise ValueError("interval must be positive: a reader has to look again and again")
        return Watch(run_id, self._ledger.find, self._survey.look, interval)

    async def runs(
        self,
        *,
        state: State | Collection[State] | None = None,
        key: str | None = None,
        workflow: str | None = None,
        tag: str | None = None,
        origin: str | None = None,
        group: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        after: str | None = None,
        newest_first: bool = False,
    ) -> list[RunStatus]:
        """Runs in the order of their admission, or the other way round; `after` is the id of the
        last one you have. `since` and `until` are about when they were submitted. `origin` is what
        started them, such as "schedule:nightly"; `group` is short for that of a group."""
        if group is not None:
            if origin not in (None, OF_GROUP + group):
                return []
            origin = OF_GROUP + group
        wanted = ListingFilter.of(state, key, workflow, tag, since, until, origin)
        return await self._listing.page(
            wanted, limit=limit, after=await self._number(after), newest_first=newest_first
        )

    async def keys(
        self,
        *,
        key: str | None = None,
        quarantined: bool | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> "list[KeyStatus]":
        """What each key is doing that has runs which have not ended; or only `key`, or those that
        are, or are not, `quarantined`. A reader sees the keys whose first run is: that Keyrun
        itself failed to serve a key is only known to the runtime where that happened."""
        from keyrun.runtime.inspect.keys import keys

        return await keys(
            self._statuses, key=key, quarantined=quarantined, limit=limit, after=after
        )

    async def entities(self, key: str) -> "list[EntityStatus]":
        """The entities that keep a state under a key, by name, and how many bytes that takes."""
        from keyrun.runtime.inspect.entities import entities

        return await entities(self._statuses, key)

    async def dead_letters(
        self,
        *,
        key: str | None = None,
        workflow: str | None = None,
        tag: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        after: str | None = None,
        newest_first: bool = False,
    ) -> list[RunStatus]:
        """Runs whose step failed for good, oldest first unless `newest_first`."""
        wanted = ListingFilter.of(None, key, workflow, tag, since, until)
        return await self._listing.page(
            wanted,
            table="dead",
            limit=limit,
            after=await self._number(after),
            newest_first=newest_first,
        )

    async def outbox(self) -> "OutboxStatus":
        """The number of ends that wait for `on_terminal`, and whether the store keeps more."""
        from keyrun.runtime.queue.outbox import outbox_status

        return await outbox_status(self._ledger)

    async def group_status(self, group_id: str) -> "GroupStatus | None":
        """How a group stands, or None if there is no such group."""
        from keyrun.runtime.groups.records import read_status

        return await read_status(self._ledger, group_id, self._statuses.state)

    async def schedules(
        self, *, limit: int = 100, after: str | None = None
    ) -> "list[ScheduleStatus]":
        """How schedules stand, in the order of their ids; `after` is the last that you have."""
        from keyrun.runtime.inspect.schedules import schedules

        return await schedules(self._statuses, limit, after)

    async def counts(self) -> "StoreCounts":
        """What the store counts: unfinished runs by workflow, version and the fingerprint of their
        code, and runs that got False from `ctx.patched`, by name. Nothing is scanned."""
        from keyrun.runtime.inspect.counts import counts_of

        return await counts_of(self._ledger)

    async def unfinished(self) -> dict[tuple[str, int], int]:
        """How many runs of which workflow, by name and version, go on when a runtime opens the
        store. Quarantined ones do not."""
        return await self._listing.unfinished()

    @property
    def unreadable(self) -> int:
        """How many damaged records the listings of this reader have left out, since nobody can tell
        what they are about, or whether they fit."""
        return self._statuses.unreadable

    async def _number(self, run_id: str | None) -> int:
        if run_id is None:
            return 0
        number = await self._ledger.find(run_id)
        if number is None:
            raise UnknownRun(
                f"no run has the id {brief(run_id)}, or it was forgotten", run_id=run_id
            )
        return number


@asynccontextmanager
async def open_reader(
    store: "str | os.PathLike[str] | Store",
    *,
    workflows: Iterable[Workflow[Any, Any]] = (),
    namespace: str = "default",
    transform: Transform | None = None,
    wall: Callable[[], float] = time.time,
) -> AsyncIterator[Reader]:
    """Open a store for reading. `workflows` are only needed for results of declared classes."""
    if not isinstance(store, Store):
        store = LmdbStore(store, read_only=True)
    async with store:
        ledger = Ledger(store.namespace(namespace))
        yield Reader(
            ledger, StatusReader(ledger, PayloadCodec(transform), Registry(workflows)), wall
        )
