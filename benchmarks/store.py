"""Group commit beside bare py-lmdb on the same bytes, and what it does to a busy loop."""

import os
from functools import partial
from itertools import count, islice
from statistics import median
from time import perf_counter

import trio

from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from keyrun.storage import Batch, LmdbStore, writer
from keyrun.storage.lmdb_store import CommitterName

VALUE = os.urandom(200)


def keys(commits: int, records: int) -> list[list[bytes]]:
    """Keys as a journal has them: in order."""
    return [[b"default\0%016d" % (c * records + r) for r in range(records)] for c in range(commits)]


def bare(commits: int, records: int) -> float:
    """Records per second that py-lmdb itself reaches."""
    batches = keys(commits, records)
    with folder() as path, writer.open_environment(str(path), map_size=1 << 30) as environment:
        database = environment.open_db(b"journal")
        started = perf_counter()
        for batch in batches:
            with environment.begin(write=True) as transaction:
                for key in batch:
                    transaction.put(key, VALUE, db=database)
        return commits * records / (perf_counter() - started)


def stored(committer: CommitterName, commits: int, records: int) -> float:
    """Records per second through the store: each put on its own, then awaited together."""
    batches = keys(commits, records)

    async def main() -> float:
        with folder() as path:
            async with LmdbStore(path, committer=committer) as store:
                started = perf_counter()
                for batch in batches:
                    for key in batch:
                        store.open_group().put("journal", key, VALUE)
                    await store.durable()
                return commits * records / (perf_counter() - started)

    return trio.run(main)


def busy(committer: CommitterName | None, seconds: float) -> dict[str, float]:
    """A CPU-bound task in the loop, and beside it a task that commits 100 records at a time."""

    async def spin(gaps: list[float]) -> None:
        last = perf_counter()
        while True:
            while perf_counter() - last < 50e-6:
                pass
            await trio.lowlevel.checkpoint()
            now = perf_counter()
            gaps.append(now - last)
            last = now

    async def write(store: LmdbStore, waits: list[float]) -> None:
        numbers = count()
        while True:
            batch = Batch()
            for number in islice(numbers, 100):
                batch.put("journal", b"default\0%016d" % number, VALUE)
            started = perf_counter()
            await store.commit(batch)
            waits.append(perf_counter() - started)

    async def main() -> dict[str, float]:
        gaps: list[float] = []
        waits: list[float] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spin, gaps)
            if committer is None:
                await trio.sleep(seconds)
            else:
                with folder() as path:
                    async with LmdbStore(path, committer=committer) as store:
                        with trio.move_on_after(seconds):
                            await write(store, waits)
            nursery.cancel_scope.cancel()
        return {
            "passes": len(gaps) / seconds,
            "longest stall": max(gaps) * 1000,
            "records": 100 * len(waits) / seconds,
            "acknowledged": median(waits) * 1000 if waits else 0.0,
        }

    return trio.run(main)


def run(bench: Bench) -> None:
    """Measure."""
    for records, commits in ((100, bench.size(400, 100)), (1, bench.size(1000, 200))):
        bench.group(
            f"{records} per commit",
            {
                "bare py-lmdb": partial(bare, commits, records),
                "inline": partial(stored, "inline", commits, records),
                "process": partial(stored, "process", commits, records),
            },
            unit="records/s",
            limit="bare py-lmdb",
            bars={"inline": Bar(value=0.6)} if records == 100 else None,
        )
    seconds = bench.size(20, 8) / 10
    bench.survey(
        "beside a busy task",
        {
            "no store": partial(busy, None, seconds),
            "inline": partial(busy, "inline", seconds),
            "process": partial(busy, "process", seconds),
        },
        metrics={
            "passes": Metric(unit="passes/s", bars={"process": Bar(value=0.5)}),
            "longest stall": Metric(unit="ms", better="lower"),
            "records": Metric(unit="records/s"),
            "acknowledged": Metric(unit="ms p50", better="lower"),
        },
        limit="no store",
    )
