"""The inbox of a run: what it was sent and has not taken, and who in it waits for what.

Signals are taken in the order in which they came, by those who wait in the order in which they
began to, which the journal knows. So when a run is driven again, a signal is kept for the branch
that waited first, even where another one gets there sooner.
"""

from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from keyrun.runtime.records.journal_entry import CallRecord
    from keyrun.runtime.run.journal import Journal
    from keyrun.runtime.run.wait import Wait


class Signal(NamedTuple):
    """One thing that a run was sent; `sequence` is its place among all that were sent."""

    sequence: int
    channel: str
    payload: bytes
    at: float
    signal_id: str | None


class Inbox:
    """What a run was sent, and its waits by their identity."""

    __slots__ = ("signals", "waits")

    def __init__(self) -> None:
        self.signals: list[Signal] = []
        self.waits: dict[str, Wait] = {}

    def put(self, signal: Signal, journal: "Journal") -> bool:
        """Take a signal in. Says whether somebody who waits gets it."""
        insort(self.signals, signal, key=attrgetter("sequence"))
        self.match(journal)
        return signal not in self.signals

    def has(self, channel: str) -> bool:
        """Whether there is something on a channel that was not taken."""
        return self.offers(channel) or any(
            wait.channel == channel and wait.signal is not None for wait in self.waits.values()
        )

    def offers(self, channel: str) -> bool:
        """Whether there is something on a channel that nobody has yet."""
        return any(signal.channel == channel for signal in self.signals)

    def last(self) -> int:
        """The place of the last that is there."""
        taken = [wait.signal for wait in self.waits.values() if wait.signal is not None]
        return max((signal.sequence for signal in [*self.signals, *taken]), default=0)

    def is_awaited(self, signal: Signal, journal: "Journal") -> bool:
        """Return whether a branch waits for a signal according to the journal, which knows waits
        that the run has not come to again yet. Earlier signals are taken first."""
        if not journal.waited:
            return False
        earlier = [one for one in self.signals if one.channel == signal.channel]
        taken = sum(
            wait.channel == signal.channel and wait.signal is not None
            for wait in self.waits.values()
        )
        return earlier.index(signal) + 1 + taken <= waits_on(journal, signal.channel)

    def enter(self, ident: str, wait: "Wait", journal: "Journal") -> None:
        """Somebody waits; it may be there already."""
        self.waits[ident] = wait
        if self.signals:
            self.match(journal)

    def leave(self, ident: str, journal: "Journal") -> None:
        """Somebody does not wait any more: what they did not take is there for others."""
        wait = self.waits.pop(ident, None)
        if wait is not None and wait.signal is not None:
            self.put(wait.signal, journal)

    def match(self, journal: "Journal") -> None:
        """Give what is there to those who wait for it."""
        for signal in list(self.signals):
            wait = self._first(signal.channel, journal)
            if wait is not None:
                self.signals.remove(signal)
                wait.signal = signal
                wait.event.set()

    def _first(self, channel: str, journal: "Journal") -> "Wait | None":
        """Who began to wait first and has nothing yet; None if that one was not yet asked again."""
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
    """Return how many branches of a run wait on a channel."""
    return sum(_awaits(memory, channel) for memory in journal.memories.values())


def _awaits(memory: "CallRecord", channel: str) -> bool:
    return memory.rank > 0 and memory.channel == channel and memory.outcome is None
