"""Gauges: the memory of a process with all that it started, and the bytes of a folder."""

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

PROC = Path("/proc")


def family(pid: int) -> set[int]:
    """`pid` and every process that descends from it."""
    parents: dict[int, int] = {}
    if not PROC.is_dir():
        return {pid}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def alive(pid: int) -> bool:
    """Whether a process still runs; one that only waits for its parent to look does not."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def memory(pids: Iterable[int]) -> int:
    """Bytes of memory that are no file's, what several of them share counted once."""
    return sum(_memory(pid) for pid in pids)


def _memory(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line.split(" ", 1)[0])
    return sum(int(fields[name].split()[0]) * 1024 for name in ("Pss_Anon", "Pss_Shmem"))


def disk(folder: str) -> int:
    """Bytes that the files of `folder` take on the disk."""
    total = 0
    for path in Path(folder).rglob("*"):
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        # Some reserve more than they have written, some leave holes in it.
        total += min(found.st_size, found.st_blocks * 512)
    return total


def disk_after_checkpoint(folder: str) -> int:
    """The same with the write-ahead logs of its SQLite databases taken into them."""
    import sqlite3

    for database in Path(folder).glob("*.sqlite"):
        with closing(sqlite3.connect(database, timeout=30)) as connection:
            connection.execute("pragma wal_checkpoint(truncate)")
    return disk(folder)
