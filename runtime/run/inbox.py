"""The inbox of a run: the signals that it has not taken, and the waits of its branches.

Signals are taken in the order in which they arrived, by the waits in the order in which they began.
The journal has that order. So when a run is driven again, a signal is kept for the branch that
waited first, even if another branch reaches its wait earlier.
"""

from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from keyrun.runtime.records.journal_entry import CallRecord
    from keyrun.runtime.run.journal import Journal
    from keyrun.runtime.run.wait import Wait


class Signal(NamedTuple):
    """A signal to a run. `sequence` is its position among all signals to the run."""

    sequence: int
    channel: str
    payload: bytes
    at: float
    signal_id: str | None


class Inbox:
    """The signals to a run, and its waits by their identity."""

    __slots__ = ("signals", "waits")

    def __init__(self) -> None:
        self.signals: list[Signal] = []
        self.waits: dict[str, Wait] = {}

    def put(self, signal: Signal, journal: "Journal") -> bool:
        """Add a signal. Return whether a wait takes it."""
        insort(self.signals, signal, key=attrgetter("sequence"))
        self.match(journal)
        return signal not in self.signals

    def has(self, channel: str) -> bool:
        """Return whether a channel has a signal that the code has not received."""
        return self.offers(channel) or any(
            wait.channel == channel and wait.signal is not None for wait in self.waits.values()
        )

    def offers(self, channel: str) -> bool:
        """Return whether a channel has a signal that no wait has taken."""
        return any(signal.channel == channel for signal in self.signals)

    def last(self) -> int:
        """Return the sequence number of the last signal."""
        taken = [wait.signal for wait in self.waits.values() if wait.signal is not None]
        return max((signal.sequence for signal in [*self.signals, *taken]), default=0)

    def is_awaited(self, signal: Signal, journal: "Journal") -> bool:
        """Return whether a branch waits for a signal according to the journal. The journal also has
        waits that a replay has not reached yet. Earlier signals are taken first."""
        if not journal.waited:
            return False
        earlier = sum(
            one.channel == signal.channel and one.sequence < signal.sequence for one in self.signals
        )
        taken = sum(
            wait.channel == signal.channel and wait.signal is not None
            for wait in self.waits.values()
        )
        return earlier + 1 + taken <= waits_on(journal, signal.channel)

    def enter(self, ident: str, wait: "Wait", journal: "Journal") -> None:
        """Add a wait, which may take a signal at once."""
        self.waits[ident] = wait
        if self.signals:
            self.match(journal)

    def leave(self, ident: str, journal: "Journal") -> None:
        """Remove a wait. A signal that it took and did not use is put back."""
        wait = self.waits.pop(ident, None)
        if wait is not None and wait.signal is not None:
            self.put(wait.signal, journal)

    def match(self, journal: "Journal") -> None:
        """Give the signals to the waits on their channels."""
        for signal in list(self.signals):
            wait = self._first(signal.channel, journal)
            if wait is not None:
                self.signals.remove(signal)
                wait.signal = signal
                wait.event.set()

    def _first(self, channel: str, journal: "Journal") -> "Wait | None":
        """Return the wait on a channel that began first and has no signal. None if that wait has
        not been reached again in this pass."""
        waits = [w for w in self.waits.values() if w.channel == channel and w.signal is None]
        if not waits:
            return None
        first = min(waits, key=attrgetter("rank"))
        if journal.waited and any(
            memory.rank < first.rank and ident not in self.waits
            for ident, memory in journal.memories.items()
            if _awaits(memory, channel)
        ):
            return None
        return first


def waits_on(journal: "Journal", channel: str) -> int:
    """Return the number of branches of a run that wait on a channel."""
    return sum(_awaits(memory, channel) for memory in journal.memories.values())


def _awaits(memory: "CallRecord", channel: str) -> bool:
    return memory.rank > 0 and memory.channel == channel and memory.outcome is None
