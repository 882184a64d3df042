"""Fenced commits: each is one statement, which also checks the owner and renews the lease.

The statement raises the position `seq` of the part by one, if owner, epoch and position are those
that this process expects. If the answer is lost, or there is no row, the part tells what happened:

| epoch | position | meaning |
|---|---|---|
| own | expected + 1 | the commit was applied |
| own | expected | it was not applied: send it again |
| own | another | the database lost commits |
| another | | another process owns the namespace |

After "the commit was applied" comes one more commit without records before anything is
acknowledged: with synchronous replication, a commit whose wait was cut off can be seen before the
standby has it.

A database that cannot be reached is tried again until it answers, or until the store is closed.
"""

import logging
from collections.abc import Callable
from struct import Struct

import trio

from keyrun.storage.errors import StoreError, StoreFull
from keyrun.storage.postgres import arrays, statements
from keyrun.storage.postgres.address import Address
from keyrun.storage.postgres.arrays import Arrays
from keyrun.storage.postgres.heartbeat import lost_to_another, set_back
from keyrun.storage.postgres.lease import Held
from keyrun.storage.postgres.trust import Trust
from keyrun.storage.postgres.tuning import StoreTuning
from keyrun.storage.postgres.wire import ConnectionLost, StatementFailed, Wire
from keyrun.storage.store import boottime

logger = logging.getLogger("keyrun.storage")

RETRIES = (0.0, 0.02, 0.05, 0.1, 0.2)
"""Seconds before each attempt to reach the database. The last one repeats."""
RELEASE_TIMEOUT = 2.0

_INTEGER = Struct("!q")
_FLOAT = Struct("!d")
_DISK_FULL = "53100"


class FencedCommits:
    """Commits for one lease, over a connection of its own."""

    def __init__(
        self,
        held: Held,
        wire: Wire | None,
        address: Address,
        trust: Trust,
        tuning: StoreTuning,
        *,
        gave_up: Callable[[], StoreError | None],
    ) -> None:
        self.seq = held.seq
        """The last commit that was acknowledged."""
        self.resolved = 0
        """Commits whose answer was lost, and that a read showed to be applied."""
        self._held = held
        self._wire = wire
        self._address = address
        self._trust = trust
        self._gave_up = gave_up
        """Returns the error with which to stop trying."""
        part, node, epoch = held.identity
        self._fixed = (_INTEGER.pack(part), node.encode(), _INTEGER.pack(epoch))
        self._ttl = _FLOAT.pack(held.ttl)
        self._timeout = tuning.answer_timeout

    async def commit(self, records: Arrays, meanwhile: Callable[[], None]) -> None:
        """Make records durable. `meanwhile` is called once, while the database works."""
        if await self._apply(records, meanwhile):
            return
        self.resolved += 1
        while not await self._apply(arrays.EMPTY, None):
            pass

    async def _apply(self, records: Arrays, meanwhile: Callable[[], None] | None) -> bool:
        """Apply records. Return whether the database has answered that it did, and not only shows
        it."""
        attempts = 0
        while True:
            try:
                wire = await self.connected()
                sent_at = boottime()
                wire.send(
                    statements.APPEND,
                    (
                        *self._fixed,
                        _INTEGER.pack(self.seq),
                        self._ttl,
                        records.tables,
                        records.keys,
                        records.values,
                    ),
                    binary=True,
                )
                if meanwhile is not None:
                    todo, meanwhile = meanwhile, None
                    todo()
                rows = await wire.answer(self._timeout)
                if len(rows):
                    self.seq += 1
                    self._trust.renew(sent_at)
                    return True
                if await self._was_applied(wire):
                    self.seq += 1
                    return False
            except (ConnectionLost, StatementFailed) as error:
                await self._pause(error, attempts)
                attempts += 1
                if await self._look(attempts):
                    self.seq += 1
                    return False

    async def _look(self, attempts: int) -> bool:
        """Return whether the commit after `seq` was applied, as soon as the database answers."""
        while True:
            try:
                return await self._was_applied(await self.connected())
            except (ConnectionLost, StatementFailed) as error:
                await self._pause(error, attempts)
                attempts += 1

    async def _was_applied(self, wire: Wire) -> bool:
        held = self._held
        rows = await wire.run(statements.STATE, held.part, timeout=self._timeout)
        owner, epoch, seq = rows.texts() if len(rows) else (None, "0", "0")
        if owner != held.node or epoch != str(held.epoch):
            if int(epoch or 0) < held.epoch:
                raise set_back(self._address, self.seq, int(seq or 0))
            raise lost_to_another(held, self._address)
        position = int(seq or 0)
        if position not in (self.seq, self.seq + 1):
            raise set_back(self._address, self.seq, position)
        return position == self.seq + 1

    async def connected(self) -> Wire:
        """Return the connection. Raises `ConnectionLost`."""
        if self._wire is None or not self._wire.is_open:
            self._wire = await Wire.connect(self._address)
        return self._wire

    async def _pause(self, error: ConnectionLost | StatementFailed, attempts: int) -> None:
        """Wait before the next attempt, or raise the reason not to make one."""
        if isinstance(error, StatementFailed):
            if error.state == _DISK_FULL:
                raise StoreFull(f"no space left for {self._address}: {error}; make room") from error
            if not error.is_transient:
                raise StoreError(f"the commit to {self._address} failed: {error}") from error
        reason = self._gave_up()
        if reason is not None:
            raise reason
        if self._wire is not None:
            self._wire.close()
        if attempts == 0:
            logger.warning("a commit was cut off: %s; trying again", error)
        await trio.sleep(RETRIES[min(attempts, len(RETRIES) - 1)])

    async def release(self) -> None:
        """Give the namespace up, if the database can be reached at once, and disconnect."""
        failure: object = "no answer"
        with trio.move_on_after(RELEASE_TIMEOUT):
            # A connection may be lost without a sign before it is used.
            for _ in range(2):
                try:
                    wire = await self.connected()
                    await wire.run(statements.RELEASE, *self._held.identity)
                    failure = None
                    break
                except (ConnectionLost, StatementFailed) as error:
                    failure = error
        if failure is not None:
            logger.warning(
                "the lease of %s was not released: %s; it ends by itself", self._address, failure
            )
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connection."""
        if self._wire is not None:
            self._wire.close()

    def forked(self) -> None:
        """Close the socket in a forked child."""
        if self._wire is not None:
            self._wire.forked()
