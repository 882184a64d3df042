"""A campaign measures everybody it can, and says why it could not measure the rest."""

import io
from pathlib import Path

import pytest

from benchmarks.peers.campaign import Campaign
from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.child import Failed
from benchmarks.peers.environment import Environment, Missing
from benchmarks.peers.peer import Peer
from benchmarks.peers.progress import Progress
from benchmarks.peers.record import Record
from benchmarks.peers.work import TASKS, Task, tasks_of

Done = list[tuple[str, str]]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def campaign(done: Done, *, missing: str = "", failing: str = "", quick: bool = False) -> Record:
    def prepare(peer: Peer, cache: Path) -> Environment:
        if peer.name == missing:
            raise Missing("nobody has it")
        return Environment(python="python", versions={peer.package: "1"})

    def perform(peer: Peer, environment: Environment, task: Task) -> dict[str, float]:
        done.append((task.name, peer.name))
        if peer.name == failing:
            raise Failed("fell over")
        return {"runs": task.runs, "runs_per_second": 1.0}

    return Campaign(
        peers=PEERS,
        tasks=TASKS,
        cache=Path("unused"),
        quick=quick,
        progress=Progress(io.StringIO()),
        prepare=prepare,
        perform=perform,
    ).run()


def test_a_missing_peer_is_reported_and_never_measured() -> None:
    done: Done = []
    record = campaign(done, missing="restate")
    assert record.missing == {"restate": "nobody has it"}
    assert "restate" not in {peer for _, peer in done}
    assert "restate" not in record.versions
    assert "dbos" in record.facts["runs-64"]


def test_a_peer_that_fails_keeps_nobody_else_from_being_measured() -> None:
    done: Done = []
    record = campaign(done, failing="restate")
    assert record.failed["killed"] == {"restate": "fell over"}
    assert "restate" not in record.facts["killed"]
    assert "dbos" in record.facts["killed"]


def test_keyrun_is_measured_before_between_and_after_its_peers() -> None:
    done: Done = []
    campaign(done)
    turns = [peer for task, peer in done if task == "runs-64"]
    assert turns[0] == turns[-1] == "keyrun"
    assert turns.count("keyrun") == 3
    assert [peer for peer in turns if peer != "keyrun"] == [
        peer.name for peer in PEERS if "runs-64" not in peer.lacks
    ]


def test_nobody_is_asked_for_what_it_has_no_way_to_do() -> None:
    done: Done = []
    campaign(done)
    assert ("asleep", "langgraph") not in done
    assert ("runs-64", "pykka") not in done
    assert ("tell", "restate") not in done
    assert ("tell", "pykka") in done


def test_a_quick_campaign_asks_for_less() -> None:
    done: Done = []
    full, quick = campaign(done), campaign(done, quick=True)
    assert full.facts["asleep"]["keyrun"][0]["runs"] == 10_000
    assert quick.facts["asleep"]["keyrun"][0]["runs"] == 200


def test_the_drive_is_measured_before_and_after() -> None:
    record = campaign([])
    assert len(record.sync_ms) == 2
    assert min(record.sync_ms) > 0


def test_a_smaller_size_of_a_peer_never_makes_a_task_larger() -> None:
    for peer in PEERS:
        for task in TASKS:
            assert peer.task(task).runs <= task.runs
            assert peer.task(task).keys <= task.keys


def test_work_is_chosen_by_name() -> None:
    assert [task.name for task in tasks_of(frozenset({"W2"}))] == ["runs-1"]
    assert [task.name for task in tasks_of(frozenset({"W5"}))] == ["runs-64", "asleep"]
    assert tasks_of(frozenset()) == TASKS


def test_the_progress_says_what_is_under_way() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress.show("runs-64: Restate", 3, 50)
    progress.note("runs-64: Restate fell over")
    progress.end()
    assert stream.getvalue().splitlines() == [
        "[4/50] 0:00 runs-64: Restate",
        "  runs-64: Restate fell over",
    ]
