"""The lease: at most one process owns a namespace, and it says until when.

The protocol:

1. The lease is a row of the table `part`. A claim sets the owner, raises the epoch by one and sets
   the end of the lease, in the time of the database. Every commit renews the lease.
2. A namespace is free if it has no owner, if the lease has ended, or if the session lock of the
   epoch is free although the server has run for longer than the lease.
3. The session lock makes the last case possible: the kernel closes the sockets of a killed process,
   and PostgreSQL then releases its lock. The key of the lock contains the epoch. A claimer takes
   the lock of the next epoch first, and then claims. If the claim fails, it releases the lock. So
   the lock of a stopped owner says nothing about its successor.
4. A server that has just started has forgotten all session locks. They count only when it has run
   for one TTL, so that an owner can take its lock again.
5. Behind a pooler there is no session lock, and the end of the lease alone decides.
"""

import logging
import time
from hashlib import sha256

import attrs
import trio

from keyrun.storage.errors import StoreError, StoreLocked
from keyrun.storage.postgres import schema, statements
from keyrun.storage.postgres.address import Address
from keyrun.storage.postgres.wire import ConnectionLost, Result, StatementFailed, Wire
from keyrun.storage.store import boottime

logger = logging.getLogger("keyrun.storage")

POLL = 2.5
"""Seconds between two looks at a lease whose session lock a candidate waits for."""
POLL_WITHOUT_LOCK = 1.0
"""Seconds between two looks at a lease that has no session lock."""
RETRY = 0.2
"""Seconds between two attempts to reach the database."""
ANSWER_TIMEOUT = 10.0


@attrs.frozen(kw_only=True)
class Lease:
    """Describe the lease of a namespace."""

    node: str | None
    """The id of the process that owns the namespace, or None. It differs from one open to the
    next."""
    epoch: int
    """The number of claims so far."""
    seq: int
    """The number of commits so far."""
    seconds_left: float
    """Seconds until the lease ends, unless it is renewed."""
    locked: bool
    """Whether the owner holds a session lock, so that its crash is noticed at once."""
    address: str | None
    """Where the owner listens, as it says in `describe`."""
    format: int | None
    """The format of the records, as the owner says in `describe`."""
    details: str | None
    """More about the owner, as it says in `describe`."""


@attrs.frozen(kw_only=True)
class Description:
    """What an owner says about itself in the row of its lease."""

    address: str | None = None
    format: int | None = None
    details: str | None = None


@attrs.frozen(kw_only=True)
class Held:
    """A lease that this process has claimed."""

    part: int
    node: str
    epoch: int
    seq: int
    """The last commit before the claim."""
    ttl: float
    is_direct: bool
    """Whether the session that claimed it belongs to this process alone, and has a lock."""
    claimed_at: float
    """The moment before the claim was sent, on the clock of `boottime`."""
    clock_offset: float
    """The time of the database minus the time of this machine."""

    @property
    def lock_key(self) -> int:
        """The key of the session lock."""
        return lock_key(self.part, self.epoch)

    @property
    def identity(self) -> tuple[int, str, int]:
        """Part, owner and epoch, as all statements of an owner begin."""
        return self.part, self.node, self.epoch


