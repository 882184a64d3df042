"""The drive that stores are kept on: how long it takes to make a small write durable."""

import os
from statistics import median
from time import perf_counter

from benchmarks.folders import folder

WRITES = 100
SIZE = 4096


def sync_ms() -> float:
    """Milliseconds for one appended block and its fsync, the median of some."""
    taken = []
    with folder() as path, (path / "file").open("wb", buffering=0) as file:
        for _ in range(WRITES):
            started = perf_counter()
            file.write(bytes(SIZE))
            os.fsync(file.fileno())
            taken.append((perf_counter() - started) * 1000)
    return median(taken)
