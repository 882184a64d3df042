"""The speed of the engine while 200 clients subscribe to its events over HTTP.

One of the clients never reads. The others are in another process, which discards what it reads: on
a machine with few cores, what clients do with events is not the cost of the engine. The rounds with
and without subscribers take turns in one runtime.
"""

import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median

import trio

from benchmarks.events import Taken, work
from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from benchmarks.workload import three_steps
from keyrun import Runtime, open_runtime
from keyrun.control.target import SOCKET
from keyrun.storage import LmdbStore

SUBSCRIBERS = 200
REQUEST = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLIENTS = f"""
import selectors, socket, sys
found = selectors.DefaultSelector()
for _ in range(int(sys.argv[2])):
    client = socket.socket(socket.AF_UNIX)
    client.connect(sys.argv[1])
    client.sendall({REQUEST!r})
    while b"retry" not in client.recv(65536):
        pass
    client.setblocking(False)
    found.register(client, selectors.EVENT_READ)
print("subscribed", flush=True)
buffer = bytearray(1 << 20)
while True:
    for key, _ in found.select():
        if not key.fileobj.recv_into(buffer):
            sys.exit()
"""


@asynccontextmanager
async def subscribers(path: Path, count: int) -> AsyncIterator[None]:
    """Subscribe to all events, with one client that never reads."""
    address = str(path / SOCKET)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(address)
        silent.sendall(REQUEST)
        arguments = [sys.executable, "-c", CLIENTS, address, str(count - 1)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as clients:  # noqa: ASYNC220
            assert clients.stdout is not None
            try:
                await trio.to_thread.run_sync(clients.stdout.readline)
                yield
            finally:
                clients.kill()


def anonymous_memory() -> float:
    """Return the MB of memory of this process that are no part of a file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel reports no RssAnon")


def with_and_without(keys: int, runs: int, pairs: int) -> dict[str, float]:
    """Return the speed with subscribers divided by the speed without, the same of the CPU time of
    this process, and how much more memory it uses."""

    async def heard(runtime: Runtime, path: Path) -> Taken:
        async with subscribers(path, SUBSCRIBERS):
            return await work(runtime, keys, runs)

    async def main() -> dict[str, float]:
        taken: list[tuple[Taken, Taken]] = []
        with folder() as path:
            store = LmdbStore(path)
            async with open_runtime(store, workflows=[three_steps], control=True) as runtime:
                await work(runtime, keys, runs)
                before = anonymous_memory()
                for pair in range(pairs):
                    # Neither is always the second.
                    if pair % 2:
                        first = await heard(runtime, path)
                        taken.append((await work(runtime, keys, runs), first))
                    else:
                        alone = await work(runtime, keys, runs)
                        taken.append((alone, await heard(runtime, path)))
                more = anonymous_memory() - before
        return {
            "speed left": median(alone.seconds / heard.seconds for alone, heard in taken),
            "busy": median(heard.busy / alone.busy for alone, heard in taken),
            "memory": more,
        }

    return trio.run(main)


def run(bench: Bench) -> None:
    """Measure."""
    keys = 64
    runs = max(2, bench.size(12_800, 3_200) // keys)
    bench.survey(
        f"{SUBSCRIBERS} subscribers over HTTP, one of which never reads, {keys} keys",
        {"pairs": partial(with_and_without, keys, runs, bench.size(10, 6))},
        metrics={
            "speed left": Metric(unit="", bars={"pairs": Bar(value=0.9, absolute=True)}),
            "busy": Metric(unit="", better="lower"),
            "memory": Metric(
                unit="MB",
                better="lower",
                bars={"pairs": Bar(value=100, better="lower", absolute=True)},
            ),
        },
        warm_up=False,
    )
