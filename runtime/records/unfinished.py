"""Unfinished runs: count them in the store, by workflow, version and fingerprint.

| table      | fields of a record                              | value                            |
|------------|-------------------------------------------------|----------------------------------|
| unfinished | workflow, version, fingerprint of its code      | runs that have not ended         |
| unpatched  | workflow, name of a patch                       | those of them that got `False`   |

1. A run counts from its admission to its end, while it has a place in its key's queue or a delay. A
   run whose records are damaged leaves the queue, and the counts.
2. A count changes in the commit that changes the run. Until then memory has a list of the changes.
   They are counted together when a group is about to be committed, and the group gets one record
   per count that has changed. So a short run costs two entries of a list, and the counts are exact
   after a crash.
3. The fingerprint of a run is in its status. It is None before the run has started, and if the
   source of the code cannot be read.
4. A store without counts is counted once, when it is opened. The same happens after a run was
   lost to a damaged record, because its share of the counts is not known.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.submission import StatusRecord
from keyrun.runtime.records.tables import Ledger, number_at, sealed

if TYPE_CHECKING:
    from keyrun.runtime.records.submission import Submission
    from keyrun.storage.group import Group

UNCOUNTED = b""
"""The fingerprint of a run that is in no count."""
PAGE = 1000
_MARK = "unfinished"
"""The record of `counter` that says that the store has counts."""

Version = tuple[str, int]
Code = tuple[str, int, bytes | None]
Patch = tuple[str, str]
Marks = tuple[int, int, int, int]


class Tally:
    """Counts by a few fields, in one table of the store."""

    __slots__ = ("_changed", "_counts", "_keys", "_ledger", "_table", "entered", "left")

    def __init__(self, ledger: Ledger, table: str) -> None:
        self._ledger = ledger
        self._table = table
        self.entered: list[Any] = []
        """Counts to increase by 1, each as often as it is listed."""
        self.left: list[Any] = []
        """Counts to decrease by 1."""
        self._counts: Counter[Any] = Counter()
        self._changed: set[Any] = set()
        """The counts to write into the next group."""
        self._keys: dict[Any, bytes] = {}

    def add(self, fields: tuple[Any, ...], by: int) -> None:
        """Change one count by 1 or -1."""
        (self.entered if by > 0 else self.left).append(fields)

    @property
    def counts(self) -> Mapping[Any, int]:
        """Return the counts with all changes."""
        if self.entered or self.left:
            entered, left = Counter(self.entered), Counter(self.left)
            self._changed.update(entered, left)
            self._counts.update(entered)
            self._counts.subtract(left)
            self.entered.clear()
            self.left.clear()
        return self._counts

    def stage(self, group: "Group") -> bool:
        """Stage the counts that have changed. Return False if a count became negative."""
        if not (self.entered or self.left or self._changed):
            return True
        counts = self.counts
        sound, records = True, group.table(self._table)
        for fields in self._changed:
            count = counts[fields]
            key = self._key(fields)
            if count > 0:
                records[key] = sealed(self._table, key, count, *fields)
                continue
            records[key] = None
            del self._counts[fields]
            sound = sound and not count
        self._changed.clear()
        return sound

    async def load(self) -> None:
        """Read the counts."""
        for _, (count, *fields) in await self._ledger.scan(self._table, self._ledger.prefix):
            self._counts[tuple(fields)] = count

    async def replace(self, counts: Mapping[Any, int]) -> None:
        """Replace all counts."""
        for key, _ in await self._ledger.store.scan(self._table, prefix=self._ledger.prefix):
            self._ledger.store.open_group().delete(self._table, key)
        self._counts = Counter(counts)
        self._changed = set(counts)
        self.entered.clear()
        self.left.clear()

    def _key(self, fields: tuple[Any, ...]) -> bytes:
        key = self._keys.get(fields)
        if key is None:
            # Names may be longer than a key.
            digest = sha256(repr(fields).encode()).digest()[:16]
            key = self._keys[fields] = self._ledger.prefix + digest
        return key


class UnfinishedRuns:
    """The counts of one namespace."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._runs = Tally(ledger, "unfinished")
        self._unpatched = Tally(ledger, "unpatched")
        self.entering = self._runs.entered
        """Workflow, version and fingerprint of runs that count from now on. On the path of every
        run, a method would be one more call."""
        self.leaving = self._runs.left
        """The same of runs that no longer count."""
        self._mark = ledger.name(_MARK)

    @property
    def by_code(self) -> dict[Code, int]:
        """Return the number of unfinished runs, by workflow, version and fingerprint."""
        return {code: runs for code, runs in self._runs.counts.items() if runs}

    @property
    def by_version(self) -> dict[Version, int]:
        """Return the number of unfinished runs, by workflow and version."""
        return by_version(self.by_code)

    @property
    def unpatched(self) -> dict[Patch, int]:
        """Return the number of unfinished runs that got `False` from `ctx.patched`, by workflow
        and name."""
        return {patch: runs for patch, runs in self._unpatched.counts.items() if runs}

    def of_other_code(
        self, fingerprint_of: Callable[[str, int], bytes | None]
    ) -> dict[Version, int]:
        """Return the number of unfinished runs that were started by other code than the code that
        is registered now, by workflow and version."""
        others: Counter[Version] = Counter()
        for (name, version, fingerprint), runs in self._runs.counts.items():
            today = fingerprint_of(name, version)
            if None not in (today, fingerprint) and today != fingerprint:
                others[name, version] += runs
        return dict(others)

    def enter(self, submission: "Submission", status: "StatusRecord") -> None:
        """Count a run again that did not count, with the fingerprint of its status."""
        self._change(submission, status.fingerprint, status.patches, 1)

    def leave(self, submission: "Submission", status: "StatusRecord") -> None:
        """Stop counting a run that is not driven."""
        self._change(submission, status.fingerprint, status.patches, -1)

    def started(
        self, submission: "Submission", counted: bytes | None, fingerprint: bytes | None
    ) -> bytes | None:
        """Count a run with the fingerprint that its status has from now on. Return the fingerprint
        that the run is counted with."""
        if counted is UNCOUNTED:
            return counted
        name, version = submission.workflow, submission.version
        self._runs.add((name, version, counted), -1)
        self._runs.add((name, version, fingerprint), 1)
        return fingerprint

    def patched(self, submission: "Submission", patches: Mapping[str, bool], by: int) -> None:
        """Count the answers that a run got from `ctx.patched`. With -1 for `by`, stop counting
        them."""
        for name, answer in patches.items():
            if not answer:
                self._unpatched.add((submission.workflow, name), by)

    def _change(
        self,
        submission: "Submission",
        fingerprint: bytes | None,
        patches: Mapping[str, bool] | None,
        by: int,
    ) -> None:
        self._runs.add((submission.workflow, submission.version, fingerprint), by)
        if patches:
            self.patched(submission, patches, by)

    def marks(self) -> Marks:
        """Return how many changes are waiting to be counted, for `undo`."""
        runs, unpatched = self._runs, self._unpatched
        return len(runs.entered), len(runs.left), len(unpatched.entered), len(unpatched.left)

    def undo(self, marks: Marks) -> None:
        """Take back the changes since `marks`, because the records that belong to them were
        dropped."""
        runs, unpatched = self._runs, self._unpatched
        lists = runs.entered, runs.left, unpatched.entered, unpatched.left
        for changes, mark in zip(lists, marks, strict=True):
            del changes[mark:]

    def doubt(self) -> None:
        """Count all runs again at the next open, because a run was lost and its share of the counts
        is not known."""
        self._ledger.store.open_group().delete("counter", self._mark)

    def stage(self, group: "Group") -> None:
        """Stage the counts that have changed in a group that is about to be committed."""
        sound = self._runs.stage(group)
        if not self._unpatched.stage(group) or not sound:
            group.delete("counter", self._mark)

    async def recover(self) -> None:
        """Read the counts, or count all runs if the store has no counts."""
        try:
            if await self._ledger.get("counter", self._mark) is not None:
                await self._runs.load()
                await self._unpatched.load()
                return
        except DAMAGE:
            pass
        await self._count()

    async def _count(self) -> None:
        ledger = self._ledger
        runs, unpatched = await count(ledger)
        await self._runs.replace(runs)
        await self._unpatched.replace(unpatched)
        group = ledger.store.open_group()
        group.put("counter", self._mark, sealed("counter", self._mark, 1))


