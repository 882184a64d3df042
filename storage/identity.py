"""Identity: check that the data file of a store is its own, complete and readable.

LMDB opens an empty data file as an empty store, and a data file that was cut short without an
error. So a small file beside the data has the id of the store, the data has it, too, and both must
agree. The data file must also have the length that its header states.
"""

import json
import mmap
import os
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import attrs
import lmdb

from keyrun.storage.errors import StoreCorrupt, StoreError, StoreTooNew
from keyrun.storage.record import seal, unseal

FORMAT = 1
IDENTITY_FILE = "keyrun.json"
DATA_FILE = "data.mdb"
META_TABLE = "_meta"
META_KEY = b"store"
UNFINISHED_FILE = DATA_FILE + ".unfinished"
_BEGINNING = 4 * mmap.PAGESIZE
"""Bytes that LMDB has written before the data has the id of its store."""


@attrs.frozen
class Identity:
    """The id of a store, and the format in which it is written."""

    id: UUID
    format: int = FORMAT

    def check_format(self, path: Path) -> None:
        """Raise unless this Keyrun can read the store."""
        if self.format > FORMAT:
            raise StoreTooNew(
                f"the store {path} has format {self.format}, and this Keyrun reads up to "
                f"{FORMAT}; upgrade Keyrun to open it"
            )


def read_identity(path: Path) -> Identity | None:
    """Return the content of the identity file, or None if there is no file."""
    try:
        text = (path / IDENTITY_FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path / IDENTITY_FILE}: {error}") from error
    try:
        fields = json.loads(text)
        format_ = fields["format"]
        if type(format_) is not int or format_ < 1:
            raise ValueError(f"{format_!r} is not a format")
        return Identity(UUID(fields["id"]), format_)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreCorrupt(
            f"{path / IDENTITY_FILE} is damaged ({error}); restore it from a backup"
        ) from error


def write_identity(path: Path, identity: Identity) -> None:
    """Write the identity file so that it is there whole, or not at all."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    fields = {"id": str(identity.id), "format": identity.format, "created": created}
    draft = path / (IDENTITY_FILE + ".new")
    with draft.open("w") as file:
        file.write(json.dumps(fields) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path / IDENTITY_FILE)
    sync_directory(path)


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents, so that they survive a power loss."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_data_file(path: Path) -> Identity | None:
    """Check the files before LMDB opens them. Return the identity that the data must have, or None
    for a store that does not exist yet."""
    identity = read_identity(path)
    data = path / DATA_FILE
    size = data.stat().st_size if data.exists() else None
    if identity is None:
        return None
    identity.check_format(path)
    if not size:
        what = "is missing" if size is None else "is empty"
        raise StoreCorrupt(
            f"{data} {what}, but {IDENTITY_FILE} says that there is a store; restore the data "
            f"from a backup, or remove {path} to start again"
        )
    return identity


def put_aside_unfinished(path: Path) -> bool:
    """Move a data file that LMDB cannot read out of the way if it is the beginning of a store, as a
    power loss leaves it when the header was not yet synced. Says whether it did.

    Only for a store that has no identity file: that is written when the data is durable, and
    nothing is acknowledged before.
    """
    data = path / DATA_FILE
    if data.stat().st_size > _BEGINNING:
        return False
    data.replace(path / UNFINISHED_FILE)
    return True


def check_length(environment: lmdb.Environment, path: Path) -> bool:
    """Return whether the data file is as long as its header says. Raises if pages are missing.

    LMDB does not write pages that a transaction took and gave back, so a complete file can be
    shorter. Only a walk over the pages in use distinguishes it from a truncated file.
    """
    data = path / DATA_FILE
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    size = data.stat().st_size
    if size >= needed:
        return True
    import lmdb.verify

    problems: list[str] = lmdb.verify.verify(str(path))  # type: ignore[no-untyped-call]
    if problems:
        raise StoreCorrupt(
            f"{data} has {size} bytes but its header says {needed}, and the missing bytes were in "
            f"use ({problems[0]}); restore it from a backup"
        )
    return False


def extend_data_file(environment: lmdb.Environment, path: Path) -> None:
    """Give a file that is short but whole the length that its header says."""
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    with (path / DATA_FILE).open("r+b") as file:
        file.truncate(needed)
        os.fsync(file.fileno())


def stored_identity(environment: lmdb.Environment) -> Identity | None:
    """Return the identity in the data, or None if the data is not, or not yet, a Keyrun store."""
    try:
        database = environment.open_db(META_TABLE.encode(), create=False)
    except (lmdb.NotFoundError, lmdb.ReadonlyError):
        return None
    with environment.begin() as transaction:
        raw = transaction.get(META_KEY, db=database)
    if raw is None:
        return None
    format_, text = unseal(META_TABLE, META_KEY, raw)
    return Identity(UUID(text), format_)


def name_data(environment: lmdb.Environment, identity: Identity) -> None:
    """Write the identity into the data, in a commit of its own."""
    fields = (identity.format, str(identity.id))
    with environment.begin(write=True) as transaction:
        database = environment.open_db(META_TABLE.encode(), txn=transaction)
        transaction.put(META_KEY, seal(META_TABLE, META_KEY, fields), db=database)


def check_same(path: Path, expected: Identity, stored: Identity | None) -> None:
    """Raise unless the data is that of the store that the identity file names."""
    if stored is None:
        raise StoreCorrupt(
            f"the data in {path} does not name a store, but {IDENTITY_FILE} does; restore both "
            "from the same backup"
        )
    if expected.id != stored.id:
        raise StoreCorrupt(
            f"{path / IDENTITY_FILE} names the store {expected.id}, but the data is that of "
            f"{stored.id}; restore both from the same backup"
        )
    stored.check_format(path)


def adopt(environment: lmdb.Environment, path: Path, expected: Identity | None) -> None:
    """Return the identity of a store: make a new one, or check that data and identity file
    agree."""
    stored = stored_identity(environment)
    if expected is not None:
        check_same(path, expected, stored)
        return
    if stored is None:
        if environment.stat()["entries"]:
            raise StoreError(f"{path} holds an LMDB environment that is not a Keyrun store")
        stored = Identity(uuid4())
        name_data(environment, stored)
    stored.check_format(path)
    # The data came first, its name included: a process, or a machine, that ended right here is no
    # reason to refuse the store.
    sync_directory(path)
    sync_directory(path.absolute().parent)
    write_identity(path, stored)
