"""A map of 500 items whose process is killed ten times: no finished item is repeated."""

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import trio

from keyrun import (
    Compensation,
    Graph,
    NodeInput,
    PermanentError,
    Retry,
    RunFailed,
    current_step,
    open_reader,
    open_runtime,
)
from keyrun.graphs import GraphBody
from tests.storage.processes import line, running_python

ITEMS, KILLS, MOST = 500, 10, 8

CHILD = """
import sys, trio
from tests.runtime.graphs.test_killed_maps import run
trio.run(run, sys.argv[1])
"""

active: set[str] = set()


async def work(given: NodeInput) -> int:
    active.add(current_step().step)
    print("+", current_step().step, len(active), flush=True)
    await trio.sleep(0.004)
    active.discard(current_step().step)
    if given.item % 50 == 7:
        raise PermanentError("broken")
    return int(given.item) * 2


async def check(given: NodeInput) -> int:
    print("+", current_step().step, len(active), flush=True)
    return int(given.output)


async def undo(given: Compensation) -> None:
    print("undo", given.step, given.output, flush=True)


async def refuse(given: NodeInput) -> None:
    results, failures = given.output["results"], given.output["failures"]
    print("results", results == [None if at % 50 == 7 else at * 2 for at in range(ITEMS)])
    print("failures", [each["index"] for each in failures], flush=True)
    raise PermanentError("refused")


def crawl() -> Graph:
    body = GraphBody()
    body.node("work", work, compensate=undo, retry=Retry.none())
    body.node("check", check)
    body.edge("work", "check")
    graph = Graph("crawl")
    graph.map("pages", body, max_concurrency=MOST)
    graph.node("refuse", refuse)
    graph.edge("pages", "refuse")
    return graph


async def run(store: str) -> None:
    """Run the map, or resume it, and print what happens."""
    graph = crawl()
    async with open_runtime(store, workflows=[graph]) as runtime:
        submitted = await runtime.submit(graph, list(range(ITEMS)), key="k", run_id="r")
        try:
            await submitted.result()
        except RunFailed as failed:
            print("end", failed.failure.step, flush=True)


async def looked_at(store: Path) -> tuple[set[str], Any]:
    """Return the steps that are done or have failed, and the progress of the run."""
    async with open_reader(store) as reader:
        story = await reader.history("r")
        over = {str(each.step) for each in story if each.event in ("step_completed", "step_failed")}
        return over, await reader.progress("r")


def test_no_finished_item_is_repeated_through_ten_kills(tmp_path: Path) -> None:
    store, began, lines = tmp_path / "store", Counter[str](), list[str]()
    finished: set[str] = set()
    peak = 0
    for kill in range(KILLS + 1):
        steps, killed = 0, False
        with running_python(CHILD, store) as process:
            # A killed process may have printed more than was read before.
            while (said := line(process)) and not said.startswith("end"):
                lines.append(said)
                if said.startswith("+"):
                    words = said.split()
                    if len(words) < 3:
                        break  # the kill cut this line
                    _, name, count = words
                    assert name not in finished, f"{name} had finished before kill {kill}"
                    began[name] += 1
                    peak = max(peak, int(count))
                    steps += 1
                # The last kill is in the middle of the compensations.
                compensated = sum(each.startswith("undo") for each in lines)
                if (kill < KILLS - 1 and steps == 95) or (kill == KILLS - 1 and compensated == 200):
                    process.send_signal(signal.SIGKILL)
                    killed = True
            assert killed == (kill < KILLS)
        if kill < KILLS:
            finished, progress = trio.run(looked_at, store)
            items = progress.items["pages"]
            ended = {name for name in finished if name.startswith("check")}
            failed = {n for n in finished if n.startswith("work") and _is_broken(n)}
            assert (items.total, items.done, items.failed) == (ITEMS, len(ended), len(failed))
            assert items.done + items.failed + items.running <= ITEMS
            assert 0 <= items.running <= MOST
    assert peak == MOST
    assert lines.count("results True") >= 1
    assert "results False" not in lines
    assert f"failures {list(range(7, ITEMS, 50))}" in lines
    assert len(began) == ITEMS + ITEMS - ITEMS // 50
    assert sum(began.values()) <= len(began) + KILLS * MOST
    undone = Counter(each.split()[1] for each in lines if each.startswith("undo"))
    assert set(undone) == {f"work#[{at}]" for at in range(ITEMS) if at % 50 != 7}
    assert sum(undone.values()) <= len(undone) + 1


def _is_broken(name: str) -> bool:
    return int(name.partition("[")[2].rstrip("]")) % 50 == 7
