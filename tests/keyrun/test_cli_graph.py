"""`keyrun graph`: a run of a graph, drawn from the store alone."""

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from keyrun import Graph, NodeInput, PermanentError
from keyrun.storage import LmdbStore
from keyrun.testing import open_test_runtime
from tests.keyrun.cli import invoke, lines


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    async def fine(given: NodeInput) -> int:
        return 1

    async def bad(given: NodeInput) -> None:
        raise PermanentError('no "way" <b>')

    graph = Graph("shop")
    graph.node("pay", fine)
    graph.node("ship", bad)
    graph.node("mend", fine)
    graph.node("never", fine)
    graph.edge("pay", "ship", when="output > 0")
    graph.edge("ship", "mend", on="fail")
    graph.edge("ship", "never")

    async def main() -> None:
        store = LmdbStore(tmp_path / "s")
        async with open_test_runtime(store, workflows=[graph]) as runtime:
            await (await runtime.submit(graph, key="k", run_id="r")).result()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return tmp_path / "s"


def test_it_is_drawn_for_the_terminal(drawn: Path) -> None:
    shown = lines("graph", drawn, "r")
    assert shown[0] == "r  shop, version 1  succeeded  100 %"
    assert "✓ pay  done, 0 ms" in shown
    assert "    ──▶ ship  (when output > 0)" in shown
    assert "    ──▶ mend  (on fail)" in shown
    assert "    - -> never" in shown
    assert "- never  skipped" in shown
    assert any(line.startswith("✗ ship  failed") for line in shown)


def test_it_is_drawn_as_mermaid(drawn: Path) -> None:
    shown = lines("graph", drawn, "r", "--mermaid")
    assert shown[0] == "flowchart TD"
    assert '    n0 -->|"when output &gt; 0"| n1' in shown
    assert "    n1 -.-> n3" in shown
    assert "    class n1 failed" in shown
    assert not any('"way"' in line or "<b>" in line for line in shown)


def test_it_is_told_as_json(drawn: Path) -> None:
    shown = json.loads(lines("graph", drawn, "r", "--json")[0])
    assert shown["percent"] == 100
    assert [node["state"] for node in shown["nodes"]] == ["done", "failed", "done", "skipped"]
    assert [edge["taken"] for edge in shown["edges"]] == [True, True, False]


def test_a_run_that_is_not_there_or_of_no_graph_is_refused(drawn: Path, filled: Path) -> None:
    result = invoke("graph", drawn, "nobody")
    assert result.exit_code == 1
    assert "no run has the id 'nobody'" in result.output
    result = invoke("graph", filled, "r1")
    assert result.exit_code == 1
    assert f"'checkout', which is not a graph; list its events with: keyrun history {filled}" in (
        result.output
    )
