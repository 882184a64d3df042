"""The server that `benchmarks.control` measures: a runtime with its control plane in a process.

It does what it reads on stdin, one JSON array per line, and answers each with a line: it submits
runs itself, which is what the control plane is compared with.
"""

import json
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from keyrun import Context, Runtime, open_runtime, workflow
from keyrun.control.listening import bind_unix, serving
from keyrun.storage import LmdbStore

CONSTANT = "constant.sock"
"""The name of the socket at which an application answers a constant."""
SUBMITTED = {
    "run_id": "7h8AAmPKHTB0000000000",
    "key": "key-0",
    "newly_submitted": True,
    "workflow": "take",
    "version": 1,
    "number": 1,
}


@workflow
async def take(ctx: Context, order: dict[str, Any]) -> None:
    """Do nothing. It never begins: the runtime is paused."""


ORDER = {"id": 7, "items": ["apple", "pear"]}


async def in_process(runtime: Runtime, submitters: int, each: int) -> list[float]:
    """Return the seconds of wall time and of CPU time for submits, and the median time of one."""
    times: list[float] = []

    async def submitter(number: int) -> None:
        for _ in range(each):
            began = perf_counter()
            await runtime.submit(take, ORDER, key=f"key-{number}")
            times.append(perf_counter() - began)

    began, busy = perf_counter(), process_time()
    async with trio.open_nursery() as nursery:
        for number in range(submitters):
            nursery.start_soon(submitter, number)
    return [perf_counter() - began, process_time() - busy, sorted(times)[len(times) // 2]]


async def constant(request: Request) -> JSONResponse:
    """Read the body, and answer what a submit answers."""
    await request.json()
    return JSONResponse(SUBMITTED)


async def main(path: Path) -> None:
    """Serve until stdin ends."""
    many = 100_000_000
    bare = Starlette(routes=[Route("/v1/runs", constant, methods=["POST"])])
    async with (
        open_runtime(
            LmdbStore(path),
            workflows=[take],
            control=True,
            max_pending=many,
            max_pending_per_key=many,
        ) as runtime,
        serving(bare, [bind_unix(path / CONSTANT)]),
    ):
        # Runs that begin would cost more than submits.
        await runtime.pause_all()
        print("ready", flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            print(json.dumps(await in_process(runtime, *json.loads(line))), flush=True)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