def lock_key(part: int, epoch: int) -> int:
    """Return the key of the session lock of one epoch."""
    digest = sha256(f"keyrun.part {part} {epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


@attrs.frozen
class _Part:
    id: int
    lease: Lease
    uptime: float
    """Seconds since the server has started."""

    @property
    def is_free(self) -> bool:
        return self.lease.node is None or self.lease.seconds_left <= 0


async def _read(wire: Wire, namespace: str) -> _Part | None:
    rows = await wire.run(statements.PART, namespace, timeout=ANSWER_TIMEOUT)
    if not len(rows):
        return None
    part, parts, seq, epoch, node, locked, address, format_, details, left, _, uptime = rows.texts()
    if parts != "1":
        raise StoreError(
            f"the namespace {namespace!r} is divided into {parts} parts, and this Keyrun owns only "
            "whole namespaces; upgrade Keyrun"
        )
    lease = Lease(
        node=node,
        epoch=int(epoch or 0),
        seq=int(seq or 0),
        seconds_left=float(left or 0),
        locked=locked == "t",
        address=address,
        format=None if format_ is None else int(format_),
        details=details,
    )
    return _Part(int(part or 0), lease, float(uptime or 0))


async def read_lease(wire: Wire, namespace: str) -> Lease | None:
    """Return the lease of a namespace. None if the namespace does not exist."""
    if await schema.read_version(wire) is None:
        return None
    part = await _read(wire, namespace)
    return None if part is None else part.lease


class Candidate:
    """A process that wants to own a namespace. It has one connection, whose session may hold locks,
    and while it waits a second one."""

    def __init__(
        self, address: Address, namespace: str, *, node: str, ttl: float, unsafe: bool
    ) -> None:
        self._address = address
        self._namespace = namespace
        self._node = node
        self._ttl = ttl
        self._unsafe = unsafe
        self._session: Wire | None = None
        self._watch: Wire | None = None
        self._is_direct = False
        self._locked_epoch: int | None = None
        """The epoch whose owner has ended, because this session has its lock."""
        self.version = 0
        """The version of the schema."""

    async def claim(self, description: Description) -> Held:
        """Claim the namespace, or raise `StoreLocked` if it has an owner. Raises `StoreError` if
        the database cannot be used."""
        try:
            session = await self._opened_session()
            part = await _read(session, self._namespace)
            if part is None:
                await session.run(statements.ADD_PART, self._namespace)
                part = await _read(session, self._namespace)
                assert part is not None
            return await self._claim(session, part, description)
        except ConnectionLost as error:
            self.close()
            raise StoreError(f"cannot use the database {self._address}: {error}") from None
        except StatementFailed as error:
            self.close()
            raise schema.explain(error, self._address) from None

    async def _claim(self, session: Wire, part: _Part, description: Description) -> Held:
        lease = part.lease
        has_ended = False
        if not part.is_free:
            has_ended = await self._owner_has_ended(session, part)
            if not has_ended:
                raise self._locked(lease)
        next_key = lock_key(part.id, lease.epoch + 1)
        if self._is_direct and not _yes(await session.run(statements.TRY_LOCK, next_key)):
            await self._unlock_epoch(session, part.id)
            raise self._locked(lease)
        claimed_at, began = boottime(), time.time()
        rows = await session.run(
            statements.CLAIM,
            part.id,
            lease.epoch,
            "t" if has_ended else "f",
            self._node,
            "t" if self._is_direct else "f",
            description.address,
            description.format,
            description.details,
            self._ttl,
            timeout=ANSWER_TIMEOUT,
        )
        await self._unlock_epoch(session, part.id)
        if not len(rows):
            if self._is_direct:
                await session.run(statements.UNLOCK, next_key)
            raise self._locked(lease)
        seq, now = rows.texts()
        return Held(
            part=part.id,
            node=self._node,
            epoch=lease.epoch + 1,
            seq=int(seq or 0),
            ttl=self._ttl,
            is_direct=self._is_direct,
            claimed_at=claimed_at,
            clock_offset=float(now or 0) - (began + time.time()) / 2,
        )

    async def _owner_has_ended(self, session: Wire, part: _Part) -> bool:
        """Return whether the session of the owner has ended. If so, this session has its lock."""
        if self._locked_epoch == part.lease.epoch:
            return True
        await self._unlock_epoch(session, part.id)
        if not self._locks_count(part):
            return False
        if _yes(await session.run(statements.TRY_LOCK, lock_key(part.id, part.lease.epoch))):
            self._locked_epoch = part.lease.epoch
        return self._locked_epoch is not None

    async def _unlock_epoch(self, session: Wire, part: int) -> None:
        epoch, self._locked_epoch = self._locked_epoch, None
        if epoch is not None:
            await session.run(statements.UNLOCK, lock_key(part, epoch))

    def _locks_count(self, part: _Part) -> bool:
        return self._is_direct and part.lease.locked and part.uptime > self._ttl

    def _locked(self, lease: Lease) -> StoreLocked:
        where = f" at {lease.address}" if lease.address else ""
        return StoreLocked(
            f"the namespace {self._namespace!r} of {self._address} is owned by another process: "
            f"{lease.node}{where}, epoch {lease.epoch}, with {lease.seconds_left:.1f} s left of "
            "its lease; stop that process, wait for its lease to end, or use another namespace"
        )

    async def wait(self) -> None:
        """Return when the namespace seems to be free. Another process may be faster to claim it.
        A database that cannot be reached is tried again."""
        is_reported = False
        while True:
            try:
                session = await self._opened_session()
                if self._watch is None or not self._watch.is_open:
                    self._watch = await Wire.connect(self._address)
                is_reported = False
                part = await _read(self._watch, self._namespace)
                if part is None or part.is_free or part.lease.epoch == self._locked_epoch:
                    return
                await self._unlock_epoch(session, part.id)
                if not self._locks_count(part):
                    await trio.sleep(min(part.lease.seconds_left + 0.02, POLL_WITHOUT_LOCK))
                elif await self._wait_for_lock(session, self._watch, part):
                    return
            except (ConnectionLost, StatementFailed) as error:
                if not is_reported:
                    logger.warning("cannot watch %r: %s; trying again", self._namespace, error)
                    is_reported = True
                self.close()
                await trio.sleep(RETRY)
            except trio.Cancelled:
                self.close()
                raise

    async def _wait_for_lock(self, session: Wire, watch: Wire, part: _Part) -> bool:
        """Wait for the lock of the current epoch, and for the end of the lease. Return whether this
        session has the lock. If the epoch changes, the session is closed with its wait."""
        epoch, left = part.lease.epoch, part.lease.seconds_left
        session.send(statements.LOCK, [str(lock_key(part.id, epoch)).encode()])
        while True:
            with trio.move_on_after(min(left + 0.02, POLL)):
                await session.readable()
            if session.has_answer():
                await session.answer()
                self._locked_epoch = epoch
                return True
            now = await _read(watch, self._namespace)
            if now is None or now.is_free or now.lease.epoch != epoch:
                session.close()
                return False
            left = now.lease.seconds_left

    async def _opened_session(self) -> Wire:
        if self._session is None or not self._session.is_open:
            self._locked_epoch = None
            self._session = await Wire.connect(self._address)
            self._is_direct = await schema.check_server(
                self._session, self._address, unsafe=self._unsafe
            )
            self.version = await schema.ensure(self._session, self._address)
            schema.check_version(self.version, self._address)
        return self._session

    def take(self) -> tuple[Wire, Wire | None]:
        """Return the session that has claimed, and the second connection if there is one. They
        belong to the caller from now on."""
        assert self._session is not None
        session, watch = self._session, self._watch
        self._session = self._watch = None
        return session, watch

    def close(self) -> None:
        """Close the connections, which releases all locks."""
        for wire in (self._session, self._watch):
            if wire is not None:
                wire.close()
        self._session = self._watch = None
        self._locked_epoch = None


def _yes(rows: Result) -> bool:
    return rows.texts() == ["t"]
