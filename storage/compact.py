"""Compact: a copy of a store without the pages that are free, also while the store is in use."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import lmdb

from keyrun.storage import identity, writer
from keyrun.storage.errors import StoreError, StoreLocked
from keyrun.storage.ownership import OwnerLock


def compact(path: str | os.PathLike[str], to: str | os.PathLike[str]) -> int:
    """Copy the store at `path` without its free pages, also while it is in use, and return the size
    of the copy in bytes.

    The copy has the state of the last commit. The directory `to` must be empty or not exist. It
    appears when the copy is complete. To replace the original, stop the runtime and put the copy
    in its place. Original and copy are the same store: use only one of them. The call blocks until
    the copy is complete, so call it from a thread in a service.
    """
    path, to = Path(path), Path(to)
    expected = identity.check_data_file(path)
    if expected is None:
        raise StoreError(f"there is no Keyrun store at {path}")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise StoreError(f"{to} exists and is not an empty directory; choose another place")
    if path.resolve() in (to.resolve(), *to.resolve().parents):
        raise StoreError(f"{to} is inside of {path}; choose another place")
    to = to.resolve()
    identity.make_directory(to.parent)
    draft = Path(mkdtemp(dir=to.parent, prefix=f"{to.name}.partial-"))
    try:
        try:
            copy_data(path, draft)
        except lmdb.Error as error:
            if "already open in this process" not in str(error):
                raise
            _copy_apart(path, draft)
        data = draft / identity.DATA_FILE
        with data.open("r+b") as file:
            os.fsync(file.fileno())
        size = data.stat().st_size
        identity.write_identity(draft, expected)
        draft.replace(to)
    except lmdb.Error as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise StoreError(f"cannot copy {path} to {to}: {error}") from error
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    identity.sync_directory(to.absolute().parent)
    return size


def copy_data(path: Path, to: Path) -> None:
    """Copy the data of a store into a directory, and see that it is the store's own."""
    expected = identity.check_data_file(path)
    assert expected is not None
    with writer.open_environment(str(path), map_size=0, read_only=True) as environment:
        identity.check_length(environment, path)
        identity.check_same(path, expected, identity.stored_identity(environment))
        environment.copy(str(to), compact=True)


def _copy_apart(path: Path, to: Path) -> None:
    """Do the same in a child process. A process can open an LMDB store only once, and this process
    has it open."""
    program = (
        "import sys; from pathlib import Path; from keyrun.storage.compact import copy_data; "
        "copy_data(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", program, str(path), str(to)]
    child = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if child.returncode:
        why = child.stderr.strip().rpartition("\n")[2] or f"code {child.returncode}"
        raise StoreError(f"cannot copy {path}: {why}")


def compact_in_place(path: str | os.PathLike[str]) -> int:
    """Replace the store at `path` with a compact copy. Returns the size of the copy in bytes.

    Raises `StoreLocked`, with the owner, if another process or a reader has the store open. The
    last action is one rename: before it the store is unchanged, and after it the copy is complete.
    """
    path = Path(path)
    if identity.check_data_file(path) is None:
        raise StoreError(f"there is no Keyrun store at {path}")
    lock = OwnerLock(path)
    try:
        draft = Path(mkdtemp(dir=path.resolve().parent, prefix=f"{path.resolve().name}.compact-"))
        try:
            compact(path, draft / "copy")
            data = draft / "copy" / identity.DATA_FILE
            _fill_both_headers(data.parent)
            size = data.stat().st_size
            _replace(path, data)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    finally:
        lock.release()
    return size


def _fill_both_headers(path: Path) -> None:
    """Commit twice, because LMDB fills its two headers in turn and a copy has one that is empty. A
    reader that came at the wrong moment would send the next writer to that one."""
    expected = identity.read_identity(path)
    assert expected is not None
    for _ in range(2):
        with writer.open_environment(str(path), map_size=0) as environment:
            identity.name_data(environment, expected)


def _replace(path: Path, data: Path) -> None:
    with (path / writer.READERS_FILE).open("r+b") as readers:
        try:
            # What LMDB locks itself for as long as an environment is open.
            fcntl.lockf(readers, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError:
            raise StoreLocked(
                f"another process reads the store {path}; stop that process, or write the "
                "compact copy to another place"
            ) from None
        data.replace(path / identity.DATA_FILE)
        identity.sync_directory(path)
