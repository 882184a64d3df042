"""After `kill -9`, the first scrape that reports ready is exact."""

import signal
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

import keyrun
from keyrun import Context, RunOutcome, Runtime, State, metrics, workflow
from tests.faults.soaking import amount
from tests.storage.processes import line, running_python

PROGRAM = """
import sys
import trio
from keyrun import Context, RunFailed, open_runtime, step, workflow

path, evicted, dead = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
AT_ONCE = 1000


@workflow
async def waits(ctx: Context) -> None:
    await ctx.wait_signal("go", timeout=1e9)


@workflow
async def gone(ctx: Context) -> None:
    await ctx.wait_signal("go", timeout=1e9)


@workflow
async def behind(ctx: Context) -> None: ...


@workflow
async def dies(ctx: Context) -> None:
    raise ValueError("dead")


async def hook(outcome) -> None:
    raise OSError("nobody listens")


async def main() -> None:
    async with open_runtime(
        path,
        workflows=[waits, gone, behind, dies],
        on_terminal=hook,
        max_pending=10_000_000,
        evict_after=0.0,
        max_concurrent_steps=16,
    ) as rt:
        async def part(first: int) -> None:
            for number in range(first, evicted, AT_ONCE):
                head = gone if number % 100 == 0 else waits
                await rt.submit(head, key=f"k{number}")
                await rt.submit(behind, key=f"k{number}")
            for number in range(first, dead, AT_ONCE):
                await rt.submit(dies, key=f"d{number}")

        async with trio.open_nursery() as nursery:
            for first in range(min(AT_ONCE, max(evicted, dead))):
                nursery.start_soon(part, first)
        while rt.statistics().live or rt.statistics().waiting_outcomes < dead:
            await trio.sleep(0.05)
        print("filled", flush=True)
        for number in range(10**9):
            # The kill comes in the middle of these.
            await rt.submit(waits if number % 3 else behind, key=f"k{number % evicted}")


trio.run(main)
"""


@workflow
async def waits(ctx: Context) -> None:
    await ctx.wait_signal("go", timeout=1e9)


@workflow
async def behind(ctx: Context) -> None: ...


@workflow
async def dies(ctx: Context) -> None: ...


EVICTED, DEAD = amount(2_000, 100_000), amount(100, 1_000)


async def refuse(outcome: RunOutcome) -> None:
    raise OSError("nobody listens")


def scraped(rt: Runtime) -> dict[str, dict[tuple[str, ...], float]]:
    """The samples of one scrape, by name, and by the values of their labels, in the
    order of the labels, without the namespace."""
    found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for family in text_string_to_metric_families(metrics.exposition(rt).decode()):
        for sample in family.samples:
            labels = tuple(v for name, v in sample.labels.items() if name != "namespace")
            found[sample.name][labels] = sample.value
    return found


async def scan(rt: Runtime, path: Path) -> dict[str, dict[tuple[str, ...], float]]:
    """What the gauges about runs have to be, found in every record of the store."""
    runs: Counter[tuple[str, ...]] = Counter()
    dead: Counter[tuple[str, ...]] = Counter()
    began = []
    cursor: str | None = None
    while True:
        page = await rt.find_runs(limit=10_000, cursor=cursor)
        for each in page.runs:
            if not each.state.terminal:
                runs[each.state.value, each.workflow] += 1
            if each.state is State.PENDING:
                began.append(each.submitted_at)
        cursor = page.cursor
        if cursor is None:
            break
    cursor = None
    while True:
        letters = await rt.find_dead_letters(limit=10_000, cursor=cursor)
        dead.update((each.workflow,) for each in letters.runs)
        cursor = letters.cursor
        if cursor is None:
            break
    ends = await rt._partition.state.ledger.store.scan("outcomes")
    return {
        "keyrun_runs": dict(runs),
        "keyrun_dead_letters": dict(dead),
        "keyrun_backlog_runs": {(): len(began)},
        "keyrun_hook_waiting": {(): len(ends)},
        # A key leaves its quarantine with the process.
        "keyrun_quarantined_keys": {(): 0},
        "keyrun_oldest_pending_run_age_seconds": {(): rt._partition.state.wall() - min(began)},
        "keyrun_slots_used": {(): 0},
        "keyrun_slots_waiting": {(): 0},
        "keyrun_backpressure_waiting": {(): 0},
        "keyrun_backlog_limit_runs": {(): 100_000_000},
        "keyrun_store_size_bytes": {(): sum(each.stat().st_size for each in path.glob("data*"))},
        "keyrun_draining": {(): 0},
    }


async def test_after_a_kill_every_gauge_of_the_first_ready_scrape_is_that_of_a_full_scan(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"
    with running_python(PROGRAM, path, EVICTED, DEAD) as process:
        assert await trio.to_thread.run_sync(line, process) == "filled"
        await trio.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
    async with keyrun.open_runtime(
        path,
        workflows=[waits, behind, dies],
        on_terminal=refuse,
        max_pending=100_000_000,
        drain_timeout=0,
    ) as rt:
        with trio.fail_after(300):
            while (first := scraped(rt))["keyrun_recovered"] != {(): 1}:
                await trio.sleep(0.001)
            expected = await scan(rt, path)
    assert first["keyrun_runs"]["waiting", "waits"] >= EVICTED * 0.99
    assert first["keyrun_runs"]["quarantined", "gone"] == EVICTED / 100
    assert first["keyrun_dead_letters"] == {("dies",): DEAD}
    assert first["keyrun_hook_waiting"] == {(): DEAD}
    assert first["keyrun_backlog_runs"][()] > EVICTED
    for name, wanted in expected.items():
        tolerance = 60 if name.endswith("age_seconds") else 0
        assert first[name] == pytest.approx(wanted, abs=tolerance), name
