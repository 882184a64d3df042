"""Run counts: count unfinished runs and dead letters in the store.

| table       | fields of a record                             | value                            |
|-------------|------------------------------------------------|----------------------------------|
| unfinished  | workflow, version, fingerprint of its code, state | runs that have not ended      |
| unpatched   | workflow, name of a patch                      | those of them that got `False`   |
| dead_counts | workflow                                       | dead letters                     |

1. A run counts from its admission to its end. The state is that of its stored status. The
   state of an evicted run ends in `*`. A run whose records are damaged and that was set aside has
   the state `aside`.
2. A count changes in the commit that changes the run. Until then memory has a list of the changes.
   They are counted together when a group is about to be committed, and the group gets one record
   per count that has changed. So a short run costs two entries of a list, and the counts are exact
   after a crash.
3. The fingerprint of a run is in its status. It is None before the run has started, and if the
   source of the code cannot be read. `StatusRecord.counted` returns what a run is counted as.
4. A store without counts is counted once, when it is opened. The same happens after a run was
   lost to a damaged record, because its share of the counts is not known.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.pages import Rows
from keyrun.runtime.records.submission import ASIDE, Counted, StatusRecord
from keyrun.runtime.records.tables import Ledger, number_at, sealed

if TYPE_CHECKING:
    from keyrun.runtime.records.submission import Submission
    from keyrun.storage.group import Group

PAGE = 1000
_MARK = "unfinished"
"""The record of `counter` that says that the store has counts."""
_FORM = 2
"""The form of the counts, in that record. Counts of another form are made again."""

Version = tuple[str, int]
Code = tuple[str, int, bytes | None]
CodeAndState = tuple[str, int, bytes | None, str]
Patch = tuple[str, str]
Marks = list[int]


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


class RunCounts:
    """The counts of one namespace."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._runs = Tally(ledger, "unfinished")
        self._unpatched = Tally(ledger, "unpatched")
        self._dead = Tally(ledger, "dead_counts")
        self._tallies = (self._runs, self._unpatched, self._dead)
        self._changes = [changes for each in self._tallies for changes in (each.entered, each.left)]
        self.entering = self._runs.entered
        """Workflow, version, fingerprint and state of runs that count from now on. On the path of
        every run, a method would be one more call."""
        self.leaving = self._runs.left
        """The same of runs that no longer count."""
        self._mark = ledger.name(_MARK)

    @property
    def all(self) -> "Counts":
        """Return all counts that are not zero."""
        runs, unpatched, dead = (
            {fields: number for fields, number in each.counts.items() if number}
            for each in self._tallies
        )
        return Counts(runs, unpatched, dead)

    @property
    def by_state(self) -> dict[tuple[str, int, str], int]:
        """Return the number of unfinished runs, by workflow, version and state."""
        added: Counter[tuple[str, int, str]] = Counter()
        for (workflow, version, _, state), runs in self._runs.counts.items():
            if runs:
                added[workflow, version, state] += runs
        return dict(added)

    @property
    def by_code(self) -> dict[Code, int]:
        """Return the number of unfinished runs, by workflow, version and fingerprint."""
        return by_code(self._runs.counts)

    @property
    def by_version(self) -> dict[Version, int]:
        """Return the number of unfinished runs, by workflow and version."""
        return by_version(self.by_code)

    @property
    def unpatched(self) -> dict[Patch, int]:
        """Return the number of unfinished runs that got `False` from `ctx.patched`, by workflow
        and name."""
        return {patch: runs for patch, runs in self._unpatched.counts.items() if runs}

    @property
    def dead_letters(self) -> dict[str, int]:
        """Return the number of dead letters, by workflow."""
        return {workflow: runs for (workflow,), runs in self._dead.counts.items() if runs}

    def of_other_code(
        self, fingerprint_of: Callable[[str, int], bytes | None]
    ) -> dict[Version, int]:
        """Return the number of unfinished runs that were started by other code than the code that
        is registered now, by workflow and version."""
        others: Counter[Version] = Counter()
        for (name, version, fingerprint), runs in self.by_code.items():
            today = fingerprint_of(name, version)
            if None not in (today, fingerprint) and today != fingerprint:
                others[name, version] += runs
        return dict(others)

    def enter(self, submission: "Submission", status: "StatusRecord") -> None:
        """Count a run again that did not count, as its status says."""
        self._change(submission, status, 1)

    def leave(self, submission: "Submission", status: "StatusRecord") -> None:
        """Stop counting a run that is not driven. `status` is its stored status."""
        self._change(submission, status, -1)

    def moved(self, submission: "Submission", before: Counted, now: Counted) -> None:
        """Count a run as its stored status says from now on."""
        name, version = submission.workflow, submission.version
        self._runs.add((name, version, *before), -1)
        self._runs.add((name, version, *now), 1)

    def patched(self, submission: "Submission", patches: Mapping[str, bool], by: int) -> None:
        """Count the answers that a run got from `ctx.patched`. With -1 for `by`, stop counting
        them."""
        for name, answer in patches.items():
            if not answer:
                self._unpatched.add((submission.workflow, name), by)

    def died(self, submission: "Submission", by: int = 1) -> None:
        """Count a run as a dead letter. With -1 for `by`, stop counting it."""
        self._dead.add((submission.workflow,), by)

    def _change(self, submission: "Submission", status: "StatusRecord", by: int) -> None:
        fingerprint, state = status.counted()
        self._runs.add((submission.workflow, submission.version, fingerprint, state), by)
        if status.patches and state != ASIDE:
            self.patched(submission, status.patches, by)

    def marks(self) -> Marks:
        """Return how many changes are waiting to be counted, for `undo`."""
        return [len(changes) for changes in self._changes]

    def undo(self, marks: Marks) -> None:
        """Take back the changes since `marks`, because the records that belong to them were
        dropped."""
        for changes, mark in zip(self._changes, marks, strict=True):
            del changes[mark:]

    def doubt(self) -> None:
        """Count all runs again at the next open, because a run was lost and its share of the counts
        is not known."""
        self._ledger.store.open_group().delete("counter", self._mark)

    def stage(self, group: "Group") -> None:
        """Stage the counts that have changed in a group that is about to be committed."""
        sound = [each.stage(group) for each in self._tallies]
        if not all(sound):
            group.delete("counter", self._mark)

    async def recover(self) -> None:
        """Read the counts, or count all runs if the store has no counts."""
        try:
            if await self.load():
                return
        except DAMAGE:
            pass
        await self._count()

    async def load(self) -> bool:
        """Read the counts. Return whether the store has them."""
        if await self._ledger.get("counter", self._mark) != [_FORM]:
            return False
        for each in self._tallies:
            await each.load()
        return True

    async def _count(self) -> None:
        ledger = self._ledger
        counted = await count(ledger)
        await self._runs.replace(counted.runs)
        await self._unpatched.replace(counted.unpatched)
        await self._dead.replace(counted.dead)
        group = ledger.store.open_group()
        group.put("counter", self._mark, sealed("counter", self._mark, _FORM))


