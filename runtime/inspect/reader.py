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
from keyrun.runtime.records.checks import check_key
from keyrun.runtime.records.tables import Ledger
from keyrun.runtime.texts import brief, check_text
from keyrun.runtime.values import RunStatus, State
from keyrun.storage import LmdbStore, Store
from keyrun.storage.payload import PayloadCodec, Transform

if TYPE_CHECKING:
    # These modules are imported when they are first needed.
    from keyrun.runtime.graphs.view import ExecutionGraph
    from keyrun.runtime.groups.records import GroupStatus
    from keyrun.runtime.inspect.approvals import ApprovalPage
    from keyrun.runtime.inspect.audit import AuditPage
    from keyrun.runtime.inspect.catalogs import GroupPage, SchedulePage
    from keyrun.runtime.inspect.counts import StoreCounts
    from keyrun.runtime.inspect.explain import Explainer, Explanation
    from keyrun.runtime.inspect.family import Family
    from keyrun.runtime.inspect.history import History, HistoryPage
    from keyrun.runtime.inspect.key_view import KeyView
    from keyrun.runtime.inspect.keys import EntityStatus, KeyPage, KeyStatus
    from keyrun.runtime.inspect.pages import RunPage
    from keyrun.runtime.inspect.progress import Progress
    from keyrun.runtime.inspect.run_inspector import RunInspector
    from keyrun.runtime.inspect.watch import Watch
    from keyrun.runtime.inspect.workflows import WorkflowInfo
    from keyrun.runtime.queue.outbox import OutboxStatus
    from keyrun.runtime.schedules.records import ScheduleStatus


