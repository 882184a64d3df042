"""Real processes on a real disk, killed at any time, and what is left of their stores.

The campaigns are those of `keyrun stress`; one without a committer process is in `tests/stress`.
That a second process is refused, and a forked one, is in `tests/storage`.
"""

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
import trio

from keyrun import open_runtime
from keyrun.storage import verify
from keyrun.stress.campaign import Campaign
from keyrun.stress.entry import assign
from keyrun.stress.options import Options
from keyrun.stress.record import CampaignRecord
from keyrun.stress.verdict import judge
from tests.faults import endless_orders as work
from tests.faults.soaking import SOAK, amount

STORM = Options(
    keys=amount(6, 40),
    runs=amount(150, 100_000),
    seconds=amount(20, 90),
    crash_every=0.3,
    seed=7,
)

KINDS = [("process", 0.6), *([("inline", 0.0)] if SOAK else [])]


@pytest.mark.parametrize("seed", range(amount(1, 3)))
@pytest.mark.parametrize(("committer", "alone"), KINDS)
def test_no_promise_is_broken_by_kills_of_the_process_and_of_its_committer_alone(
    tmp_path: Path, committer: str, alone: float, seed: int
) -> None:
    options = attrs.evolve(STORM, committer=committer, seed=seed)
    most = float("inf") if SOAK else 3
    assignment = assign(options, tmp_path, committers=alone, most_kills=most)
    campaign = Campaign(assignment, CampaignRecord(options, options.keys))
    campaign.run(lambda campaign: None)
    verdict = judge(campaign, None, tmp_path)
    assert verdict.violations == ()
    assert campaign.kills >= amount(1, 30)
    assert not SOAK or bool(campaign.orphaned) == bool(alone)
    print(f"{verdict.runs} runs, {campaign.kills} kills, {campaign.orphaned} of committers alone")


MOUNTED = ["mount", "-t", "tmpfs", "-o", "size=1m", "keyrun-test"]


@contextmanager
def small_disk(folder: Path) -> Iterator[int | None]:
    """Make `folder` a disk of a megabyte. Where that is not allowed, files are limited to that size
    instead, and the limit is given."""
    folder.mkdir()
    done = subprocess.run([*MOUNTED, str(folder)], capture_output=True, check=False)
    if done.returncode:
        yield 1 << 20
        return
    try:
        yield None
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def place_orders(folder: Path, committer: str, limit: int | None) -> list[str]:
    """What a process was told before there was no room any more."""

    def confine() -> None:
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-m", work.__name__, str(folder), committer],
        preexec_fn=confine,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    told = done.stdout.split()
    assert done.returncode == 0, done.stderr
    # A file that may not grow is an I/O error to LMDB, since there is room on the disk.
    expected = "StoreFull" if limit is None else "StoreError"
    assert told[-1] == expected, done.stdout + done.stderr
    return told[:-1]


@pytest.mark.parametrize("committer", ["inline", "process"])
@pytest.mark.parametrize("mounted", [True, False], ids=["disk", "limit"])
def test_a_full_disk_ends_the_runtime_with_a_clear_error_and_loses_nothing(
    tmp_path: Path, committer: str, mounted: bool
) -> None:
    with small_disk(tmp_path / "disk") if mounted else no_disk(tmp_path / "disk") as limit:
        told = place_orders(tmp_path / "disk" / "store", committer, limit)
        # Where there is room again everything goes on.
        subprocess.run(["cp", "-r", tmp_path / "disk" / "store", tmp_path / "store"], check=True)
    assert len(told) > 5
    assert verify(tmp_path / "store").ok

    async def finish() -> None:
        async with open_runtime(tmp_path / "store", workflows=[work.order]) as runtime:
            for run_id in told:
                run = await runtime.submit(work.order, work.BULK, key="k", run_id=run_id)
                assert not run.newly_submitted
                assert await run.result() == len(work.BULK)

    trio.run(finish)


@contextmanager
def no_disk(folder: Path) -> Iterator[int]:
    """The stand-in for a small disk."""
    folder.mkdir()
    yield 1 << 20
