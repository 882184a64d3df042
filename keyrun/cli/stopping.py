"""Stopping: SIGINT and SIGTERM of a command that runs until it is stopped.

The first signal lets the command finish what it does. The second one ends the process at once, also
if code of the application holds the event loop. Like a crash, that loses nothing that is committed.
"""

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Self

import trio

SIGNALS = (signal.SIGINT, signal.SIGTERM)
FROM_SIGNAL = 128
"""What shells add to the number of a signal that ended a process."""


class Stopping:
    """The handler of the two signals, in a block. Before `call`, the first signal ends the process,
    as it does without a handler. (The first process of a container ignores signals without one.)"""

    def __init__(self) -> None:
        self._stop: Callable[[signal.Signals], None] | None = None

    def __enter__(self) -> Self:
        self._before = {each: signal.signal(each, self._received) for each in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def call(self, stop: Callable[[signal.Signals], None]) -> None:
        """Call `stop` in the loop of Trio with the first signal that arrives from now on."""
        token = trio.lowlevel.current_trio_token()
        self._stop = lambda number: token.run_sync_soon(stop, number)

    def _received(self, number: int, frame: FrameType | None) -> None:
        stop, self._stop = self._stop, None
        if stop is None:
            os._exit(FROM_SIGNAL + number)
        stop(signal.Signals(number))
