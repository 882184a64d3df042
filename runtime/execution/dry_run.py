"""The dry run: drives a run against its journal, without a store and without running a step.

A call with a journaled outcome gets it, in the order of the journal, as after a crash. A call
without one waits. When nothing else can continue, the journal is at its end, or the code
contradicts it. Time passes only then, and only while there are outcomes left, so a timer delays
nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import trio

from keyrun.actors.pool import Suspension
from keyrun.runtime.definitions.step import StepFunction
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.errors import NonDeterminism
from keyrun.runtime.pass_end import Unwind
from keyrun.runtime.records.exported import Records
from keyrun.runtime.records.journal_entry import JournalEntry
from keyrun.runtime.records.submission import StatusRecord
from keyrun.runtime.records.tables import Ledger
from keyrun.runtime.redaction import SHOW_ALL, Redaction
from keyrun.runtime.run.journal import Journal
from keyrun.runtime.run.run import Run
from keyrun.runtime.run.wait import Wait
from keyrun.runtime.values import State
from keyrun.storage import MemoryStore
from keyrun.storage.payload import PayloadCodec

if TYPE_CHECKING:
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.run.services import KeyQueueOfRun


_PASSES = 100
"""The number of passes of the loop that a dry run waits for branches that have asked nothing."""


class DryRunState:
    """The state of the partition in a dry run: nothing is paused, and nothing is stored."""

    failure = None
    feed = None
    metrics = None
    tracer = None

    def __init__(self, codec: PayloadCodec, redaction: Redaction, at: float) -> None:
        self.codec = codec
        self.redaction = redaction
        self.suspension = Suspension()
        self.ledger = Ledger(MemoryStore().namespace("dry-run"))
        self._at = at

    def wall(self) -> float:
        """Return the time of the last entry."""
        return self._at

    steady = wall


class DryRunJournal(Journal):
    """A journal that knows when no branch can continue."""

    __slots__ = ("asking", "parked", "run", "timers")

    def __init__(self, run: "DryRun") -> None:
        super().__init__()
        self.run = run
        self.asking = 0
        """The number of branches that have asked for an outcome, and let others ask first."""
        self.parked = 0
        """The number of branches that wait for something that a dry run does not do."""
        self.timers: list[trio.Event] = []
        """The waits for a time, in the order in which they began."""

    def waiting(self) -> int:
        return super().waiting() + self.parked

    def check_stuck(self) -> None:
        if self.scopes:
            self.advance()
        if self.tasks > self.waiting():
            return
        asked = self.expected is None or not self.expected.left
        if self.timers and (self.unread() is not None or not asked):
            self.parked -= 1
            self.timers.pop(0).set()
            return
        super().check_stuck()
        if not self.waiters and not self.resting and not self.held:
            self.run.unwind(Unwind.LEAVE)


class DryRun(Run):
    """A run that is driven to find the calls that it makes. It stages nothing. `given` has the
    values of steps that the journal does not have."""

    __slots__ = ("asks", "came_to", "given", "known", "new", "outcomes", "records")
    is_dry_run = True

    def __init__(
        self,
        records: Records,
        workflow: Workflow[Any, Any],
        codec: PayloadCodec,
        given: Mapping[str, Any],
        redaction: Redaction = SHOW_ALL,
    ) -> None:
        stage = DryRunState(codec, redaction, records.last_at)
        super().__init__(
            cast("PartitionState", stage),
            cast("KeyQueueOfRun", None),
            records.submission,
            StatusRecord(),
            workflow,
        )
        if records.status is not None and records.status.patches is not None:
            self.status.patches = dict(records.status.patches)
        self.records = records
        self.given = given
        self.journal: DryRunJournal = DryRunJournal(self)
        for sequence, entry in records.entries:
            self.journal.fold(sequence, entry)
        self.journal.expect(workflow.kind)
        self.known = frozenset(self.journal.memories)
        self.outcomes = self.journal.outcomes()
        self.careful = True
        self.asks: list[str] = []
        """The calls that wait and are not cancelled."""
        self.new: list[str] = []
        """Steps that the journal does not have."""
        self.came_to = State.RUNNING

    def resume(self) -> None:
        """Do nothing: a dry run is never paused, and is in no queue."""

    def write(self, entry: JournalEntry) -> None:
        """Do nothing: a dry run stages nothing."""

    async def dry_run_step(self, step: StepFunction[..., Any], ident: str) -> Any:
        if ident in self.given:
            codec = self.partition.codec
            return codec.decode(codec.encode(self.given[ident], step.declared), step.declared)
        if ident not in self.known:
            self.new.append(ident)
        return await self._park(ident, trio.Event())

    def is_stopped(self) -> bool:
        """Return False: a dry run may always ask for the next step."""
        return False

    def is_held(self) -> bool:
        """Return False: nothing can pause a dry run."""
        return False

    async def let_others_ask(self) -> None:
        """Wait while another branch can continue by itself. A branch of a nested `gather` begins
        one pass of the loop after the branch around it. Code that awaits anything but its context
        is not waited for."""
        journal = self.journal
        journal.asking += 1
        try:
            for _ in range(_PASSES):
                await trio.lowlevel.checkpoint()
                if journal.tasks <= journal.waiting() + journal.asking:
                    break
        finally:
            journal.asking -= 1

    async def dry_run_wait(self, label: str) -> Any:
        return await self._park(label, trio.Event())

    async def wait(self, wait: Wait) -> None:
        passed = trio.Event()
        if wait.channel is None:
            self.journal.timers.append(passed)
        await self._park(wait.label, passed)

    async def _park(self, asked: str, passed: trio.Event) -> None:
        """Wait for something that a dry run does not do."""
        journal = self.journal
        self.asks.append(asked)
        journal.parked += 1
        journal.check_stuck()
        try:
            await passed.wait()
        finally:
            if not passed.is_set():
                journal.parked -= 1
                if passed in journal.timers:
                    journal.timers.remove(passed)
            if self.unwinding is None:
                self.asks.remove(asked)

    def contradiction(self, said: str) -> NonDeterminism:
        """Return an error about this run."""
        return NonDeterminism(said, run_id=self.run_id, key=self.key)
