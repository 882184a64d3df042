"""Restate: its server, a Python service with keyed virtual objects behind Hypercorn, and a client.

The three are processes of their own, as its manual has it. Client and service count themselves;
the client asks the service for what it saw at a path of its own.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter

import aiohttp

from benchmarks.peers.programs.gauge import disk, family, memory
from benchmarks.peers.programs.order import Order
from benchmarks.peers.programs.pace import Pace, in_tasks
from benchmarks.peers.programs.ports import free_ports
from benchmarks.peers.programs.stage import Facts, in_asyncio, perform_in, stay, tell

SERVICE = "benchmarks.peers.programs.restate_service"
WARM_UP_CALLS = 200
CONFIG = """
listen-mode = "tcp"
bind-ip = "127.0.0.1"
bind-port = {node}
advertised-host = "127.0.0.1"
base-dir = "{folder}/restate-data"
node-name = "bench"
log-filter = "warn"
disable-telemetry = true
[ingress]
bind-ip = "127.0.0.1"
bind-port = {ingress}
[admin]
bind-ip = "127.0.0.1"
bind-port = {admin}
disable-web-ui = true
[worker.invoker]
concurrent-invocations-limit = 100000
inactivity-timeout = "{inactivity}"
"""


class House:
    """The server and the service, and a client's session with both."""

    def __init__(self, session: aiohttp.ClientSession, ports: dict[str, int]) -> None:
        self.session = session
        self.ingress, self.admin, self.service = (
            f"http://127.0.0.1:{ports[name]}" for name in ("ingress", "admin", "service")
        )

    async def call(self, key: str, handler: str, value: object = None) -> None:
        """Call a handler and wait for its answer, or with `/send` until it is accepted."""
        url = f"{self.ingress}/Bench/{key}/{handler}"
        body = None if value is None else json.dumps(value)
        headers = None if value is None else {"Content-Type": "application/json"}
        async with self.session.post(
            url, data=body, headers=headers, skip_auto_headers=["Content-Type"]
        ) as answer:
            if answer.status >= 300:
                raise RuntimeError(f"{url}: {answer.status} {await answer.text()}")
            await answer.read()

    async def evidence(self) -> dict[str, int]:
        """What the service saw so far."""
        async with self.session.get(f"{self.service}/evidence") as answer:
            found: dict[str, int] = await answer.json()
            return found

    async def until(self, name: str, count: int) -> dict[str, int]:
        """Wait until the service saw as many."""
        while (found := await self.evidence())[name] < count:
            await asyncio.sleep(0.02)
        return found


@asynccontextmanager
async def house(
    order: Order, *, blocking: bool = False, inactivity: str = "1m"
) -> AsyncIterator[House]:
    """Start what there is to start, and register the service where that was not done before."""
    known = Path(order.folder) / "ports.json"
    first = not known.exists()
    if first:
        names = ("node", "ingress", "admin", "service")
        known.write_text(json.dumps(dict(zip(names, free_ports(len(names)), strict=True))))
    ports = json.loads(known.read_text())
    _start(order, ports, blocking=blocking, inactivity=inactivity)
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        found = House(session, ports)
        await _answers(session, f"{found.service}/evidence")
        await _answers(session, f"{found.ingress}/restate/health")
        if first:
            await _answers(session, f"{found.admin}/health")
            await _register(found)
            # A server that is new takes seconds to set up its partitions. Each gets some of these.
            await asyncio.gather(
                *(found.call(f"warm-up-{number}", "three_steps") for number in range(WARM_UP_CALLS))
            )
        yield found


def _start(order: Order, ports: dict[str, int], *, blocking: bool, inactivity: str) -> None:
    """Start service and server. The service is up first, or the server would have to try again."""
    folder = Path(order.folder)
    config = folder / "restate.toml"
    config.write_text(CONFIG.format(**ports, folder=folder, inactivity=inactivity))
    arguments = {"port": ports["service"], "blocking": blocking}
    arguments |= {"keys": order.keys, "messages": order.messages}
    with (folder / "server.log").open("ab") as log:
        for command in (
            [sys.executable, "-m", SERVICE, json.dumps(arguments)],
            [order.server, "--config-file", str(config), "--no-logo"],
        ):
            subprocess.Popen(command, stdout=log, stderr=log)


async def _answers(session: aiohttp.ClientSession, url: str) -> None:
    while True:
        try:
            async with session.get(url) as answer:
                if answer.status < 300:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.02)


async def _register(found: House) -> None:
    """Tell the server of the service. It may not be ready for that when it begins to answer."""
    while True:
        async with found.session.post(
            f"{found.admin}/deployments", json={"uri": found.service}
        ) as answer:
            if answer.status < 300:
                return
            print(await answer.text(), file=sys.stderr)
        await asyncio.sleep(0.2)


async def runs(order: Order) -> Facts:
    """A closed loop of calls of a handler with three steps."""
    async with house(order) as found:
        before, pace = disk(order.folder), Pace(order)
        await in_tasks(pace, lambda number: found.call(f"key-{number}", "three_steps"))
        return pace.facts() | {"bytes_per_run": (disk(order.folder) - before) / pace.total}


async def messages(order: Order) -> Facts:
    """One-way calls, each sent when the one before it was accepted."""
    async with house(order) as found:

        async def sender(first: int) -> None:
            for key in range(first, order.keys, order.at_once):
                for number in range(order.messages):
                    await found.call(f"key-{key}", "take/send", number)

        started = perf_counter()
        await asyncio.gather(*(sender(first) for first in range(order.at_once)))
        total = order.keys * order.messages
        seen = await found.until("handled", total)
        seconds = perf_counter() - started
        return {"messages_per_second": total / seconds, "disordered": seen["disordered"]}


async def fill(order: Order) -> Facts:
    """Bring runs into their second step, where everything is killed."""
    async with house(order, blocking=True) as found:

        async def sender(first: int) -> None:
            for number in range(first, order.runs, order.at_once):
                await found.call(f"key-{number}", "job/send")

        await asyncio.gather(*(sender(first) for first in range(order.at_once)))
        await found.until("second", order.runs)
        tell(ready=True)
        stay()


async def resume(order: Order) -> Facts:
    """Start server and service again: they go on by themselves."""
    async with house(order) as found:
        seen = await found.until("finished", order.runs)
        return {"finished": seen["finished"], "again": seen["first"]}


async def sleep(order: Order) -> Facts:
    """Put calls to sleep, and weigh server and service. The service lets go of a call that has
    been idle for a second instead of a minute, or this would take a minute more."""
    async with house(order, inactivity="1s") as found:
        before = memory(family(os.getpid()) - {os.getpid()})

        async def sender(first: int) -> None:
            for number in range(first, order.runs, order.at_once):
                await found.call(f"key-{number}", "sleeper/send")

        await asyncio.gather(*(sender(first) for first in range(order.at_once)))
        await found.until("asleep", order.runs)
        await asyncio.sleep(order.seconds)
        held = memory(family(os.getpid()) - {os.getpid()})
        return {"asleep": order.runs, "before": before, "memory": held}


if __name__ == "__main__":
    perform_in(in_asyncio, runs, messages, fill, resume, sleep)