class Counts(NamedTuple):
    """The counts of a store, as its records say."""

    runs: dict[CodeAndState, int]
    unpatched: dict[Patch, int]
    dead: dict[tuple[str], int]


async def count(ledger: Ledger) -> Counts:
    """Count all unfinished runs and dead letters, page by page."""
    runs: Counter[CodeAndState] = Counter()
    unpatched: Counter[Patch] = Counter()
    dead: Counter[tuple[str]] = Counter()
    for table in ("queue", "delayed"):
        async for rows in ledger.pages(table, size=PAGE):
            for submission, status in await _read(ledger, _numbers(ledger, table, rows)):
                name, version = submission.workflow, submission.version
                runs[name, version, *status.counted()] += 1
                for patch, answer in (status.patches or {}).items():
                    if not answer:
                        unpatched[name, patch] += 1
    async for rows in ledger.pages("dead", size=PAGE):
        for submission, _ in await _read(ledger, _numbers(ledger, "dead", rows)):
            dead[(submission.workflow,)] += 1
    async for rows in ledger.pages("status", size=PAGE):
        for submission, status in await _read(ledger, _set_aside(ledger, rows)):
            runs[submission.workflow, submission.version, *status.counted()] += 1
    return Counts(dict(runs), dict(unpatched), dict(dead))


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


def _numbers(ledger: Ledger, table: str, rows: Rows) -> list[int]:
    """Return the numbers of the runs in records of `queue`, `delayed` or `dead`."""
    if table == "delayed":
        return [ledger.split_timed(key)[1] for key, _ in rows]
    if table == "dead":
        return [ledger.split_number(key)[0] for key, _ in rows]
    found = []
    for key, raw in rows:
        try:
            found.append(number_at(key, raw, ledger.split_place(key)[1]))
        except DAMAGE:
            continue  # recovery reports it
    return found


def _set_aside(ledger: Ledger, rows: Rows) -> list[int]:
    """Return the numbers of the runs that were set aside, in records of `status`."""
    found = []
    for key, raw in rows:
        with suppress(*DAMAGE):
            if ledger.read_status(key, raw).counted()[1] == ASIDE:
                found.append(ledger.split_number(key)[0])
    return found


def by_code(counts: Mapping[CodeAndState, int]) -> dict[Code, int]:
    """Return the same counts without states, and without runs that were set aside."""
    added: Counter[Code] = Counter()
    for (workflow, version, fingerprint, state), runs in counts.items():
        if runs and state != ASIDE:
            added[workflow, version, fingerprint] += runs
    return dict(added)


def by_version(counts: Mapping[Code, int]) -> dict[Version, int]:
    """Return the same counts without fingerprints."""
    added: Counter[Version] = Counter()
    for (workflow, version, _), count in counts.items():
        added[workflow, version] += count
    return dict(added)


async def stored_counts(ledger: Ledger) -> RunCounts | None:
    """Return the counts of the last commit, for a process that only reads. None if the store has no
    counts."""
    counts = RunCounts(ledger)
    with ledger.store.view(), suppress(*DAMAGE):
        if await counts.load():
            return counts
    return None
