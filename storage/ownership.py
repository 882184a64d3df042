"""Ownership: at most one process writes to a store, and a forked child is not that process.

The lock is an `flock` on a file beside the data. It belongs to the open file, so it is released
when the last process that holds it ends in any way. A committer process shares the lock of its
parent, so no other process can open the store while a commit of a dead parent is under way.
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
        """Return the descriptor of the lock, for a child process that shares it."""
        return self._file.fileno()

    def release(self) -> None:
        """Release the lock for every process that shares it."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self.drop()

    def drop(self) -> None:
        """Release the share of this process only: a fork must not unlock the store of its
        parent."""
        # Closing the file flushes it. An error of the flush must not keep it open.
        with suppress(OSError):
            self._file.close()

    def _locked(self) -> StoreLocked:
        self._file.seek(0)
        text = self._file.read().strip()
        pid = int(text) if text.isdecimal() else None
        if pid == os.getpid():
            advice = (
                "this process has it open already: close the runtime that has it open, or share "
                "its Store object"
            )
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
        # A zombie process still exists by name.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True


def owner_has_ended(error: StoreLocked) -> bool:
    """Return whether the lock will be free soon, because only the committer of a dead process holds
    it."""
    return error.pid is not None and not _alive(error.pid)


def disown_after_fork(method: Callable[[], None]) -> Any:
    """Call the bound `method` in every process that is forked from this one while its object lives.
    Return a token for `forget_fork`."""
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
