"""Huey on SQLite with every commit synced: a run is a pipeline of three tasks.

Its consumer runs as threads in the process of the client, which is told of the end of a run without
looking for it in the database. It knows no keys; one worker keeps everything in order.
"""

import logging
import os
import time
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

from huey import SqliteHuey

from benchmarks.peers.programs.bells import Bells
from benchmarks.peers.programs.evidence import Inbox, Steps, wait_until
from benchmarks.peers.programs.gauge import disk_after_checkpoint, family, memory
from benchmarks.peers.programs.order import Order
from benchmarks.peers.programs.pace import Pace, in_threads
from benchmarks.peers.programs.stage import Facts, perform, stay, tell

WORKERS = 8
LOST_AFTER = 5.0
"""Seconds after which a task that has not come back is taken for lost."""

steps = Steps()
inbox = Inbox()
bells = Bells()


class Tasks:
    """The tasks, registered with one database."""

    def __init__(self, order: Order) -> None:
        filename = str(Path(order.folder) / "huey.sqlite")
        self.huey = SqliteHuey("bench", filename=filename, fsync=True, strict_fifo=True, timeout=60)
        for name in ("nothing", "ring", "first", "second", "third", "take"):
            setattr(self, name, self.huey.task(name=name)(getattr(self, f"_{name}")))

    nothing: Any
    ring: Any
    first: Any
    second: Any
    third: Any
    take: Any

    @staticmethod
    def _nothing(number: int) -> int:
        return number

    @staticmethod
    def _ring(number: int) -> int:
        bells.ring(number)
        return number

    @staticmethod
    def _first(number: int) -> int:
        steps.mark("first")
        return number

    @staticmethod
    def _second(number: int) -> int:
        steps.mark("second")
        if steps.blocking:
            Event().wait()
        return number

    @staticmethod
    def _third(number: int) -> int:
        steps.mark("third")
        return number

    @staticmethod
    def _take(key: str, number: int) -> int:
        inbox.take(key, number)
        return number

    def consume(self, workers: int) -> None:
        """Start the consumer. It looks for work as often as it can be told to."""
        consumer = self.huey.create_consumer(
            workers=workers,
            worker_type="thread",
            periodic=False,
            initial_delay=0.001,
            max_delay=0.001,
            check_worker_health=False,
        )
        consumer.start()

    def pipeline(self, *tasks: Any, number: int) -> Any:
        """`tasks` one after the other; each gets what the one before it returned."""
        line = tasks[0].s(number)
        for task in tasks[1:]:
            line = line.then(task)
        return self.huey.enqueue(line)


def runs(order: Order) -> Facts:
    """A closed loop of pipelines of three tasks."""
    tasks = Tasks(order)
    tasks.consume(min(WORKERS, order.at_once))
    before, pace = disk_after_checkpoint(order.folder), Pace(order)

    def run(_: int) -> None:
        number = bells.hang()
        tasks.pipeline(tasks.nothing, tasks.nothing, tasks.ring, number=number)
        bells.wait(number)

    in_threads(pace, run)
    grown = disk_after_checkpoint(order.folder) - before
    return pace.facts() | {"bytes_per_run": grown / pace.total}


def messages(order: Order) -> Facts:
    """Tasks for a single worker."""
    tasks = Tasks(order)
    tasks.consume(1)
    inbox.expect(order.keys, order.messages)

    def sender(start: int) -> None:
        for key in range(start, order.keys, WORKERS):
            for number in range(order.messages):
                tasks.take(f"key-{key}", number)

    started = perf_counter()
    for start in range(WORKERS):
        Thread(target=sender, args=(start,), daemon=True).start()
    wait_until(lambda: inbox.complete)
    seconds = perf_counter() - started
    return {"messages_per_second": inbox.expected / seconds, "disordered": inbox.disordered()}


def fill(order: Order) -> Facts:
    """Bring runs into their second task, a worker each, where the process is killed."""
    steps.blocking = True
    tasks = Tasks(order)
    tasks.consume(order.runs)
    for number in range(order.runs):
        tasks.pipeline(tasks.first, tasks.second, tasks.third, number=number)
    wait_until(lambda: steps.count("second") >= order.runs)
    tell(ready=True)
    stay()


def resume(order: Order) -> Facts:
    """See whether anything comes back."""
    tasks = Tasks(order)
    tasks.consume(WORKERS)
    until = perf_counter() + LOST_AFTER
    while steps.count("third") < order.runs and perf_counter() < until:
        time.sleep(0.01)
    return {"finished": steps.count("third"), "again": steps.count("first")}


def sleep(order: Order) -> Facts:
    """Delay the start of tasks, which is as near as it comes, and weigh the process."""
    tasks = Tasks(order)
    tasks.consume(WORKERS)
    before = memory(family(os.getpid()))
    for number in range(order.runs):
        tasks.nothing.schedule(args=(number,), delay=3600)
    time.sleep(order.seconds)
    return {"asleep": order.runs, "before": before, "memory": memory(family(os.getpid()))}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    acts = (runs, messages, fill, resume, sleep)
    perform({act.__name__: act for act in acts})
