"""Ownership: at most one process writes to a store, and a forked child is not that process.

The lock is an `flock` on a file beside the data. It is bound to the open file, so it goes with the
last process that holds it, however that process ends; a process committer holds it along with its
parent, so nobody opens the store while an orphaned commit is still under way.
"""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakMethod

from keyrun.storage.errors import StoreLocked

LOCK_FILE = "owner.lock"

_after_fork: set[WeakMethod[Callable[[], None]]] = set()


class OwnerLock:
    """The right to write to the store at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = (path / LOCK_FILE).open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            error = self._locked()
            self._file.close()
            raise error from None
        except BaseException:
            self._file.close()
            raise
        try:
            self._file.truncate(0)
            self._file.write(f"{os.getpid()}\n")
            self._file.flush()
        except BaseException:
            self.release()
            raise

    def fileno(self) -> int:
        """The descriptor that carries the lock, to be passed on to a child that shares it."""
        return self._file.fileno()

    def release(self) -> None:
        """Let go, for every process that shares the lock."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self.drop()

    def drop(self) -> None:
        """Let go of this process's share only: a fork must not unlock its parent's store."""
        # Closing flushes: what could not be written then is no reason to keep the file open.
        with suppress(OSError):
            self._file.close()

    def _locked(self) -> StoreLocked:
        self._file.seek(0)
        text = self._file.read().strip()
        pid = int(text) if text.isdecimal() else None
        if pid == os.getpid():
            advice = "this process has it open already: share that Store object instead"
        elif pid is None:
            advice = "another process has it open: stop that process, or open it read-only"
        elif not _alive(pid):
            advice = f"process {pid} has ended, but its last commit has not finished: try again"
        else:
            advice = f"process {pid} has it open: stop that process, or open it read-only"
        return StoreLocked(f"the store {self._path} is locked; {advice}", pid=pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        # A process that has ended and that nobody has waited for is still there by name.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True


def owner_has_ended(error: StoreLocked) -> bool:
    """Whether the lock will be free in a moment, since only an orphaned commit still holds it."""
    return error.pid is not None and not _alive(error.pid)


def disown_after_fork(method: Callable[[], None]) -> Any:
    """Call the bound `method` in every process that is forked from this one, for as long as its
    object lives. Returns a token for `forget_fork`."""
    token = WeakMethod(method)
    _after_fork.add(token)
    return token


def forget_fork(token: Any) -> None:
    """Undo `disown_after_fork`."""
    _after_fork.discard(token)


def _forked() -> None:
    for token in _after_fork:
        method = token()
        if method is not None:
            method()
    _after_fork.clear()


os.register_at_fork(after_in_child=_forked)
