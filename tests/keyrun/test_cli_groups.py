"""Groups on the command line: which runs are of a group, and of which group a run is."""

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from keyrun.groups import Member
from keyrun.storage import LmdbStore
from keyrun.testing import open_test_runtime
from tests.keyrun.cli import checkout, lines


async def _fill(path: Path) -> None:
    async with open_test_runtime(LmdbStore(path), workflows=[checkout]) as rt:
        group = await rt.submit_group(
            "import-7",
            [
                Member(checkout, {"amount": 1}, key="alice", member_id="a"),
                Member(checkout, {"amount": 200}, key="bob", member_id="b"),
            ],
        )
        await rt.submit(checkout, {"amount": 1}, key="carol", run_id="alone")
        await group.results()


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a group of two runs, and another run."""
    path = tmp_path_factory.mktemp("grouped") / "store"
    trio.run(_fill, path, clock=MockClock(autojump_threshold=0))
    return path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--group", "import-7"], ["import-7-b", "import-7-a"]),
        (["--group", "import-7", "--state", "failed"], ["import-7-b"]),
        (["--group", "import"], []),
        ([], ["alone", "import-7-b", "import-7-a"]),
    ],
)
def test_runs_are_listed_by_group(grouped: Path, words: list[str], expected: list[str]) -> None:
    told = [json.loads(line) for line in lines("runs", grouped, "--json", *words)]
    assert [run["run_id"] for run in told] == expected


def test_the_status_of_a_run_says_which_group_it_is_of(grouped: Path) -> None:
    shown = [" ".join(line.split()) for line in lines("status", grouped, "import-7-a")]
    assert "group import-7, member a" in shown
    assert not any(line.startswith("origin") for line in shown)
    alone = [" ".join(line.split()) for line in lines("status", grouped, "alone")]
    assert not any(line.startswith("group") for line in alone)
