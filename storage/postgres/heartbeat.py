"""The heartbeat: a thread that renews the lease, and holds the session lock on its connection.

It is a thread so that a loop that is blocked for a while keeps its lease. It does not renew the
lease any more when the loop has not answered for 30 seconds, so that a process that is
stuck loses its namespace.

A commit renews the lease, too, so beats are sent only if there was no commit for a while.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import trio

from keyrun.storage.errors import StoreLost
from keyrun.storage.postgres import statements
from keyrun.storage.postgres.address import Address
from keyrun.storage.postgres.lease import Held
from keyrun.storage.postgres.trust import Trust
from keyrun.storage.postgres.tuning import StoreTuning
from keyrun.storage.postgres.wire import ConnectionLost, StatementFailed, Stopped, Waker, Wire
from keyrun.storage.store import boottime

logger = logging.getLogger("keyrun.storage")

BEAT_BELOW = 0.7
"""A beat is sent when less than this part of the TTL is left."""
RETRY = 0.05


class Heartbeat:
    """Renews a lease. `committed` returns the last commit that was acknowledged, `lose` receives
    the error if the namespace has another owner, and is called in the loop."""

    def __init__(
        self,
        held: Held,
        wire: Wire,
        address: Address,
        trust: Trust,
        tuning: StoreTuning,
        *,
        committed: Callable[[], int],
        lose: Callable[[StoreLost], None],
    ) -> None:
        self.clock_offset = held.clock_offset
        """The time of the database minus the time of this machine."""
        self._held = held
        self._wire: Wire | None = wire
        self._session = wire.backend
        self._address = address
        self._trust = trust
        self._loop_timeout = tuning.loop_timeout
        self._committed = committed
        self._lose = lose
        self._token = trio.lowlevel.current_trio_token()
        self._waker = Waker()
        self._loop_answered_at = boottime()
        self._thread = threading.Thread(
            target=self._run, name=f"keyrun heartbeat {held.node}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and close its connection, which releases the session lock."""
        self._waker.stop()
        self._thread.join()
        self._waker.close()
        if self._wire is not None:
            self._wire.close()

    def forked(self) -> None:
        """Close the socket in a forked child."""
        if self._wire is not None:
            self._wire.forked()

    def _run(self) -> None:
        is_connected = True
        with suppress(Stopped, trio.RunFinishedError):
            while True:
                try:
                    if not is_connected:
                        self._reconnect()
                        is_connected = True
                        logger.info("the connection of the lease is back")
                    self._beat_for_ever()
                except (ConnectionLost, StatementFailed) as error:
                    if self._held.is_direct:
                        self._trust.unlock()
                    if is_connected:
                        logger.warning("the connection of the lease was lost: %s", error)
                        is_connected = False
                    self._waker.sleep(RETRY)

    def _beat_for_ever(self) -> None:
        wire = self._wire
        assert wire is not None
        while True:
            self._token.run_sync_soon(self._loop_answers, idempotent=True)
            until_due = self._trust.renewed_until - boottime() - BEAT_BELOW * self._held.ttl
            if until_due <= 0:
                if boottime() - self._loop_answered_at < self._loop_timeout:
                    self._beat(wire)
                until_due = 0.1 * self._held.ttl
            if self._waker.sleep(until_due, wire):
                wire.notice_end()

    def _beat(self, wire: Wire) -> None:
        committed = self._committed()
        sent_at, began = boottime(), time.time()
        rows = wire.run_in_thread(
            self._waker,
            statements.BEAT,
            *self._held.identity,
            self._held.ttl,
            timeout=self._held.ttl / 2,
        )
        if not len(rows):
            self._report(lost_to_another(self._held, self._address))
            raise Stopped
        seq, now = rows.texts()
        if int(seq or 0) < committed:
            self._report(set_back(self._address, committed, int(seq or 0)))
            raise Stopped
        self._trust.renew(sent_at)
        self.clock_offset = float(now or 0) - (began + time.time()) / 2

    def _reconnect(self) -> None:
        """Connect again, and take the session lock of this epoch again."""
        if self._wire is None or not self._wire.is_open:
            self._wire = Wire.connect_in_thread(self._address, self._waker)
        wire = self._wire
        while self._held.is_direct and not self._take_lock(wire):
            self._waker.sleep(RETRY)
        self._session = wire.backend
        self._beat(wire)
        self._trust.lock()

    def _take_lock(self, wire: Wire) -> bool:
        key = self._held.lock_key
        rows = wire.run_in_thread(self._waker, statements.TRY_LOCK, key, timeout=5.0)
        if rows.texts() == ["t"]:
            return True
        # The server may not have noticed yet that the last session has ended.
        wire.run_in_thread(self._waker, statements.END_SESSION, key, self._session, timeout=5.0)
        # Another process that has the lock may have claimed already.
        self._beat(wire)
        return False

    def _loop_answers(self) -> None:
        self._loop_answered_at = boottime()

    def _report(self, error: StoreLost) -> None:
        self._trust.end()
        self._token.run_sync_soon(self._lose, error)


def lost_to_another(held: Held, address: Address) -> StoreLost:
    """Return the error for a lease that another process has claimed."""
    return StoreLost(
        f"this process no longer owns its namespace in {address}: the lease of epoch {held.epoch} "
        "was taken over by another process; commits that were not acknowledged are lost, and the "
        "new owner repeats their steps"
    )


def set_back(address: Address, committed: int, found: int) -> StoreLost:
    """Return the error for a database that lacks acknowledged commits."""
    return StoreLost(
        f"the database {address} was set back: commit {committed} was acknowledged, and the "
        f"database is at commit {found}; it was restored from a backup, or a standby without the "
        "last commits was promoted; open the store again to continue from the state of the "
        "database, and expect that steps run again"
    )
