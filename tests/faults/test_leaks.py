"""Under constant load nothing grows: neither memory, nor the file, nor the number of tasks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import constant_load as work
from tests.faults.soaking import amount

SAMPLES = amount(15, 120)
RUNS = amount(150, 1000)
"""Of each sample."""
WARM = amount(10, 30)
"""Samples until everything has been seen once."""
MOST = amount(600, 40)
"""Bytes per run that a slope may come to: memory comes in pages, and a short look sees few."""


def figures(folder: Path, *, leak: int = 0) -> list[dict[str, int]]:
    """What a process measured, once it was warm."""
    folder.mkdir()
    arguments = [str(folder), str(SAMPLES), str(RUNS), str(leak)]
    done = subprocess.run(
        [sys.executable, "-m", work.__name__, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()][WARM:]


def slope(values: list[int]) -> float:
    """By how much they grow per run, by least squares."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    rise = sum((at - middle) * (value - mean) for at, value in enumerate(values))
    return rise / sum((at - middle) ** 2 for at in range(len(values))) / RUNS


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory is anonymous")
def test_memory_disk_and_tasks_stay_flat_under_constant_load(tmp_path: Path) -> None:
    seen = figures(tmp_path / "flat")
    memory = slope([each["memory"] for each in seen])
    disk = slope([each["disk"] for each in seen])
    tasks = [each["tasks"] for each in seen]
    print(f"{memory:.0f} bytes of memory and {disk:.0f} of disk per run, {tasks[-1]} tasks")
    assert memory < MOST, seen
    assert disk < MOST, seen
    assert slope(tasks) < 0.01, seen
    assert max(tasks) < 300


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory is anonymous")
def test_a_leak_would_be_seen(tmp_path: Path) -> None:
    seen = figures(tmp_path / "leaky", leak=4000)
    assert slope([each["memory"] for each in seen]) > 2 * MOST
