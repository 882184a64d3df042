"""Flows that wait, choose and fail go on after `kill -9` of their process."""

import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.keyrun.cli import shell

STEPS = """
from keyrun import step

@step
async def note(what: str) -> str:
    with open("done", "a") as file:
        file.write(what + "\\n")
    return what
"""
FLOW = """
name: killed
nodes:
  first: {kind: call, function: note, args: {what: first}}
  size:
    kind: switch
    cases:
      - {port: large, when: input.total > 100}
      - {port: small, when: input.total > 10}
  nap: {kind: wait, seconds: "{{ input.seconds }}"}
  past: {kind: wait, until: "2020-01-01T00:00:00Z"}
  paid: {kind: signal, name: paid, timeout: 3600}
  last: {kind: call, function: note, args: {what: "{{ output.payload.by }}"}}
  pause: {kind: wait, seconds: 0.5}
  stop: {kind: fail, reason: "paid by {{ outputs.last }}"}
edges:
  - {from: first, to: size}
  - {from: size, to: nap, port: small}
  - {from: nap, to: past}
  - {from: past, to: paid}
  - {from: paid, to: last}
  - {from: last, to: pause}
  - {from: pause, to: stop}
"""
WORDS = ["flow", "run", "killed.yaml", "--key", "k", "--store", "st", "--run-id", "r"]
WORDS += ["--with", "steps", "--input", '{"total": 50, "seconds": 1.5}']
SIGNAL = ["--signal", 'paid={"by": "Ann"}']


def killed_after(line: str, words: list[str], here: Path) -> None:
    """Run a command and kill it as soon as it has printed a line."""
    command = [sys.executable, "-m", "keyrun", *words]
    with subprocess.Popen(command, cwd=here, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert any(line in printed for printed in process.stderr), line
        finally:
            process.kill()


def history(here: Path) -> list[dict[str, Any]]:
    told = shell("history", "st", "r", "--json", cwd=here)
    assert told.returncode == 0, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]


MAP = """
name: mapped
nodes:
  pages:
    kind: map
    items: "{{ input.pages }}"
    max_concurrency: 2
    body:
      nodes:
        fetch: {kind: call, function: note, args: {what: "{{ item }}"}}
        pause: {kind: wait, seconds: 0.3}
        store: {kind: call, function: note, args: {what: "{{ item }}{{ index }}"}}
      edges:
        - {from: fetch, to: pause}
        - {from: pause, to: store, when: index != 3}
  last: {kind: call, function: note, args: {what: "{{ output.results | join }}"}}
edges: [{from: pages, to: last}]
"""
MAPPED = ["flow", "run", "mapped.yaml", "--key", "k", "--store", "st", "--run-id", "r"]
MAPPED += ["--with", "steps", "--input", '{"pages": ["a", "b", "c", "d", "e"]}']


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "killed.yaml").write_text(FLOW)
    (tmp_path / "mapped.yaml").write_text(MAP)
    return tmp_path


def test_each_wait_goes_on_where_it_was_and_no_finished_step_is_repeated(here: Path) -> None:
    killed_after("timer set nap", WORDS, here)
    killed_after("signal wanted paid", WORDS, here)
    killed_after("timer set pause", [*WORDS, *SIGNAL], here)
    ended = shell(*WORDS, *SIGNAL, cwd=here)
    assert ended.returncode == 1, ended.stderr
    assert (here / "done").read_text().split() == ["first", "Ann"]
    events = history(here)
    names = [each["event"] for each in events]
    assert names.count("timer_set") == names.count("timer_fired") == 3
    assert names.count("signal_received") == 1
    set_at, fired_at = (
        datetime.fromisoformat(each["at"]) for each in events if each["step"] == "nap/sleep()"
    )
    assert fired_at - set_at >= timedelta(seconds=1.5)
    assert [each["step"] for each in events if each["event"] == "node_completed"] == [
        "nap",
        "past",
        "paid",
        "pause",
    ]
    drawn = shell("graph", "st", "r", cwd=here).stdout
    assert "✓ size  done" in drawn
    assert "✗ stop  failed, paid by Ann" in drawn


def test_no_finished_node_of_an_item_is_repeated_and_the_graph_shows_the_items(here: Path) -> None:
    killed_after("timer set pause#[1]", MAPPED, here)
    drawn = shell("graph", "st", "r", cwd=here).stdout
    assert "… pages  waiting, 0 of 5 items, 2 running\n" in drawn
    assert "        ──▶ pause\n" in drawn
    assert "        - -> store  (when index != 3)\n" in drawn
    killed_after("step completed store#[2]", MAPPED, here)
    chart = shell("graph", "st", "r", "--mermaid", cwd=here).stdout
    assert '    subgraph n0_body["each item of pages"]\n' in chart
    assert "    n0 -.- n0_body\n" in chart
    assert '    n2 -->|"when index != 3"| n3\n' in chart
    ended = shell(*MAPPED, cwd=here)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == "a0b1c2Nonee4"
    noted = (here / "done").read_text().split()
    assert sorted(noted) == sorted([*"abcde", "a0", "b1", "c2", "e4", "a0b1c2Nonee4"])
