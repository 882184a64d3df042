"""The journal follower: reads the journal of a run from the store, in slices.

A journal may have any number of entries, and whoever reads it shares the loop with all runs. So a
slice takes about `SLICE` seconds, and other tasks run between two slices. A journal only grows,
except that a machine and `continue_as` replace it: then the first entry changes, and the follower
starts again from the beginning.
"""

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TypeVar

import trio

from keyrun.runtime.records.pages import Rows
from keyrun.runtime.records.tables import Ledger

T = TypeVar("T")

SLICE = 0.002
"""Seconds after which other tasks get a turn."""
_FIRST = 32
_MOST = 512
"""Entries in the first slice, and in the largest."""


class JournalFollower:
    """Reads what is new in the journal of a run. It calls `take` with the records of each slice,
    and `restart` when the records that it has read are gone."""

    def __init__(
        self,
        ledger: Ledger,
        number: int,
        take: Callable[[Rows], None],
        restart: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._prefix = ledger.number(number)
        self._first = ledger.entry(number, 0)
        self._take = take
        self._restart = restart
        self._size = _FIRST
        self._after = b""
        self._before: bytes | None = None
        """The entry with sequence number 0, which stands for all that was replaced."""

    async def catch_up(self, finish: Callable[[], Awaitable[T]]) -> T:
        """Read all entries since the last call. Return the result of `finish`, which is called in
        the view of the last slice, so that it reads records of the same commit."""
        store = self._ledger.store
        while True:
            started = perf_counter()
            with store.view():
                before = await store.get("journal", self._first)
                if before != self._before:
                    if self._after:
                        self._after = b""
                        self._restart()
                    self._before = before
                start = self._after + b"\0" if self._after else b""
                size = self._size
                rows = await store.scan("journal", prefix=self._prefix, start=start, limit=size)
                if rows:
                    self._take(rows)
                    self._after = rows[-1][0]
                if len(rows) < size:
                    return await finish()
            taken = perf_counter() - started
            if taken > SLICE:
                self._size = max(1, size // 2)
            elif taken < SLICE / 2:
                self._size = min(_MOST, size * 2)
            await trio.lowlevel.checkpoint()
