"""Trust: until when this process may rely on its lease.

The epoch of the lease gates commits, in the database. The clock gates effects, here: no attempt and
no hook begins after `until`. This is the moment just before the last statement that renewed the
lease was sent, plus the TTL, minus a margin, so it comes before the database lets another process
claim the namespace.

An owner with a session lock is not trusted while it does not hold that lock, because another
process may take the lock and claim at once.

Untrusted is not lost. The next renewal makes the owner trusted again.
"""

from collections.abc import Callable
from math import inf
from threading import Lock

import trio

from keyrun.storage.store import boottime

MARGIN = 0.05
"""The part of the TTL that clocks may differ in."""


class Trust:
    """The trust of one owner. The loop and the heartbeat thread share it."""

    def __init__(self, ttl: float) -> None:
        self._length = ttl * (1 - MARGIN)
        self._token = trio.lowlevel.current_trio_token()
        self._lock = Lock()
        self._renewed_until = -inf
        self._is_locked = False
        self._is_over = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def until(self) -> float:
        """The end of the trust, on the clock of `boottime`."""
        return self._renewed_until if self._is_locked else -inf

    @property
    def renewed_until(self) -> float:
        """The end of the trust if the session lock is held."""
        return self._renewed_until

    def renew(self, sent_at: float) -> None:
        """Record that a statement that was sent at `sent_at` or later has renewed the lease."""
        with self._lock:
            if not self._is_over:
                self._renewed_until = max(self._renewed_until, sent_at + self._length)
        self._report()

    def lock(self) -> None:
        """Record that the session lock is held, or that this owner needs none."""
        with self._lock:
            self._is_locked = not self._is_over
        self._report()

    def unlock(self) -> None:
        """Record that the session lock may be lost."""
        self._is_locked = False

    def end(self) -> None:
        """End the trust for good."""
        with self._lock:
            self._is_over = True
            self._is_locked = False
            self._renewed_until = -inf

    def when_trusted(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, in the loop, when the owner is trusted."""
        with self._lock:
            self._callbacks.append(callback)
        self._report()

    def _report(self) -> None:
        if self._callbacks and self.until > boottime():
            try:
                self._token.run_sync_soon(self._call_back)
            except trio.RunFinishedError:
                self._callbacks.clear()

    def _call_back(self) -> None:
        if self.until > boottime():
            with self._lock:
                callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()
