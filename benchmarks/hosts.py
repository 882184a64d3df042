"""Keyrun inside asyncio and beside threads, beside the same work on Trio.

All cases commit in a child process, which is what `keyrun.asyncio` does by default. The endpoint is
a server on the loop that Keyrun shares. Another process asks it, one request after the other.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time

from benchmarks import workload
from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from benchmarks.workload import STEPS, three_steps
from keyrun.asyncio import Runtime
from keyrun.asyncio import open_runtime as open_on_asyncio
from keyrun.storage import LmdbStore
from keyrun.sync import open_runtime as open_in_thread

THREADS = 64
SLOW_SYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    usleep(10000);
    return real(fd);
}
"""
ASK = """
import socket, sys, time
taken, until = [], time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < until:
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        connection.sendall(b"x")
        connection.recv(1)
    taken.append(time.perf_counter() - began)
    time.sleep(0.002)
taken.sort()
print(taken[int(len(taken) * 0.99)] * 1000)
"""


def asyncio_steps(keys: int, runs: int) -> float:
    """Durable steps per second from an asyncio program."""

    async def main() -> float:
        with folder() as path:
            store = LmdbStore(path, committer="process")
            async with open_on_asyncio(store, workflows=[three_steps]) as runtime:

                async def client(number: int) -> None:
                    for _ in range(runs):
                        await (await runtime.submit(three_steps, key=f"key-{number}")).result()

                began = perf_counter()
                await asyncio.gather(*map(client, range(keys)))
                return keys * runs * STEPS / (perf_counter() - began)

    return asyncio.run(main())


def sync_steps(runs: int) -> float:
    """Durable steps per second from 64 threads, each with a key of its own."""
    with (
        folder() as path,
        open_in_thread(LmdbStore(path, committer="process"), workflows=[three_steps]) as runtime,
    ):

        def client(number: int) -> None:
            for _ in range(runs):
                runtime.submit(three_steps, key=f"key-{number}").result()

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(client, range(THREADS)))  # the threads have started
            began = perf_counter()
            list(pool.map(client, range(THREADS)))
            return THREADS * runs * STEPS / (perf_counter() - began)


def asyncio_latency(runs: int) -> float:
    """Milliseconds from submit to result, one run at a time, the median."""

    async def main() -> float:
        taken = []
        with folder() as path:
            store = LmdbStore(path, committer="process")
            async with open_on_asyncio(store, workflows=[three_steps]) as runtime:
                for _ in range(runs):
                    began = perf_counter()
                    await (await runtime.submit(three_steps, key="key")).result()
                    taken.append((perf_counter() - began) * 1000)
        return sorted(taken)[len(taken) // 2]

    return asyncio.run(main())


def sync_latency(runs: int) -> float:
    """Milliseconds from submit to result, one run at a time, the median."""
    taken = []
    with (
        folder() as path,
        open_in_thread(LmdbStore(path, committer="process"), workflows=[three_steps]) as runtime,
    ):
        for _ in range(runs):
            began = perf_counter()
            runtime.submit(three_steps, key="key").result()
            taken.append((perf_counter() - began) * 1000)
    return sorted(taken)[len(taken) // 2]


def trio_latency(runs: int) -> float:
    """The same on Trio."""
    taken = workload.latencies("process", runs)
    return taken[len(taken) // 2]


@contextmanager
def slow_syncs() -> Iterator[None]:
    """Let every sync of a child process that is started in the block take 10 ms longer."""
    with TemporaryDirectory() as made:
        source, library = Path(made) / "slow.c", Path(made) / "slow.so"
        source.write_text(SLOW_SYNC)
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True
        )
        os.environ["LD_PRELOAD"] = str(library)
        try:
            yield
        finally:
            del os.environ["LD_PRELOAD"]


def endpoint(seconds: float, load: float | None, *, slow: bool = False) -> float:
    """Milliseconds of a request to an endpoint that does nothing, the 99th percentile. `load` is
    how many runs are submitted per second over 64 keys; None submits none."""

    async def main() -> float:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read(1))
            writer.close()

        with folder() as path:
            store = LmdbStore(path, committer="process")
            async with open_on_asyncio(store, workflows=[three_steps]) as runtime:
                server = await asyncio.start_server(answer, "127.0.0.1", 0)
                port = server.sockets[0].getsockname()[1]
                asking = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", ASK, str(port), str(seconds), stdout=subprocess.PIPE
                )
                clients = []
                if load is not None:
                    clients = [
                        asyncio.create_task(_submits(runtime, f"key-{key}", 64 / load))
                        for key in range(64)
                    ]
                printed, _ = await asking.communicate()
                for client in clients:
                    client.cancel()
                await asyncio.gather(*clients, return_exceptions=True)
                server.close()
                return float(printed)

    if slow:
        with slow_syncs():
            return asyncio.run(main())
    return asyncio.run(main())


