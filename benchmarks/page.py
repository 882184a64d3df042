"""What the web page costs: its first answers with many stored runs, its polling, and its events.

- The first answer of the list is read over HTTP, with as many stored runs as the bar says.
- An open page asks the same requests once a second. They are sent back to back, beside runs of 256
  keys, and the CPU time of one round of them is the share of a core that the page takes.
- A page of live events reads its sample while the engine makes 5,000 events per second.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import trio

from benchmarks.backlog import fill, job
from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from benchmarks.subscribers import anonymous_memory
from benchmarks.workload import three_steps
from keyrun import Context, open_runtime, workflow
from keyrun.control.target import SOCKET
from keyrun.storage import LmdbStore

KEYS = 256
PER_SECOND = 5_000
"""Events that the engine makes while pages show them."""
EVENTS_OF_A_RUN = 9
LIST = "/v1/runs?newest_first=true&limit=50"
QUESTIONS = {
    "first page": LIST,
    "oldest first": "/v1/runs?limit=50",
    "filter that few runs match": f"{LIST}&state=failed&error=ValueError",
    "one key": "/v1/runs?limit=50&key=key-7",
    "keys": "/v1/keys?limit=50",
    "overview": "/v1/overview",
}
ROUNDS = {
    "overview": ("/v1/overview", "/v1/counts"),
    "list of runs": ("/v1/overview", LIST),
    "run": (
        "/v1/overview",
        "/v1/runs/waits-7",
        "/v1/runs/waits-7/explain",
        "/v1/runs/waits-7/progress",
        "/v1/runs/waits-7/history?limit=200",
    ),
    "key": ("/v1/keys/key-7", "/v1/overview"),
}
"""What a screen asks once a second."""
ASK = """
import json, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
file = connection.makefile("rb")
def ask(path):
    connection.sendall(f"GET {path} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n".encode())
    status = file.readline()
    assert b" 200 " in status, (path, status)
    length = 0
    while (line := file.readline().strip()):
        name, _, value = line.lower().partition(b": ")
        if name == b"content-length":
            length = int(value)
    file.read(length)
for line in sys.stdin:
    paths, turns = json.loads(line)
    for _ in range(turns):
        for path in paths:
            ask(path)
    print("done", flush=True)
"""
READ = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
request = "GET /v1/events?most_per_second=200 HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"
connection.sendall(request.encode())
print(len(connection.recv(65536)), flush=True)
while connection.recv(65536):
    pass
"""


@workflow
async def waits(ctx: Context) -> None:
    """Wait, so that the key has a queue."""
    await ctx.wait_signal("never")


