"""Under constant load nothing grows: neither memory, nor the file, nor the number of tasks."""

import ctypes
import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from statistics import median

import pytest

from keyrun.actors.pool import MAX_IDLE
from tests.faults import constant_load as work
from tests.faults.soaking import amount

SAMPLES = amount(20, 120)
RUNS = amount(80, 1000)
"""Of each sample."""
WARM = amount(9, 30)
"""Samples until everything has been seen once."""
MOST = amount(100, 10)
"""Bytes per run that the slope of what is in use may come to."""
PAGES = amount(600, 40)
"""The same of what the system has given: that comes in pages, and a short look sees few."""
LEAK = 200
OWN_TASKS = 100
"""Tasks of the runtime beside the idle workers of its pool."""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="only glibc tells how much memory is in use, and Linux how much is anonymous",
)


def figures(folder: Path, *, leak: int = 0) -> dict[str, list[int]]:
    """What a process measured, once it was warm."""
    folder.mkdir()
    arguments = [str(folder), str(SAMPLES), str(RUNS), str(leak)]
    done = subprocess.run(
        [sys.executable, "-m", work.__name__, *arguments],
        env=os.environ | {"PYTHONMALLOC": "malloc"},
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    samples = [json.loads(line) for line in done.stdout.splitlines()][WARM:]
    return {name: [each[name] for each in samples] for name in samples[0]}


def slope(values: list[int]) -> float:
    """By how much they grow per run: the median of the slopes of all pairs, which a few samples
    that stand out do not move."""
    pairs = combinations(enumerate(values), 2)
    return median((later - early) / (at - since) for (since, early), (at, later) in pairs) / RUNS


def test_memory_disk_and_tasks_stay_flat_under_constant_load(place: Path) -> None:
    seen = figures(place / "flat")
    print(*(f"{name}: {slope(values):.1f} per run" for name, values in seen.items()), sep=", ")
    assert slope(seen["in_use"]) < MOST, seen
    assert slope(seen["resident"]) < PAGES, seen
    assert slope(seen["disk"]) < MOST, seen
    assert slope(seen["tasks"]) < 0.01, seen
    assert max(seen["tasks"]) < MAX_IDLE + OWN_TASKS, seen


def test_a_leak_would_be_seen(place: Path) -> None:
    seen = figures(place / "leaky", leak=LEAK)
    assert slope(seen["in_use"]) > MOST, seen
