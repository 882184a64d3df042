"""Submits through the unix socket of a runtime in another process, beside submits in that process.

The runtime is paused, so that each figure is that of submits alone. Each case has as many submits
under way as the one that it is compared with. Client and server are two processes, and the CPU time
of both is reported: on a machine with few cores, they share them.
"""

import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import trio

import keyrun
from benchmarks.control_server import CONSTANT, ORDER, take
from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from keyrun.control.target import SOCKET

BATCH = 100
BATCHES = 4
"""Batches under way."""
CALLS = 64


class Server:
    """A server process."""

    def __init__(self, process: "subprocess.Popen[str]", path: Path) -> None:
        self._process = process
        self.path = path
        # The clock of the CPU time of a process, as Linux names it.
        self._clock = (~process.pid << 3) | 2

    def busy(self) -> float:
        """Return the CPU time of the server in seconds."""
        return time.clock_gettime(self._clock)

    def in_process(self, submitters: int, each: int) -> list[float]:
        """Let the server submit runs itself."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([submitters, each]) + "\n")
        self._process.stdin.flush()
        found: list[float] = json.loads(self._process.stdout.readline())
        return found


@contextmanager
def server() -> Iterator[Server]:
    """Start a server, and stop it at the end."""
    with folder() as path:
        arguments = [sys.executable, "-m", "benchmarks.control_server", str(path)]
        with subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                if process.stdout.readline() != "ready\n":
                    raise AssertionError("the server did not start")
                yield Server(process, path)
            finally:
                process.terminate()


def in_process(server: Server, submitters: int, each: int) -> dict[str, float]:
    """Submit in the process of the server."""
    seconds, busy, _ = server.in_process(submitters, each)
    count = submitters * each
    return figures(count, seconds, busy, 0.0)


def figures(count: int, seconds: float, server: float, client: float) -> dict[str, float]:
    """Return the figures of one case."""
    return {
        "rate": count / seconds,
        "CPU of the server": server / count * 1e6,
        "CPU of the client": client / count * 1e6,
    }


def calls_of_client(server: Server, tasks: int, each: int) -> dict[str, float]:
    """Submit with concurrent tasks of one Python client, one run after the other in each task."""

    async def main() -> dict[str, float]:
        async with keyrun.connect(server.path) as client:
            await client.submit(take, ORDER, key="key-0")

            async def submitter(number: int) -> None:
                for _ in range(each):
                    await client.submit(take, ORDER, key=f"key-{number}")

            busy, mine, began = server.busy(), process_time(), perf_counter()
            async with trio.open_nursery() as nursery:
                for number in range(tasks):
                    nursery.start_soon(submitter, number)
            seconds = perf_counter() - began
            return figures(tasks * each, seconds, server.busy() - busy, process_time() - mine)

    return trio.run(main)


def request(body: bytes, kind: str) -> bytes:
    """Return a POST request."""
    return (
        b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n"
        b"\r\n%s" % (kind.encode(), len(body), body)
    )


class RawConnection:
    """One connection of a minimal HTTP client, which sends one request after the other."""

    def __init__(self, address: Path, sent: bytes, times: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(address))
        self._sent = sent
        self.left = times
        self._answer = b""
        self.socket.sendall(sent)

    def receive(self) -> None:
        """Read what has arrived. After a whole answer, send the next request."""
        data = self.socket.recv(1 << 18)
        self._answer += data
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if not data or (found and not head.startswith(b"HTTP/1.1 200")):
            raise AssertionError(f"the server answered {self._answer!r}")
        if not found or not _is_complete(head, body):
            return
        self.check(body)
        self._answer = b""
        self.left -= 1
        if self.left:
            self.socket.sendall(self._sent)

    def check(self, body: bytes) -> None:
        """Raise an error unless this is the answer to submits that were accepted."""
        expected = self._sent.count(b'"workflow"')
        if body.count(b'"newly_submitted":true') != expected:
            raise AssertionError(f"the server answered {body!r}")


def _is_complete(head: bytes, body: bytes) -> bool:
    length = head.lower().partition(b"content-length: ")[2]
    if length:
        return len(body) == int(length.partition(b"\r\n")[0])
    return body.endswith(b"0\r\n\r\n")


def raw(
    server: Server, name: str, sent: bytes, connections: int, each: int, runs: int = 1
) -> dict[str, float]:
    """Send raw HTTP requests over connections that are kept. Each request submits some runs."""
    busy, mine, began = server.busy(), process_time(), perf_counter()
    with selectors.DefaultSelector() as selector:
        for _ in range(connections):
            one = RawConnection(server.path / name, sent, each)
            selector.register(one.socket, selectors.EVENT_READ, one)
        while selector.get_map():
            for key, _ in selector.select():
                key.data.receive()
                if not key.data.left:
                    selector.unregister(key.data.socket)
                    key.data.socket.close()
    seconds = perf_counter() - began
    return figures(connections * each * runs, seconds, server.busy() - busy, process_time() - mine)


def latency(server: Server, each: int) -> dict[str, float]:
    """Return the milliseconds that the socket adds to one submit at a time, the median."""

    async def main() -> float:
        times = []
        async with keyrun.connect(server.path) as client:
            await client.submit(take, ORDER, key="key-0")
            for _ in range(each):
                began = perf_counter()
                await client.submit(take, ORDER, key="key-0")
                times.append(perf_counter() - began)
        return sorted(times)[len(times) // 2] * 1000

    alone = server.in_process(1, each)[2] * 1000
    through = trio.run(main)
    return {"in process": alone, "added": through - alone}


def metrics(bars: Mapping[str, float]) -> dict[str, Metric]:
    """Return how to read the figures of a case."""
    return {
        "rate": Metric(unit="1/s", bars={case: Bar(value=value) for case, value in bars.items()}),
        "CPU of the server": Metric(unit="us", better="lower"),
        "CPU of the client": Metric(unit="us", better="lower"),
    }


def run(bench: Bench) -> None:
    """Measure."""
    one = json.dumps({"workflow": "take", "input": ORDER, "key": "key-0"}).encode()
    lines = b"".join(
        json.dumps({"workflow": "take", "input": ORDER, "key": f"key-{number}"}).encode() + b"\n"
        for number in range(BATCH)
    )
    with server() as found:
        waves = bench.size(100, 20)
        ndjson = request(lines, "application/x-ndjson")
        bench.survey(
            f"submits in batches of {BATCH}, {BATCHES} at once",
            {
                "in process": partial(in_process, found, BATCHES * BATCH, waves),
                "Python client": partial(calls_of_client, found, BATCHES * BATCH, waves),
                "NDJSON": partial(raw, found, SOCKET, ndjson, BATCHES, waves, BATCH),
            },
            metrics=metrics({"Python client": 0.7, "NDJSON": 0.7}),
            limit="in process",
        )
        each = bench.size(300, 60)
        bench.survey(
            f"submits of {CALLS} tasks",
            {
                "in process": partial(in_process, found, CALLS, each),
                "Python client": partial(calls_of_client, found, CALLS, each),
            },
            metrics=metrics({"Python client": 0.3}),
            limit="in process",
        )
        single = request(one, "application/json")
        each = bench.size(300, 60)
        bench.survey(
            f"raw requests, {CALLS} connections",
            {
                "a constant": partial(raw, found, CONSTANT, single, CALLS, each),
                "POST /v1/runs": partial(raw, found, SOCKET, single, CALLS, each),
            },
            metrics=metrics({"POST /v1/runs": 0.8}),
            limit="a constant",
        )
        # A constant does not wait for the disk. Without others to share its commit, a submit does.
        each = bench.size(1_000, 200)
        bench.survey(
            "raw requests, 1 connection",
            {
                "a constant": partial(raw, found, CONSTANT, single, 1, each),
                "POST /v1/runs": partial(raw, found, SOCKET, single, 1, each),
                "in process": partial(in_process, found, 1, each),
            },
            metrics=metrics({}),
            limit="a constant",
        )
        bench.survey(
            "one submit at a time",
            {"Python client": partial(latency, found, bench.size(500, 150))},
            metrics={
                "in process": Metric(unit="ms", better="lower"),
                "added": Metric(
                    unit="ms",
                    better="lower",
                    bars={"Python client": Bar(value=1.5, better="lower", absolute=True)},
                ),
            },
        )