def computing(seconds: float) -> float:
    """The same percentile while the host computes half of the time, a millisecond at once, and
    Keyrun is not there. On a machine that does other work, this host waits for a processor, too."""

    async def main() -> float:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read(1))
            writer.close()

        async def compute() -> None:
            while True:
                until = thread_time() + 0.001
                while thread_time() < until:
                    pass
                await asyncio.sleep(0.001)

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        computes = asyncio.create_task(compute())
        asking = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ASK, str(port), str(seconds), stdout=subprocess.PIPE
        )
        printed, _ = await asking.communicate()
        computes.cancel()
        server.close()
        return float(printed)

    return asyncio.run(main())


async def _submits(runtime: Runtime, key: str, every: float) -> None:
    """Submit a run every `every` seconds, or when the run before it has ended."""
    while True:
        began = perf_counter()
        await (await runtime.submit(three_steps, key=key)).result()
        await asyncio.sleep(max(0.0, began + every - perf_counter()))


def run(bench: Bench) -> None:
    """Measure."""
    runs = bench.size(40, 8)
    for keys in (64, 256):
        bench.group(
            f"{keys} keys",
            {
                "Trio": partial(workload.steps_per_second, "process", keys, runs, keys),
                "asyncio": partial(asyncio_steps, keys, runs),
            },
            unit="steps/s",
            limit="Trio",
            bars={"asyncio": Bar(value=0.85)},
        )
    bench.group(
        f"{THREADS} threads",
        {
            "Trio": partial(workload.steps_per_second, "process", THREADS, runs, THREADS),
            "threads": partial(sync_steps, runs),
        },
        unit="steps/s",
        limit="Trio",
        bars={"threads": Bar(value=0.6)},
    )
    bench.group(
        "shared store, 64 keys",
        {
            "alone": partial(workload.steps_per_second, "inline", 64, runs, 64),
            "owner": partial(workload.steps_per_second, "inline", 64, runs, 64, is_shared=True),
        },
        unit="steps/s",
        limit="alone",
        bars={"owner": Bar(value=0.97)},
    )
    runs = bench.size(400, 50)
    bench.group(
        "one run at a time",
        {
            "Trio": partial(trio_latency, runs),
            "asyncio": partial(asyncio_latency, runs),
            "thread": partial(sync_latency, runs),
        },
        unit="ms",
        limit="Trio",
        better="lower",
        bars={
            "asyncio": Bar(value=1.5, better="lower"),
            "thread": Bar(value=2.0, better="lower"),
        },
    )
    half = asyncio_steps(64, bench.size(40, 8)) / STEPS / 2
    seconds = bench.size(5, 1)
    idle: list[float] = []

    def risen(busy: Callable[[], float]) -> dict[str, float]:
        if not idle:
            idle.append(endpoint(seconds, None))
        return {"p99 above an idle host": busy() - idle[0]}

    limit = Bar(value=5.0, better="lower", absolute=True)
    bench.survey(
        "an endpoint at half load",
        {
            "fast disk": partial(risen, partial(endpoint, seconds, half)),
            "10 ms for each sync": partial(risen, partial(endpoint, seconds, half, slow=True)),
            "computing, without Keyrun": partial(risen, partial(computing, seconds)),
        },
        metrics={
            "p99 above an idle host": Metric(
                unit="ms",
                better="lower",
                bars={"fast disk": limit, "10 ms for each sync": limit},
            )
        },
    )
