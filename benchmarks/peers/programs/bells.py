"""Bells: how the last task of a run tells the client in the same process that the run has ended."""

from itertools import count
from threading import Event


class Bells:
    """One bell per run that somebody waits for."""

    def __init__(self) -> None:
        self._numbers = count()
        self._waiting: dict[int, Event] = {}

    def hang(self) -> int:
        """Make one, and give its number."""
        number = next(self._numbers)
        self._waiting[number] = Event()
        return number

    def ring(self, number: int) -> None:
        """The run has ended. Nobody waits for one that is unknown."""
        bell = self._waiting.get(number)
        if bell is not None:
            bell.set()

    def wait(self, number: int) -> None:
        """Until it rings."""
        self._waiting[number].wait()
        del self._waiting[number]
