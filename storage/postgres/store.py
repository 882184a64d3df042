"""The PostgreSQL store: a namespace of a database that one process owns.

The database has the log of commits and the lease. Reads come from an image of the records in this
process, so they never suspend. `docs/postgres.md` describes what users see.
"""

import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import trio

from keyrun.storage import ownership
from keyrun.storage.batch import Tables
from keyrun.storage.errors import StoreClosed, StoreError, StoreLost
from keyrun.storage.namespace import check_name
from keyrun.storage.postgres import arrays, schema
from keyrun.storage.postgres.address import Address
from keyrun.storage.postgres.commit import FencedCommits
from keyrun.storage.postgres.fold import Fold
from keyrun.storage.postgres.heartbeat import Heartbeat
from keyrun.storage.postgres.image import Image
from keyrun.storage.postgres.lease import Candidate, Description, Held, Lease, read_lease
from keyrun.storage.postgres.load import load
from keyrun.storage.postgres.trust import Trust
from keyrun.storage.postgres.tuning import StoreTuning
from keyrun.storage.postgres.wire import ConnectionLost, StatementFailed, Wire
from keyrun.storage.store import Store, boottime

logger = logging.getLogger("keyrun.storage")

TTL = 10.0
MIN_TTL = 0.1
MAX_COMMIT_BYTES = 900 << 20
"""The most bytes of one commit. A message to PostgreSQL ends at 1 GB."""


