"""What the commands show of a run that is being compensated, and of what could not be."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Compensation,
    Graph,
    NodeInput,
    PermanentError,
    Retry,
    RunFailed,
    TransientError,
    current_step,
    step,
)
from keyrun.storage import LmdbStore
from keyrun.testing import open_test_runtime
from tests.keyrun.cli import invoke, lines


@step(retry=Retry.fixed(max_attempts=2, delay=100, jitter=0))
async def patient(given: Compensation) -> None:
    if current_step().attempt == 1:
        raise TransientError("not yet")


@step(retry=Retry.none())
async def closed(given: Compensation) -> None:
    raise PermanentError("the refund desk is closed")


async def fine(given: NodeInput) -> int:
    return 1


async def bad(given: NodeInput) -> None:
    raise PermanentError("sold out")


def saga(name: str, undo: object) -> Graph:
    graph = Graph(name)
    graph.node("reserve", fine, compensate=fine)
    graph.node("charge", fine, compensate=undo)  # type: ignore[arg-type]
    graph.node("ship", bad)
    graph.edge("reserve", "charge")
    graph.edge("charge", "ship")
    return graph


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """`busy` waits for the next attempt of a compensation, and `left` could not compensate."""
    graphs = [saga("busy", patient), saga("left", closed)]

    async def main() -> None:
        store = LmdbStore(tmp_path / "s")
        async with open_test_runtime(store, workflows=graphs, drain_timeout=0) as runtime:
            for graph in graphs:
                run = await runtime.submit(graph, key=graph.name, run_id=graph.name)
            with suppress(RunFailed):
                await run.result()
            await trio.sleep(10)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return tmp_path / "s"


def sheet(*words: object) -> dict[str, str]:
    """What a command prints as names and values."""
    found = (line.partition("  ") for line in lines(*words) if "  " in line)
    return {name: value.strip() for name, _, value in found}


def document(*words: object) -> dict[str, object]:
    (line,) = lines(*words, "--json")
    found: dict[str, object] = json.loads(line)
    return found


BUSY = {"total": 2, "done": 0, "step": "charge", "left": []}
LEFT = {"total": 2, "done": 1, "step": None, "left": ["charge"]}


def test_a_run_that_is_being_compensated_says_so_everywhere(stored: Path) -> None:
    for command in ("status", "progress"):
        shown = sheet(command, stored, "busy")
        assert shown["state"] == "waiting, compensating"
        assert shown["compensation"] == "0 of 2 steps compensated, now compensating charge"
        assert "percent" not in shown
        assert "time left" not in shown
        told = document(command, stored, "busy")
        assert told["compensating"] is True
        assert told["compensation"] == BUSY
    drawing = lines("graph", stored, "busy")
    assert drawing[0] == "busy  busy, version 1  waiting  compensating"
    assert drawing[1] == "0 of 2 steps compensated, now compensating charge"
    assert any(line.startswith("↺ charge  compensating, ") for line in drawing)
    assert not any(line.startswith("✓ charge") for line in drawing)
    drawn = document("graph", stored, "busy")
    assert (drawn["percent"], drawn["compensation"]) == (None, BUSY)
    (row,) = lines("runs", stored, "--state", "waiting")[1:]
    assert row.endswith("compensation of charge  PermanentError: sold out")


def test_what_could_not_be_compensated_is_shown_everywhere(stored: Path) -> None:
    for command in ("status", "progress"):
        shown = sheet(command, stored, "left")
        assert shown["state"] == "failed"
        assert shown["not compensated"] == "charge"
        told = document(command, stored, "left")
        assert told["compensating"] is False
        assert told["compensation"] == LEFT
    failure = document("status", stored, "left")["failure"]
    assert isinstance(failure, dict)
    assert failure["left"] == ["charge"]
    drawing = lines("graph", stored, "left")
    assert "not compensated: charge" in drawing
    (charge,) = (line for line in drawing if line.startswith("! charge  compensation failed"))
    assert "the refund desk is closed" in charge
    drawn = document("graph", stored, "left")
    assert drawn["compensation"] == LEFT
    assert "class n1 compensation_failed" in "\n".join(lines("graph", stored, "left", "--mermaid"))
    (row,) = lines("dead-letters", stored)[1:]
    assert row.endswith("charge not compensated; PermanentError: sold out")
    letter = document("dead-letters", stored)
    assert letter["failure"] == failure
    assert lines("history", stored, "left")[-1].endswith(
        "charge not compensated; PermanentError: sold out"
    )


@pytest.mark.parametrize("width", [60, 100])
def test_it_is_readable_on_narrow_terminals(stored: Path, width: int) -> None:
    for words in (("dead-letters", stored), ("runs", stored), ("status", stored, "left")):
        shown = invoke(*words, columns=width).stdout.splitlines()
        assert max(map(len, shown)) <= width or "Traceback (most recent call last):" in shown
    told = invoke("dead-letters", stored, columns=width).stdout
    assert "charge not compensated; PermanentError: sold out" in " ".join(
        line.rpartition("  ")[2] for line in told.splitlines()
    )
