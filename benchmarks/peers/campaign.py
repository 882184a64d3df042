"""The campaign: every task on every peer, Keyrun before, between and after them.

What the machine does beside it hits Keyrun as well as the others that way. One peer that fails, or
is missing, keeps nobody else from being measured.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic

import attrs

from benchmarks.peers import trial
from benchmarks.peers.catalogue import KEYRUN, KEYRUN_ACTORS, keyrun_for
from benchmarks.peers.child import Failed
from benchmarks.peers.drive import sync_ms
from benchmarks.peers.environment import Environment, Missing, prepare
from benchmarks.peers.isolation import prefix
from benchmarks.peers.peer import Peer
from benchmarks.peers.progress import Progress
from benchmarks.peers.record import Record
from benchmarks.peers.work import Task, quick
from benchmarks.report import machine

PEERS_BETWEEN = 3
"""How many peers are measured before Keyrun is again."""

Prepare = Callable[[Peer, Path], Environment]
Perform = Callable[[Peer, Environment, Task], trial.Facts]


@attrs.define(kw_only=True)
class Campaign:
    """What is to be measured. `prepare` and `perform` can be replaced, to see what it does."""

    peers: Sequence[Peer]
    tasks: Sequence[Task]
    cache: Path
    quick: bool = False
    short_turns: bool = False
    """Whether this process, and what it starts, was given them."""
    progress: Progress = attrs.field(factory=Progress)
    prepare: Prepare = prepare
    perform: Perform = trial.perform
    _environments: dict[str, Environment] = attrs.field(factory=dict, init=False)

    def run(self) -> Record:
        """Measure."""
        record = Record(
            machine=machine(),
            isolated=bool(prefix()),
            quick=self.quick,
            short_turns=self.short_turns,
            load=os.getloadavg()[0],
        )
        started = monotonic()
        self._install(record)
        record.sync_ms.append(sync_ms())
        trials = list(self._trials())
        for at, (peer, task) in enumerate(trials):
            self.progress.show(f"{task.name}: {peer.title}", at, len(trials))
            try:
                facts = self.perform(peer, self._environments[peer.name], task)
            except Failed as failure:
                record.fail(task.name, peer.name, str(failure))
                self.progress.note(f"{task.name}: {peer.title} {failure}")
            else:
                record.add(task.name, peer.name, facts)
        self.progress.end()
        record.sync_ms.append(sync_ms())
        record.seconds = monotonic() - started
        return record

    def _install(self, record: Record) -> None:
        everybody = [KEYRUN, KEYRUN_ACTORS, *self.peers]
        for at, peer in enumerate(everybody):
            self.progress.show(f"installing {peer.title}", at, len(everybody))
            try:
                environment = self.prepare(peer, self.cache)
            except Missing as missing:
                record.missing[peer.name] = str(missing)
                self.progress.note(f"{peer.title} is missing: {missing}")
                continue
            self._environments[peer.name] = environment
            record.versions[peer.name] = environment.versions

    def _trials(self) -> Iterator[tuple[Peer, Task]]:
        """Everything in order: task by task, and in each Keyrun again after some peers."""
        for wanted in self.tasks:
            task = quick(wanted) if self.quick else wanted
            keyrun = keyrun_for(task.name)
            able = [
                peer
                for peer in self.peers
                if peer.name in self._environments and task.name not in peer.lacks
            ]
            yield keyrun, task
            for at, peer in enumerate(able, start=1):
                yield peer, task
                if at % PEERS_BETWEEN == 0 or at == len(able):
                    yield keyrun, task
