"""The fold: a thread that moves the log of commits into records.

The rules:

1. The log is folded when it has 32 MB, or 10 seconds after its first commit.
2. A piece is at most 64 commits. After each piece the thread rests for as long as it took, so
   the fold uses at most half of the time.
3. The position of the fold is in a table of its own, because a fold that locked the row of the
   commits would stop them. It is changed by compare-and-set, so two processes never fold the same
   commits.
4. Afterwards the log is vacuumed. A role that may not do this relies on the autovacuum settings of
   the table.
"""

import logging
import threading
import time
from contextlib import suppress
from math import inf

from keyrun.storage.postgres import statements
from keyrun.storage.postgres.address import Address
from keyrun.storage.postgres.lease import Held
from keyrun.storage.postgres.tuning import StoreTuning
from keyrun.storage.postgres.wire import ConnectionLost, StatementFailed, Stopped, Waker, Wire

logger = logging.getLogger("keyrun.storage")

RETRY = 1.0


class Fold:
    """Folds the log of one part, beginning after the commit `folded`."""

    def __init__(self, held: Held, address: Address, folded: int, tuning: StoreTuning) -> None:
        self.folded = folded
        """The last commit that was folded."""
        self._tuning = tuning
        self._part = held.part
        self._address = address
        self._committed = held.seq
        self._bytes = 0
        self._due_at = inf
        if held.seq > folded:
            self._due_at = time.monotonic() + self._tuning.fold_seconds
        self._may_vacuum = True
        self._wire: Wire | None = None
        self._waker = Waker()
        self._thread = threading.Thread(target=self._run, name="keyrun fold", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def committed(self, seq: int, size: int) -> None:
        """Record a commit."""
        self._committed = seq
        self._bytes += size
        if self._due_at == inf:
            self._due_at = time.monotonic() + self._tuning.fold_seconds
            self._waker.wake()
        elif self._bytes - size < self._tuning.fold_bytes <= self._bytes:
            self._due_at = 0.0
            self._waker.wake()

    def stop(self) -> None:
        """Stop the thread. A piece that is under way may still be folded."""
        self._waker.stop()
        self._thread.join()
        self._waker.close()
        self._disconnect()

    def forked(self) -> None:
        """Close the socket in a forked child."""
        if self._wire is not None:
            self._wire.forked()

    def _run(self) -> None:
        with suppress(Stopped):
            while True:
                wait = self._due_at - time.monotonic()
                if wait > 0:
                    self._waker.sleep(wait)
                    continue
                try:
                    self._fold()
                except (ConnectionLost, StatementFailed) as error:
                    logger.warning("the log could not be folded: %s; trying again", error)
                    self._disconnect()
                    self._waker.sleep(RETRY)

    def _fold(self) -> None:
        """Fold everything that was committed before this call, and vacuum the log."""
        last = self._committed
        self._bytes = 0
        while self.folded < last:
            began = time.monotonic()
            if not self._fold_piece(last):
                break
            rest_until = 2 * time.monotonic() - began
            while (left := rest_until - time.monotonic()) > 0:
                self._waker.sleep(left)
        self._due_at = inf
        if self._committed != self.folded:
            self._due_at = time.monotonic() + self._tuning.fold_seconds
        if self._may_vacuum:
            wire = self._connected()
            wire.run_in_thread(self._waker, statements.VACUUM)
            if wire.notices:
                self._may_vacuum = False
                logger.info(
                    "this role may not vacuum the log, autovacuum does it: %s", wire.notices[0]
                )

    def _fold_piece(self, last: int) -> bool:
        """Fold a piece. Return whether the position has moved."""
        wire, waker, before = self._connected(), self._waker, self.folded
        found = wire.run_in_thread(
            waker,
            statements.PIECE,
            *(self._part, before, last),
            *(self._tuning.fold_piece, self._tuning.fold_piece_bytes),
        )
        until = found.texts()[0]
        if until is not None:
            wire.run_in_thread(waker, statements.BEGIN)
            wire.run_in_thread(waker, statements.PLAN_BY_INDEX)
            wire.run_in_thread(waker, statements.FOLD, self._part, before, until)
            wire.run_in_thread(waker, statements.COMMIT)
        position = wire.run_in_thread(waker, statements.FOLDED, self._part).texts()[0]
        self.folded = int(position or 0)
        return self.folded > before

    def _connected(self) -> Wire:
        if self._wire is None or not self._wire.is_open:
            self._wire = Wire.connect_in_thread(self._address, self._waker)
        return self._wire

    def _disconnect(self) -> None:
        if self._wire is not None:
            self._wire.close()
