"""Keyrun's side of every work, in a small size, through the same door as in a campaign."""

import sys
from pathlib import Path

import attrs
import pytest

from benchmarks.peers.catalogue import KEYRUN, KEYRUN_ACTORS
from benchmarks.peers.environment import Environment
from benchmarks.peers.peer import Peer
from benchmarks.peers.trial import perform
from benchmarks.peers.work import LINES, TASKS, Task

BY_NAME = {task.name: task for task in TASKS}
HERE = Environment(python=sys.executable)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def small(name: str) -> Task:
    task = BY_NAME[name]
    return attrs.evolve(
        task,
        at_once=min(task.at_once, 8),
        runs=min(task.runs, 20),
        keys=min(task.keys, 5),
        messages=min(task.messages, 4),
        seconds=min(task.seconds, 0.3),
    )


def measured(peer: Peer, name: str) -> dict[str, float]:
    """What was found, which must be all that the table shows of it."""
    facts = perform(peer, HERE, small(name))
    assert {line.fact for line in LINES if line.task == name} <= facts.keys()
    return facts


@pytest.mark.parametrize("name", ["runs-64", "runs-1"])
def test_runs_of_three_steps(name: str) -> None:
    facts = measured(KEYRUN, name)
    assert facts["runs_per_second"] > 0
    assert 0 < facts["p50_ms"] <= facts["p99_ms"]
    assert 0 < facts["mean_runs_per_second"] <= facts["runs_per_second"]
    assert facts["bytes_per_run"] > 0


@pytest.mark.parametrize("name", ["messages", "message-runs"])
def test_messages_are_handled_in_order(name: str) -> None:
    facts = measured(KEYRUN, name)
    assert facts["messages_per_second"] > 0
    assert facts["disordered"] == 0


def test_killed_runs_finish_and_no_finished_step_runs_again() -> None:
    facts = measured(KEYRUN, "killed")
    assert facts["finished"] == facts["runs"] == 20
    assert facts["again"] == facts["lost"] == 0
    assert facts["runs_per_second"] == pytest.approx(20 / facts["seconds"])


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no smaps here")
def test_sleeping_runs_are_weighed() -> None:
    facts = measured(KEYRUN, "asleep")
    assert facts["asleep"] == 20
    assert 1e6 < facts["before"] < facts["memory"] * 1.5


def test_actors_are_told_and_asked() -> None:
    assert measured(KEYRUN_ACTORS, "tell")["disordered"] == 0
    assert measured(KEYRUN_ACTORS, "ask")["p50_ms"] > 0
