"""The evidence of what ran, kept by the process that ran it: steps of runs, messages of keys."""

import time
from collections.abc import Callable


class Steps:
    """The steps that ran in this process, by name. Threads may mark them too."""

    def __init__(self) -> None:
        self.blocking = False
        """Whether a second step is to block, until the process is killed."""
        self.ran: dict[str, list[str]] = {"first": [], "second": [], "third": []}

    def mark(self, step: str, run: str = "") -> None:
        """`step` of `run` was begun."""
        self.ran[step].append(run)

    def count(self, step: str) -> int:
        """How often `step` was begun."""
        return len(self.ran[step])


class Inbox:
    """The messages that were handled in this process, in the order in which they were. Threads may
    take them too."""

    def __init__(self) -> None:
        self.expected = 0
        self._keys = self._messages = 0
        self._log: list[tuple[str, int]] = []

    def expect(self, keys: int, messages: int) -> None:
        """So many messages will come to each of so many keys."""
        self.expected = keys * messages
        self._keys, self._messages = keys, messages

    def take(self, key: str, number: int) -> None:
        """Message `number` of `key` was handled."""
        self._log.append((key, number))

    @property
    def handled(self) -> int:
        """How many were."""
        return len(self._log)

    @property
    def complete(self) -> bool:
        """Whether as many were handled as were sent."""
        return self.handled >= self.expected

    def disordered(self) -> int:
        """How many keys did not get each message once and in order."""
        by_key: dict[str, list[int]] = {f"key-{key}": [] for key in range(self._keys)}
        for key, number in self._log:
            by_key[key].append(number)
        return sum(got != list(range(self._messages)) for got in by_key.values())


def wait_until(condition: Callable[[], bool], *, pause: float = 0.005) -> None:
    """Look until it is so."""
    while not condition():
        time.sleep(pause)