async def count(ledger: Ledger) -> tuple[dict[Code, int], dict[Patch, int]]:
    """Count all runs that have a place or a delay, page by page."""
    runs: Counter[Code] = Counter()
    unpatched: Counter[Patch] = Counter()
    for table in ("queue", "delayed"):
        async for rows in ledger.pages(table, size=PAGE):
            for submission, status in await _read(ledger, _numbers(ledger, table, rows)):
                name, version = submission.workflow, submission.version
                runs[name, version, status.fingerprint] += 1
                for patch, answer in (status.patches or {}).items():
                    if not answer:
                        unpatched[name, patch] += 1
    return dict(runs), dict(unpatched)


async def _read(ledger: Ledger, numbers: list[int]) -> "list[tuple[Submission, StatusRecord]]":
    store, keys = ledger.store, [ledger.number(number) for number in numbers]
    submissions = await store.get_many("runs", keys)
    statuses = await store.get_many("status", keys)
    found = []
    for key, raw in submissions.items():
        stored = statuses.get(key)
        try:
            submission = ledger.read_submission(key, raw)
            status = StatusRecord() if stored is None else ledger.read_status(key, stored)
        except DAMAGE:
            continue  # the run leaves its queue when it is loaded
        found.append((submission, status))
    return found


def _numbers(ledger: Ledger, table: str, rows: list[tuple[bytes, bytes]]) -> list[int]:
    """Return the numbers of the runs in records of `queue` or `delayed`."""
    if table == "delayed":
        return [ledger.split_timed(key)[1] for key, _ in rows]
    found = []
    for key, raw in rows:
        try:
            found.append(number_at(key, raw, ledger.split_place(key)[1]))
        except DAMAGE:
            continue  # recovery reports it
    return found


def by_version(counts: Mapping[Code, int]) -> dict[Version, int]:
    """Return the same counts without fingerprints."""
    added: Counter[Version] = Counter()
    for (workflow, version, _), count in counts.items():
        added[workflow, version] += count
    return dict(added)


async def stored_counts(ledger: Ledger) -> UnfinishedRuns | None:
    """Return the counts of the last commit, for a process that only reads. None if the store has no
    counts."""
    counts = UnfinishedRuns(ledger)
    with ledger.store.view(), suppress(*DAMAGE):
        if await ledger.get("counter", ledger.name(_MARK)) is not None:
            await counts._runs.load()
            await counts._unpatched.load()
            return counts
    return None
