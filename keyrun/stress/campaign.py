"""The campaign: starts the child, kills it, starts it again on the same store, until all has ended.

The campaign kills the child at random times, sometimes while the child still recovers from the
last kill. After `seconds` there are no more kills and no more submits, so that all runs end.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from subprocess import PIPE, Popen, TimeoutExpired
from time import monotonic
from types import FrameType
from typing import Any

import attrs

from keyrun.stress.child import Setup
from keyrun.stress.evidence import Mark, Tail
from keyrun.stress.record import CampaignRecord

CHILD = (sys.executable, "-m", "keyrun.stress.child")
LOOK = 0.05
DRAIN = 15.0
"""Seconds that a child has to close its runtime after SIGTERM."""
EARLY = 0.1
"""The share of kills that come while the child opens its store."""


@attrs.frozen(kw_only=True)
class Assignment:
    """The work of the child, and its folder. After `timeout` seconds without a new line of
    evidence, the campaign fails."""

    folder: Path
    planner: str
    options: dict[str, Any]
    workflow: str
    keys: int
    runs: int
    seconds: float
    crash_every: float
    seed: int
    backlog: int = 4
    slots: int
    committer: str = "inline"
    child: Sequence[str] = CHILD
    timeout: float = 30.0
    committers: float = 0.0
    """The share of kills that hit only the committer process, if there is one."""
    most_kills: float = float("inf")
    control: bool = False
    """Whether the child serves its control plane."""


class Terminated(KeyboardInterrupt):
    """The interrupt of a SIGTERM."""


@contextmanager
def stoppable() -> Iterator[None]:
    """Return a block that SIGTERM interrupts with `Terminated`, as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _children(pid: int) -> list[int]:
    """Return the child processes of a process, if the system has `/proc`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = stat.read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid:
                found.append(int(stat.parent.name))
    return found


class Broken(Exception):
    """Raised if the child failed or did nothing for too long. The text says how."""


class Campaign:
    """One campaign. `record` has all evidence, including that of earlier campaigns on this
    folder."""

    def __init__(self, assignment: Assignment, record: CampaignRecord) -> None:
        self.assignment = assignment
        self.record = record
        self.kills = 0
        self.orphaned = 0
        """The number of kills of only the committer."""
        self.stopping = False
        """Whether the child was asked to stop, and its running steps may finish."""
        self._tail = Tail(self._evidence)
        self._chance = Random(f"{assignment.seed}/kills")
        self._look()
        self._spent = record.seconds()
        """Seconds that earlier campaigns on this folder have used up."""
        self._began = float("inf")

    @property
    def _evidence(self) -> Path:
        return self.assignment.folder / "evidence.log"

    @property
    def elapsed(self) -> float:
        """Return the seconds since the child began to work, including those of earlier
        campaigns."""
        return self._spent + max(0.0, monotonic() - self._began)

    def run(self, progress: Callable[["Campaign"], None]) -> None:
        """Run the child, and start it again after each kill, until all runs have ended. Raises
        `Broken` if the child fails."""
        while not self.record.done:
            self._live(progress)

    def _live(self, progress: Callable[["Campaign"], None]) -> None:
        assignment, record = self.assignment, self.record
        self._mend()
        life = record.lives
        with self._child(progress) as child:
            began = record.last_at = monotonic()
            kill_at = float("inf")
            while True:
                try:
                    code = child.wait(LOOK)
                except TimeoutExpired:
                    code = None
                self._look()
                progress(self)
                if record.lives > life and life >= 0:
                    # Without the imports: a kill during them would test nothing.
                    self._began = min(self._began, monotonic())
                    life, kill_at = -1, self._kill_time(monotonic())
                if code is not None:
                    if not record.done:
                        raise Broken(f"the child ended with exit code {code}: {self._said()}")
                    return
                now = monotonic()
                if now >= kill_at and life < 0 and not record.done:
                    self._kill(child)
                    self.kills += 1
                    self._look()
                    return
                if now - max(began, record.last_at) > assignment.timeout:
                    raise Broken(f"nothing happened for {assignment.timeout:g} s: {self._left()}")

    def _kill(self, child: Popen[bytes]) -> None:
        """Kill it, or only the process that commits for it, which it cannot survive."""
        alone = self._chance.random() < self.assignment.committers
        committers = _children(child.pid) if alone else []
        if not committers:
            child.kill()
            child.wait()
            return
        self.orphaned += 1
        for each in committers:
            os.kill(each, signal.SIGKILL)
        try:
            child.wait(self.assignment.timeout)
        except TimeoutExpired:
            raise Broken("the child did not end after its committer was killed") from None

    def _kill_time(self, now: float) -> float:
        every = self.assignment.crash_every
        after = every * self._chance.uniform(0.5, 1.5)
        if self._chance.random() < EARLY:
            after = self._chance.uniform(0.0, 0.1)
        if not every or self.kills >= self.assignment.most_kills:
            return float("inf")
        if self.elapsed + after >= self.assignment.seconds:
            return float("inf")
        return now + after

    @contextmanager
    def _child(self, progress: Callable[["Campaign"], None]) -> Iterator[Popen[bytes]]:
        assignment, record = self.assignment, self.record
        setup = Setup(
            planner=assignment.planner,
            options=assignment.options,
            workflow=assignment.workflow,
            folder=str(assignment.folder),
            life=record.lives + 1,
            keys=assignment.keys,
            runs=assignment.runs,
            submit_for=max(0.0, assignment.seconds - self.elapsed),
            backlog=assignment.backlog,
            slots=assignment.slots,
            committer=assignment.committer,
            begun=record.begun,
            cancels=record.cancels,
            paused=record.paused,
            control=assignment.control,
        )
        with (assignment.folder / "child.err").open("ab") as errors:
            # In a session of its own, so that Ctrl-C is for this process to answer.
            child = Popen(list(assignment.child), stdin=PIPE, stderr=errors, start_new_session=True)
        with child:
            try:
                assert child.stdin is not None
                try:
                    child.stdin.write(setup.encoded())
                    child.stdin.flush()
                except BrokenPipeError:
                    # What is left in the buffer would raise again when the pipe is closed.
                    with suppress(BrokenPipeError):
                        child.stdin.close()
                yield child
            except KeyboardInterrupt:
                # Not a kill: the running steps may finish. A second Ctrl-C kills the child.
                child.terminate()
                self.stopping = True
                progress(self)
                with suppress(TimeoutExpired):
                    child.wait(DRAIN)
                self._look()
                raise
            finally:
                if child.poll() is None:
                    child.send_signal(signal.SIGKILL)

    def _look(self) -> None:
        for line in self._tail.read():
            self.record.note(line)

    def _mend(self) -> None:
        """End the last line, which a kill may have cut short, so that the next line is complete."""
        if not self._evidence.exists() or not self._evidence.stat().st_size:
            return
        with self._evidence.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")

    def _said(self) -> str:
        text = (self.assignment.folder / "child.err").read_text(errors="replace").strip()
        return os.linesep.join(text.splitlines()[-12:]) or "its stderr is empty"

    def _left(self) -> str:
        record = self.record
        begun = {line.run for line in record.lines if line.mark is Mark.ACKNOWLEDGED}
        left = sorted(begun - record.reported)
        named = ", ".join(f"run-{number}" for number in left[:5])
        return f"{len(left)} unfinished runs: {named or 'none'}"