class PostgresStore(Store):
    """Keep records in PostgreSQL 13 or newer. One process owns a namespace, and another one can
    take over when the owner ends, crashes, or cannot reach the database any more.

    - `url`: the database, as `postgresql://user:password@host/database`. `PGPASSWORD`, `.pgpass`
      and `service=` work. The schema `keyrun` is created in it at the first open.
    - `namespace`: the name of the records. Each namespace has an owner of its own.
    - `ttl`: the seconds after which another process may take over, if this one cannot renew its
      lease. A process that is killed is noticed at once, unless a pooler is in between.
    - `unsafe`: Accept a server with `fsync = off`, which can lose all records. Only for tests.
    - `tuning`: intervals and sizes. Only tests of Keyrun change them.

    Opening raises `StoreLocked` if another process owns the namespace. While the database cannot be
    reached, commits wait, and the store is not trusted. It raises `StoreLost` to everything that
    waits, and accepts no more writes, if another process has become the owner, or if the database
    lacks commits that were acknowledged.
    """

    leased = True
    """The namespace may get another owner while it is open."""
    max_batch_bytes = 256 << 20
    """The number of bytes that a batch may have."""
    full_group_bytes = 16 << 20
    """The number of bytes at which a group takes no more records."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        ttl: float = TTL,
        unsafe: bool = False,
        tuning: StoreTuning = StoreTuning(),  # noqa: B008 (frozen)
    ) -> None:
        check_name(namespace)
        if not ttl >= MIN_TTL:
            raise ValueError(f"ttl must be at least {MIN_TTL} seconds, got {ttl!r}")
        super().__init__()
        self.name = namespace
        """The namespace."""
        self.ttl = ttl
        """The length of the lease in seconds."""
        self.node = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        """The id of this process as an owner."""
        self._unsafe = unsafe
        self._tuning = tuning
        self._address = Address(url, f"keyrun:{namespace}:{self.node}")
        self._description = Description()
        self._candidate: Candidate | None = None
        self._held: Held | None = None
        self._trust: Trust | None = None
        self._heartbeat: Heartbeat | None = None
        self._committer: FencedCommits | None = None
        self._image: Image | None = None
        self._fold: Fold | None = None
        self._fork_token: Any = None
        self._opened_by = 0
        self._closing_at: float | None = None
        self._seen = (0, 0)
        """The highest epoch, and the highest commit, that this object has seen."""

    @property
    def is_direct(self) -> bool:
        """Whether no pooler is between this process and the server, so that a crash of this process
        is noticed at once. The store must be open."""
        return self._opened_lease().is_direct

    @property
    def trusted_until(self) -> float:
        """The end of the time in which this process certainly owns the namespace, on the clock of
        `keyrun.storage.store.boottime`. It is in the past while ownership is not certain."""
        return -1.0 if self._trust is None else self._trust.until

    def is_trusted(self) -> bool:
        """Return whether effects may begin, that is, whether `trusted_until` is in the future."""
        return self.trusted_until > boottime()

    def when_trusted(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, in the loop, when the store is trusted. If it is trusted now, call
        it at once. It must not raise. It is not called after the store was lost or closed."""
        self._opened()
        if self.is_trusted():
            callback()
        elif self._trust is not None:
            self._trust.when_trusted(callback)

    @property
    def epoch(self) -> int:
        """The number of owners that the namespace has had. It grows with each open."""
        return 0 if self._held is None else self._held.epoch

    @property
    def clock_offset(self) -> float:
        """The wall clock of the database minus the wall clock of this machine, in seconds."""
        return 0.0 if self._heartbeat is None else self._heartbeat.clock_offset

    @property
    def commits_to_fold(self) -> int:
        """The number of commits in the log that are not folded yet. The store must be open."""
        assert self._committer is not None
        assert self._fold is not None
        return self._committer.seq - self._fold.folded

    def describe(
        self,
        *,
        address: str | None = None,
        format: int | None = None,  # noqa: A002 (the column)
        details: str | None = None,
    ) -> None:
        """Set what the next claim writes into the lease, for `read_lease` of other processes."""
        self._description = Description(address=address, format=format, details=details)

    async def read_lease(self) -> Lease | None:
        """Return the lease of the namespace, also while another process owns it. None if nobody has
        opened the namespace yet. Raises `StoreError` if the database cannot be reached."""
        try:
            wire = await Wire.connect(self._address)
            try:
                return await read_lease(wire, self.name)
            finally:
                wire.close()
        except ConnectionLost as error:
            raise self._unreachable(error) from None
        except StatementFailed as error:
            raise schema.explain(error, self._address) from None

    async def wait_until_free(self) -> None:
        """Return when the namespace seems to have no owner. The next open may still raise
        `StoreLocked`, if another process is faster. A database that cannot be reached is tried
        again for ever, so use a timeout. The object keeps two connections until the next open, or
        until this call is cancelled."""
        if self._group is not None:
            await super().wait_until_free()
            return
        if self._candidate is None:
            self._candidate = self._new_candidate()
        try:
            await self._candidate.wait()
        except BaseException:
            self._drop_candidate()
            raise

    def _new_candidate(self) -> Candidate:
        return Candidate(
            self._address, self.name, node=self.node, ttl=self.ttl, unsafe=self._unsafe
        )

    def _drop_candidate(self) -> None:
        candidate, self._candidate = self._candidate, None
        if candidate is not None:
            candidate.close()

    async def _open(self) -> None:
        self._opened_by = os.getpid()
        self._closing_at = None
        if self._candidate is None:
            self._candidate = self._new_candidate()
        candidate = self._candidate
        try:
            held = await candidate.claim(self._description)
        except BaseException:
            self._drop_candidate()
            raise
        self._candidate = None
        if self._unsafe:
            logger.warning("%r is open with unsafe=True: a crash of the server loses data", self)
        session, wire = candidate.take()
        self._held = held
        self._check_seen(held)
        try:
            await self._begin(held, session, wire, candidate.version)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._let_go()
            raise
        self._fork_token = ownership.disown_after_fork(self._forked)

    async def _begin(self, held: Held, session: Wire, wire: Wire | None, version: int) -> None:
        trust = self._trust = Trust(held.ttl)
        committer = self._committer = FencedCommits(
            held, wire, self._address, trust, self._tuning, gave_up=self._gave_up
        )
        self._heartbeat = Heartbeat(
            held,
            session,
            self._address,
            trust,
            self._tuning,
            committed=lambda: committer.seq,
            lose=self._lose,
        )
        trust.lock()
        trust.renew(held.claimed_at)
        self._heartbeat.start()
        self._image = Image(str(self._address), self._of_parent_process)
        try:
            await schema.migrate(await committer.connected(), version, self._address)
            folded = await load(await committer.connected(), held.part, self._image)
        except ConnectionLost as error:
            raise self._unreachable(error) from None
        except StatementFailed as error:
            raise schema.explain(error, self._address) from None
        self._fold = Fold(held, self._address, folded, self._tuning)
        self._fold.start()

    def _check_seen(self, held: Held) -> None:
        epoch, seq = self._seen
        if held.epoch <= epoch or held.seq < seq:
            logger.error(
                "the database of %r was set back: this process saw epoch %d and commit %d, and it "
                "now continues with epoch %d after commit %d; steps of lost commits run again",
                *(self, epoch, seq, held.epoch, held.seq),
            )
        self._seen = (held.epoch, held.seq)

    async def _close(self) -> None:
        ownership.forget_fork(self._fork_token)
        await self._let_go()

    async def _let_go(self) -> None:
        heartbeat, self._heartbeat = self._heartbeat, None
        committer, self._committer = self._committer, None
        image, self._image = self._image, None
        fold, self._fold = self._fold, None
        trust, self._trust = self._trust, None
        held, self._held = self._held, None
        if trust is not None:
            trust.end()
        if fold is not None:
            fold.stop()
        if image is not None:
            image.close()
        if committer is not None:
            if held is not None:
                self._seen = (held.epoch, committer.seq)
            await committer.release()
        if heartbeat is not None:
            # Last, because this releases the session lock, and another process claims at once.
            heartbeat.stop()

    def _forked(self) -> None:
        for part in (self._heartbeat, self._committer, self._fold, self._image):
            if part is not None:
                part.forked()
        self._heartbeat = self._committer = self._fold = self._trust = None
        if self._group is not None:
            self._group.disown(self._of_parent_process())

    def _of_parent_process(self) -> StoreClosed:
        return StoreClosed(
            f"{self!r} was opened by process {self._opened_by} and cannot be used after a fork; "
            "open it in one process only, after forking"
        )

    def _lose(self, error: StoreLost) -> None:
        """Accept no more writes. The heartbeat calls this in the loop."""
        if self._group is not None and self._group.failure is None:
            logger.error("%s", error)
            self._group.fail(error)

    def _gave_up(self) -> StoreError | None:
        """Return the error with which a commit stops to wait for the database."""
        group = self._group
        if group is None:
            return None
        if group.failure is not None:
            return group.failure
        if not group.is_closing:
            return None
        if self._closing_at is None:
            self._closing_at = boottime()
        timeout = self._tuning.close_timeout
        if boottime() - self._closing_at < timeout:
            return None
        return StoreError(
            f"{self._address} could not be reached for {timeout:g} s while the store was being "
            "closed; what was staged last may be missing"
        )

    def _tables_there(self) -> Iterable[str]:
        return self._opened_image().reads.tables()

    async def _commit(self, tables: Tables) -> None:
        image, committer = self._opened_image(), self._committer
        assert committer is not None
        assert self._fold is not None
        records = arrays.encode(tables)
        if records.size > MAX_COMMIT_BYTES:
            raise StoreError(
                f"a commit has {records.size} bytes, and PostgreSQL accepts at most "
                f"{MAX_COMMIT_BYTES}; stage less at once"
            )
        try:
            with trio.CancelScope(shield=True):
                await committer.commit(records, lambda: image.prepare(tables))
        except BaseException as error:
            image.drop()
            if isinstance(error, StoreLost) and self._opened().failure is None:
                logger.error("%s", error)
            if isinstance(error, StoreLost) and self._trust is not None:
                self._trust.end()
            raise
        self._fold.committed(committer.seq, records.size)

    def _publish(self, tables: Tables) -> None:
        self._opened_image().show(tables)

    async def _get(self, table: str, key: bytes) -> bytes | None:
        return self._opened_image().reads.get(table, key)

    async def _scan(
        self, table: str, start: bytes, stop: bytes | None, limit: int | None, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        return self._opened_image().reads.scan(table, start, stop, limit, reverse)

    async def _get_many(self, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return self._opened_image().reads.get_many(table, keys)

    async def _scan_each(
        self,
        table: str,
        ranges: Sequence[tuple[bytes, bytes | None]],
        limit: int | None,
        reverse: bool,
    ) -> list[list[tuple[bytes, bytes]]]:
        return self._opened_image().reads.scan_each(table, ranges, limit, reverse)

    def view(self) -> AbstractContextManager[None]:
        """Return a context manager in which all reads show the same commit. Await only reads of
        this store in the block."""
        return self._opened_image().reads.view()

    def _opened_image(self) -> Image:
        if self._image is None:
            raise self._not_open()
        return self._image

    def _opened_lease(self) -> Held:
        if self._held is None:
            raise self._not_open()
        return self._held

    def _unreachable(self, error: ConnectionLost) -> StoreError:
        return StoreError(f"cannot use the database {self._address}: {error}")

    def __repr__(self) -> str:
        return f"PostgresStore({str(self._address)!r}, namespace={self.name!r})"