class Browser:
    """A process that asks what a page asks."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", ASK, str(path / SOCKET)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    async def ask(self, paths: Sequence[str], turns: int) -> None:
        """Send requests, again and again."""
        pipe, answers = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert answers is not None
        pipe.write(json.dumps([paths, turns]) + "\n")
        pipe.flush()
        if await trio.to_thread.run_sync(answers.readline) != "done\n":
            raise AssertionError(f"a request failed: {paths}")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@asynccontextmanager
async def browsing(path: Path) -> AsyncIterator[Browser]:
    """Open a browser while the block runs."""
    browser = Browser(path)
    try:
        yield browser
    finally:
        browser.close()


def first_answers(runs: int) -> dict[str, float]:
    """Return the milliseconds of the first answer to each question to a store of `runs` runs."""

    async def main() -> dict[str, float]:
        with folder() as path:
            await fill(path, 1000, runs // 1000)
            found = {}
            async with open_runtime(
                path,
                workflows=[job],
                control=True,
                drain_timeout=0,
                max_pending=runs + 1,
                max_pending_per_key=runs + 1,
            ) as runtime:
                await runtime.pause_all()
                async with browsing(path) as browser:
                    await browser.ask(["/v1/session"], 1)
                    for name, question in QUESTIONS.items():
                        began = perf_counter()
                        await browser.ask([question], 1)
                        found[name] = (perf_counter() - began) * 1000
            return found

    return trio.run(main)


def polling(turns: int) -> dict[str, float]:
    """Return the percentage of a core that each screen takes if it asks once a second."""

    async def main() -> dict[str, float]:
        with folder() as path:
            workflows = [three_steps, waits]
            async with open_runtime(LmdbStore(path), workflows=workflows, control=True) as runtime:
                for number in range(4 * KEYS):
                    key, run_id = f"key-{number % KEYS}", f"waits-{number}"
                    await runtime.submit(waits, key=key, run_id=run_id)
                for number in range(2_000):
                    await runtime.submit(three_steps, key=f"other-{number % KEYS}")
                await (await runtime.submit(three_steps, key="other-0")).result()
                found = {}
                async with browsing(path) as browser:
                    for name, paths in ROUNDS.items():
                        await browser.ask(paths, 5)
                        busy = process_time()
                        await browser.ask(paths, turns)
                        found[name] = (process_time() - busy) / turns * 100
            return found

    return trio.run(main)


def live_events(pages: int, seconds: int) -> dict[str, float]:
    """Return the CPU time per second of events while pages read them, in percent of a core, and how
    much the memory grows."""

    async def main() -> dict[str, float]:
        with folder() as path:
            async with (
                open_runtime(LmdbStore(path), workflows=[three_steps], control=True) as runtime,
                reading(path, pages),
            ):

                async def work(runs: int) -> float:
                    """Make events at the rate, and return the CPU time that they take."""
                    busy, began = process_time(), trio.current_time()
                    for number in range(runs):
                        await runtime.submit(three_steps, key=f"key-{number % KEYS}")
                        if number % 10 == 0:
                            due = began + number * EVENTS_OF_A_RUN / PER_SECOND
                            await trio.sleep_until(due)
                    return process_time() - busy

                in_a_second = PER_SECOND // EVENTS_OF_A_RUN
                await work(in_a_second)
                before = anonymous_memory()
                busy = await work(in_a_second * seconds)
                return {
                    "busy": busy / seconds * 100,
                    "memory": anonymous_memory() - before,
                }

    return trio.run(main)


@asynccontextmanager
async def reading(path: Path, pages: int) -> AsyncIterator[None]:
    """Let pages read events while the block runs."""
    command = [sys.executable, "-c", READ, str(path / SOCKET)]
    found = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(pages)]  # noqa: ASYNC220
    try:
        for each in found:
            assert each.stdout is not None
            await trio.to_thread.run_sync(each.stdout.readline)
        yield
    finally:
        for each in found:
            each.kill()
            each.communicate()


def lower(unit: str, bar: float | None = None, case: str = "") -> Metric:
    """Return how to read a figure that should be small."""
    bars: Mapping[str, Bar] = (
        {} if bar is None else {case: Bar(value=bar, better="lower", absolute=True)}
    )
    return Metric(unit=unit, better="lower", bars=bars)


def run(bench: Bench) -> None:
    """Measure."""
    runs = bench.size(1_000_000, 20_000)
    bench.survey(
        f"first answers with {runs:,} stored runs",
        {"": partial(first_answers, runs)},
        metrics={name: lower("ms", 100 if name == "first page" else 300) for name in QUESTIONS},
        warm_up=False,
    )
    bench.survey(
        f"an open page, {KEYS} keys",
        {"": partial(polling, bench.size(200, 50))},
        metrics={name: lower("% of a core", 2) for name in ROUNDS},
        warm_up=False,
    )
    seconds = bench.size(20, 4)
    bench.survey(
        f"live events at {PER_SECOND:,} events/s",
        {
            "no page": partial(live_events, 0, seconds),
            "1 page": partial(live_events, 1, seconds),
            "4 pages": partial(live_events, 4, seconds),
        },
        metrics={"busy": lower("% of a core"), "memory": lower("MB", 50, "4 pages")},
        limit="no page",
        warm_up=False,
    )
