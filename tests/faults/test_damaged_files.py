"""A data file that was cut, or has wrong bits, never passes for what was written."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import trio

from tests.faults import damaged_files as work
from tests.faults.soaking import amount

COPIES = amount(60, 3000)


def test_a_file_that_was_cut_or_has_wrong_bits_gives_right_results_or_none(tmp_path: Path) -> None:
    trio.run(work.fill, tmp_path / "store")
    expected = work.expected()
    seen: Counter[str] = Counter()
    number = 0
    while number < COPIES:
        done = subprocess.run(
            [sys.executable, "-m", work.__name__, str(tmp_path), str(number), str(COPIES)],
            capture_output=True,
            text=True,
            check=False,
            timeout=3600,
        )
        for line in done.stdout.splitlines():
            told = json.loads(line)
            seen[judged(told, expected)] += 1
            number += 1
        if number < COPIES:
            # LMDB may crash on a structure that is damaged; anything else is ours.
            assert done.returncode < 0, f"copy {number}: {done.stderr}"
            seen["crashed"] += 1
            number += 1
    assert not {what for what in seen if what.startswith("wrong")}, seen
    assert seen["all right"] > 0, seen
    assert seen["refused"] + seen["set aside"] > COPIES // 10, seen
    assert seen["crashed"] < COPIES // 10, seen
    print(dict(seen))


def judged(told: dict[str, Any], expected: dict[str, list[int]]) -> str:
    """What became of one copy. Where a run was set aside, those behind it in its key had not ended
    and come to something else."""
    found, wrong, broken = told["found"], {}, set()
    for number, (run_id, result) in enumerate(expected.items()):
        key, had_ended = number % work.KEYS, number < work.RUNS // 2
        if run_id not in found or found[run_id] == result:
            continue
        if isinstance(found[run_id], list) and (had_ended or key not in broken):
            wrong[run_id] = found[run_id]
        broken.add(key)
    if wrong:
        return f"wrong: {told['said']} gave {wrong}"
    if "error" in found:
        return "refused"
    return "all right" if found == expected else "set aside"