class Reader:
    """Read runs, keys, groups and schedules as of the last durable commit. `open_reader` returns a
    reader. A reader never disturbs the runtime that writes."""

    def __init__(
        self, ledger: Ledger, statuses: StatusReader, wall: Callable[[], float] = time.time
    ) -> None:
        self._ledger = ledger
        self._statuses = statuses
        self._listing = Listing(statuses)
        self._wall = wall

    @cached_property
    def _inspector(self) -> "RunInspector":
        from keyrun.runtime.inspect.run_inspector import RunInspector

        return RunInspector(self._statuses, self._wall)

    async def status(self, run_id: str, *, result: bool = True) -> RunStatus | None:
        """Return the status of a run, or None if the run is unknown.

        With `result=False` the status leaves out the result, and needs neither the classes nor the
        `transform` with which the result was stored."""
        number = await self._ledger.find(run_id)
        return None if number is None else await self._statuses.status(number, result=result)

    async def history(self, run_id: str) -> "History":
        """Return everything that happened to a run, with times. The history is empty if the run is
        unknown. You can save it to a file, and replay it against changed code with
        `keyrun.testing.replay`."""
        return await self._inspector.history(await self._ledger.find(run_id))

    async def history_page(
        self, run_id: str, *, limit: int = 1000, cursor: str | None = None
    ) -> "HistoryPage":
        """Return one page of the history of a run, and read a bounded number of records for it. The
        page is empty if the run is unknown.

        - `limit`: the number of journal entries in a page.
        - `cursor`: the cursor of the page before.
        """
        number = await self._ledger.find(run_id)
        return await self._inspector.history_page(number, limit=limit, cursor=cursor)

    async def input(self, run_id: str) -> Any:
        """Return the input of a run, as plain data: a class is a dict of its fields. Raises
        `UnknownRun`, and `PayloadError` if a `transform` of the reader is needed to decode it."""
        number = await self._number(run_id)
        submission = await self._ledger.submission(number)
        if submission is None:
            raise UnknownRun(f"the run {brief(run_id)} was forgotten", run_id=run_id)
        return self.value(submission.input)

    def value(self, stored: bytes) -> Any:
        """Return what an event of a history carries (`happening.stored`) as plain data. Raises
        `PayloadError` if a `transform` of the reader is needed to decode it."""
        return self._statuses.codec.decode(stored)

    async def progress(self, run_id: str) -> "Progress | None":
        """Return the progress of a run as of the last commit, or None if the run is unknown."""
        number = await self._ledger.find(run_id)
        return None if number is None else await self._inspector.progress(number)

    async def explain(self, run_id: str) -> "Explanation | None":
        """Explain why a run does not move: one cause, and one sentence that names everything that
        the run waits for. Return None if the run is unknown.

        A runtime knows more than a reader: for a reader, a run that waits for a slot or a policy
        is running."""
        number = await self._ledger.find(run_id)
        return None if number is None else await self._explainer.run(number)

    async def explain_key(self, key: str) -> "Explanation":
        """Explain why the run at the head of the queue of a key does not move."""
        return await self._explainer.key(check_key(key))

    @cached_property
    def _explainer(self) -> "Explainer":
        from keyrun.runtime.inspect.explain import Explainer

        return Explainer(self._statuses, None)

    async def execution_graph(self, run_id: str) -> "ExecutionGraph | None":
        """Return the nodes and edges of a run with their states, as of the last commit. None if the
        run is unknown or not a run of a graph."""
        number = await self._ledger.find(run_id)
        if number is None:
            return None
        return await self._inspector.execution_graph(number, self._queues())

    def _queues(self) -> dict[str, int] | None:
        """Return the number of waiting calls by step, or None if it is not known."""
        return None

    def watch(self, run_id: str, *, interval: float = 0.2) -> "Watch":
        """Return an async iterator of the progress of a run:

            async for progress in reader.watch("order-7"):
                print(progress.percent)

        The iterator yields at once. Then it reads the store every `interval` seconds, yields if the
        progress has changed, and stops after the end of the run."""
        from keyrun.runtime.inspect.watch import Watch

        if not interval:
            raise ValueError("interval must be positive, got 0; a reader polls the store")
        return Watch(run_id, self._ledger.find, self._inspector.look, interval)

    async def runs(
        self,
        *,
        state: State | Collection[State] | None = None,
        key: str | None = None,
        workflow: str | None = None,
        version: int | None = None,
        step: str | None = None,
        error: str | None = None,
        tag: str | None = None,
        origin: str | None = None,
        group: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        after: str | None = None,
        newest_first: bool = False,
    ) -> list[RunStatus]:
        """List runs in the order in which they were submitted.

        Each argument that is given leaves out the runs that do not match it:

        - `state`: list only runs in this state, or in one of several states.
        - `key`: list only runs with this ordering key.
        - `workflow`: list only runs of the workflow with this name.
        - `version`: list only runs of this version of their workflow.
        - `tag`: list only runs that have this tag.
        - `step`: list only runs that are at this step, or that failed there. `"charge"` also
          stands for `"g1.0/charge#2"`.
        - `error`: list only runs that failed with this type of exception, for example
          `"ValueError"` or `"stripe.CardError"`, or because of it.
        - `origin`: list only runs that this source started, for example `"schedule:nightly"`.
        - `group`: list only members of this group.
        - `since`: list only runs that were submitted at this time or later, in seconds since the
          epoch.
        - `until`: list only runs that were submitted before this time, in seconds since the epoch.
        - `limit`: the number of runs in one page.
        - `after`: the id of the last run of the page before.
        - `newest_first`: list in the opposite order.
        """
        wanted = ListingFilter.of(
            state, key, workflow, tag, since, until, origin, version, error, step, group
        )
        return await self._listing.runs(
            wanted, limit=limit, after=await self._number(after), newest_first=newest_first
        )

    async def find_runs(
        self,
        *,
        state: State | Collection[State] | None = None,
        key: str | None = None,
        workflow: str | None = None,
        version: int | None = None,
        step: str | None = None,
        error: str | None = None,
        tag: str | None = None,
        origin: str | None = None,
        group: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> "RunPage":
        """Return one page of the runs that match, and read a bounded number of records for it.

        `runs` looks until it has found `limit` runs, however many records that takes. A page of
        `find_runs` reads less than 10,000 records. If it has found fewer runs than `limit` by then,
        its cursor leads on, and it says how far it has looked. A cursor stays valid if runs are
        forgotten. The other parameters are those of `rt.runs`."""
        wanted = ListingFilter.of(
            state, key, workflow, tag, since, until, origin, version, error, step, group
        )
        return await self._listing.find(
            wanted, limit=limit, cursor=cursor, newest_first=newest_first
        )

    async def keys(
        self,
        *,
        key: str | None = None,
        quarantined: bool | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> "list[KeyStatus]":
        """List the keys that have unfinished runs.

        - `key`: list only this key.
        - `quarantined`: list only keys that are quarantined or whose first run is, with False only
          the others. If Keyrun's own code failed for a key, only the runtime of that process
          reports the quarantine.
        - `limit`: the number of keys in one page.
        - `after`: the last key of the page before.
        """
        from keyrun.runtime.inspect.keys import keys

        return await keys(
            self._statuses, key=key, quarantined=quarantined, limit=limit, after=after
        )

    async def key_view(
        self, key: str, *, limit: int = 100, cursor: str | None = None, max_value: int = 65536
    ) -> "KeyView":
        """Return what a key does and why, the runs in its queue, its state and its entities.

        - `limit`: the number of runs in one page.
        - `cursor`: the cursor of the page before.
        - `max_value`: the size in bytes up to which stored values are shown.
        """
        from keyrun.runtime.inspect.key_view import key_view

        return await key_view(
            self._statuses, self._explainer, key, limit=limit, cursor=cursor, max_value=max_value
        )

    async def entities(self, key: str) -> "list[EntityStatus]":
        """List the entities that have a state under a key, sorted by name."""
        from keyrun.runtime.inspect.keys import entities

        return await entities(self._statuses, key)

    async def find_keys(
        self,
        *,
        key: str | None = None,
        quarantined: bool | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> "KeyPage":
        """Return one page of the keys that have unfinished runs, and read a bounded number of
        records for it. It counts at most 1,000 runs of a key. The parameters are those of
        `rt.keys`."""
        from keyrun.runtime.inspect.keys import find_keys

        return await find_keys(
            self._statuses, key=key, quarantined=quarantined, limit=limit, cursor=cursor
        )

    async def find_approvals(
        self,
        *,
        key: str | None = None,
        workflow: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> "ApprovalPage":
        """Return one page of the approval gates that wait for a decision, over all unfinished runs,
        and read a bounded number of records for it.

        - `key`: return only gates of runs with this ordering key.
        - `workflow`: return only gates of runs of the workflow with this name.
        - `limit`: the number of gates after which the page ends. The gates of one run are always
          in one page.
        - `cursor`: the cursor of the page before. The gates are in the order of the keys.
        """
        from keyrun.runtime.inspect.approvals import find_approvals

        return await find_approvals(
            self._statuses, key=key, workflow=workflow, limit=limit, cursor=cursor
        )

    async def family(
        self, run_id: str, *, limit: int = 100, cursor: str | None = None
    ) -> "Family | None":
        """Return what started a run, and the children that it has started. None if the run is
        unknown.

        - `limit`: the number of children in one page.
        - `cursor`: the cursor of the page before.
        """
        from keyrun.runtime.inspect.family import family_of

        number = await self._ledger.find(run_id)
        if number is None:
            return None
        return await family_of(self._statuses, number, limit=limit, cursor=cursor)

    async def dead_letters(
        self,
        *,
        key: str | None = None,
        workflow: str | None = None,
        version: int | None = None,
        step: str | None = None,
        error: str | None = None,
        tag: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        after: str | None = None,
        newest_first: bool = False,
    ) -> list[RunStatus]:
        """List the dead letters, oldest first: failed runs that stay until they are redriven or
        forgotten. The parameters are those of `rt.runs`."""
        wanted = ListingFilter.of(
            None, key, workflow, tag, since, until, None, version, error, step
        )
        return await self._listing.runs(
            wanted,
            table="dead",
            limit=limit,
            after=await self._number(after),
            newest_first=newest_first,
        )

    async def find_dead_letters(
        self,
        *,
        key: str | None = None,
        workflow: str | None = None,
        version: int | None = None,
        step: str | None = None,
        error: str | None = None,
        tag: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> "RunPage":
        """Return one page of the dead letters that match, and read a bounded number of records for
        it, as `find_runs` does for runs."""
        wanted = ListingFilter.of(
            None, key, workflow, tag, since, until, None, version, error, step
        )
        return await self._listing.find(
            wanted, table="dead", limit=limit, cursor=cursor, newest_first=newest_first
        )

    async def outbox(self) -> "OutboxStatus":
        """Return the number of outcomes that wait for `on_terminal`, and whether the store collects
        further outcomes."""
        from keyrun.runtime.queue.outbox import outbox_status

        return await outbox_status(self._ledger)

    async def group_status(self, group_id: str) -> "GroupStatus | None":
        """Return the status of a group, or None if the group is unknown."""
        from keyrun.runtime.groups.records import read_status

        check_text(group_id, "group_id")
        return await read_status(self._ledger, group_id, self._statuses.state)

    async def find_groups(self, *, limit: int = 100, cursor: str | None = None) -> "GroupPage":
        """Return one page of the groups, sorted by id, and read a bounded number of records for it.
        `group_status` returns how far a group is."""
        from keyrun.runtime.inspect.catalogs import find_groups

        return await find_groups(self._statuses, limit=limit, cursor=cursor)

    async def schedules(
        self, *, limit: int = 100, after: str | None = None
    ) -> "list[ScheduleStatus]":
        """List schedules, sorted by id. `after` is the last id of the page before."""
        from keyrun.runtime.inspect.catalogs import schedules

        return await schedules(self._statuses, limit=limit, after=after)

    async def find_schedules(
        self, *, limit: int = 100, cursor: str | None = None
    ) -> "SchedulePage":
        """Return one page of the schedules, sorted by id, and read a bounded number of records for
        it."""
        from keyrun.runtime.inspect.catalogs import find_schedules

        return await find_schedules(self._statuses, limit=limit, cursor=cursor)

    async def workflows(self) -> "tuple[WorkflowInfo, ...]":
        """Return the registered workflows in all versions, sorted by name and version, with the
        JSON Schema of their inputs and results. A reader knows the workflows that `open_reader`
        received."""
        from keyrun.runtime.inspect.workflows import workflows

        return workflows(self._statuses.registry, self._statuses.codec)

    async def audit(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        who: str | None = None,
        operation: str | None = None,
        run_id: str | None = None,
        key: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> "AuditPage":
        """List the writes that came in from outside, such as through the control plane: who did
        what, when, and with which result.

        - `since`: list only writes at this time or later, in seconds since the epoch.
        - `until`: list only writes before this time, in seconds since the epoch.
        - `who`: list only writes of this caller.
        - `operation`: list only writes of this kind: the name of a method, for example `"cancel"`.
        - `run_id`: list only writes about this run.
        - `key`: list only writes about this ordering key.
        - `limit`: the number of entries in one page.
        - `cursor`: the cursor of the page before.
        - `newest_first`: list in the opposite order.

        One call reads at most 10,000 entries. If few of them match, the page has fewer than `limit`
        entries, and its cursor continues behind the last entry that was read."""
        from keyrun.runtime.inspect.audit import AuditFilter, page_of

        wanted = AuditFilter(
            since=since, until=until, who=who, operation=operation, run_id=run_id, key=key
        )
        return await page_of(
            self._ledger, wanted, limit=limit, cursor=cursor, newest_first=newest_first
        )

    async def counts(self) -> "StoreCounts":
        """Return the number of unfinished runs by workflow, version and fingerprint of their code,
        and the number of runs that got False from `ctx.patched`, by name. The store keeps these
        counts, so this reads few records."""
        from keyrun.runtime.inspect.counts import counts_of

        return await counts_of(self._ledger)

    async def unfinished(self) -> dict[tuple[str, int], int]:
        """Return the number of unfinished runs, by workflow and version, from the counts that
        `counts` returns. Nothing is scanned."""
        unfinished = (await self.counts()).unfinished
        return {(each.workflow, each.version): each.runs for each in unfinished}

    @property
    def unreadable(self) -> int:
        """Return the number of damaged records that the listings of this reader left out."""
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
    """Open a store for reading, also while a runtime of another process uses it:
    `async with open_reader("state/") as reader:`.

    - `store`: a path or a `Store`.
    - `workflows`: needed only to decode results of declared classes.
    - `namespace`, `transform`: those of the runtime that writes the store.
    - `wall`: the wall clock, in seconds since the epoch.
    """
    if not isinstance(store, Store):
        store = LmdbStore(store, read_only=True)
    async with store:
        ledger = Ledger(store.namespace(namespace))
        yield Reader(
            ledger, StatusReader(ledger, PayloadCodec(transform), Registry(workflows)), wall
        )
