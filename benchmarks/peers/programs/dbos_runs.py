"""DBOS Transact on SQLite, or on PostgreSQL when the order names one, with their defaults.

Workflows are called directly, for its queues look for work only now and then; messages go through
a queue with one at a time per partition, which is its way to keep them in order.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, TypeAlias

from dbos import DBOS, DBOSConfig, SetEnqueueOptions

from benchmarks.peers.programs import postgres
from benchmarks.peers.programs.evidence import Inbox, Steps
from benchmarks.peers.programs.gauge import disk, family, memory
from benchmarks.peers.programs.order import Order
from benchmarks.peers.programs.pace import Pace, in_tasks
from benchmarks.peers.programs.stage import Facts, in_asyncio, perform_in, tell

Workflow: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

QUEUE = "messages"
POLLING = 0.05
"""Seconds between looks into the queue. The default of a second would only make it slower."""

steps = Steps()
inbox = Inbox()
asleep: list[int] = []


@DBOS.step()
async def nothing() -> None:
    """The cheapest step there is."""


@DBOS.workflow()
async def three_steps() -> None:
    """Three of them, one after the other."""
    await nothing()
    await nothing()
    await nothing()


@DBOS.step()
async def first() -> None:
    """Finished before the kill."""
    steps.mark("first")


@DBOS.step()
async def second() -> None:
    """Blocks until the kill, and returns at once after it."""
    steps.mark("second")
    if steps.blocking:
        await asyncio.Event().wait()


@DBOS.step()
async def third() -> None:
    """Only after the restart."""
    steps.mark("third")


@DBOS.workflow()
async def job() -> None:
    """What is killed in its middle."""
    await first()
    await second()
    await third()


@DBOS.step()
async def take(key: str, number: int) -> None:
    """Handle a message."""
    inbox.take(key, number)


@DBOS.workflow()
async def message(key: str, number: int) -> None:
    """One message."""
    await take(key, number)


@DBOS.workflow()
async def sleeper() -> None:
    """What sleeps for longer than anybody looks."""
    asleep.append(1)
    await DBOS.sleep_async(3600)


def launch(order: Order) -> None:
    """Open the database. What was pending in it goes on by itself."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": f"sqlite:///{order.folder}/dbos.sqlite",
        "application_version": "1",
        "log_level": "ERROR",
    }
    if order.server:
        config["system_database_url"] = postgres.start(order.server, order.folder)
    DBOS(config=config)
    DBOS.launch()


async def runs(order: Order) -> Facts:
    """A closed loop of workflows of three steps."""
    launch(order)
    before, pace = disk(order.folder), Pace(order)
    await in_tasks(pace, lambda _: three_steps())
    return pace.facts() | {"bytes_per_run": (disk(order.folder) - before) / pace.total}


async def messages(order: Order) -> Facts:
    """Workflows in a queue, each put there when the one before it is durable."""
    launch(order)
    inbox.expect(order.keys, order.messages)
    await DBOS.register_queue_async(QUEUE, partition_concurrency=1, polling_interval_sec=POLLING)

    async def sender(start: int) -> None:
        for key in range(start, order.keys, order.at_once):
            for number in range(order.messages):
                with SetEnqueueOptions(queue_partition_key=f"key-{key}"):
                    await DBOS.enqueue_workflow_async(QUEUE, message, f"key-{key}", number)

    started = perf_counter()
    await asyncio.gather(*(sender(start) for start in range(order.at_once)))
    while not inbox.complete:
        await asyncio.sleep(0.01)
    seconds = perf_counter() - started
    return {"messages_per_second": inbox.expected / seconds, "disordered": inbox.disordered()}


async def fill(order: Order) -> Facts:
    """Bring workflows into their second step, where the process is killed."""
    steps.blocking = True
    launch(order)
    await _start_all(order, job)
    while steps.count("second") < order.runs:
        await asyncio.sleep(0.01)
    tell(ready=True)
    await asyncio.Event().wait()
    raise AssertionError("killed before")


async def resume(order: Order) -> Facts:
    """Finish what was killed: launching is all that it takes."""
    launch(order)
    while steps.count("third") < order.runs:
        await asyncio.sleep(0.01)
    while pending := await DBOS.list_workflows_async(status="PENDING", limit=1):
        await asyncio.sleep(0.01 * len(pending))
    done = await DBOS.list_workflows_async(status="SUCCESS", load_input=False, load_output=False)
    return {"finished": len(done), "again": steps.count("first")}


async def sleep(order: Order) -> Facts:
    """Put workflows to sleep, and weigh the process with its server."""
    launch(order)
    before = memory(family(os.getpid()))
    await _start_all(order, sleeper)
    while len(asleep) < order.runs:
        await asyncio.sleep(0.01)
    await asyncio.sleep(order.seconds)
    return {"asleep": order.runs, "before": before, "memory": memory(family(os.getpid()))}


async def _start_all(order: Order, workflow: Workflow) -> None:
    async def client(start: int) -> None:
        for _ in range(start, order.runs, order.at_once):
            await DBOS.start_workflow_async(workflow)

    await asyncio.gather(*(client(start) for start in range(order.at_once)))


if __name__ == "__main__":
    perform_in(in_asyncio, runs, messages, fill, resume, sleep)
