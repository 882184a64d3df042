"""Compact: a copy of a store without the pages that are free, also while the store is in use."""

import os
import shutil
from pathlib import Path
from tempfile import mkdtemp

import lmdb

from keyrun.storage import identity, writer
from keyrun.storage.errors import StoreError


def compact(path: str | os.PathLike[str], to: str | os.PathLike[str]) -> int:
    """Copy the store at `path`, as of its last commit, to the directory `to`, which must not exist
    or be empty. Returns the size of the copy in bytes. `to` appears when the copy is whole; to
    change over, stop the runtime and put the copy in the place of the original.

    It is the same store twice: run only one of the two.
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
    to.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(dir=to.parent, prefix=f"{to.name}.partial-"))
    try:
        with writer.open_environment(str(path), map_size=0, read_only=True) as environment:
            identity.check_length(environment, path)
            identity.check_same(path, expected, identity.stored_identity(environment))
            environment.copy(str(draft), compact=True)
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
