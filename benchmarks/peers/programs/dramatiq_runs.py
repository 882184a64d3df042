"""Dramatiq with a Redis that syncs every write: a run is a pipeline of three messages.

Its worker runs as threads in the process of the client, which is told of the end of a run without
looking for it. It knows no keys; one worker thread keeps everything in order.
"""

import logging
import time
from threading import Event, Thread
from time import perf_counter
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.programs import redis_server
from benchmarks.peers.programs.bells import Bells
from benchmarks.peers.programs.evidence import Inbox, Steps, wait_until
from benchmarks.peers.programs.gauge import disk
from benchmarks.peers.programs.order import Order
from benchmarks.peers.programs.pace import Pace, in_threads
from benchmarks.peers.programs.stage import Facts, perform, stay, tell

WORKERS = 8
POLLING = 2
"""Milliseconds between looks for messages, at most: with this Redis is asked every millisecond, and
with less without end. The default of a second would only make it slower."""
IN_ONE_THREAD = 1000
"""Messages that are fetched ahead for a single thread. The default of two per thread would have it
wait for the next look after every other message."""
KILLED = {"heartbeat_timeout": 2000, "maintenance_chance": 10_000}
"""How soon a worker that is silent is taken for dead, in milliseconds, and how often that is looked
for. The defaults would only make it later."""
LOST_AFTER = 20.0
"""Seconds after which a message that has not come back is taken for lost."""

steps = Steps()
inbox = Inbox()
bells = Bells()


def nothing(number: int) -> int:
    """The cheapest step there is."""
    return number


def ring(number: int) -> int:
    """The last step of a run."""
    bells.ring(number)
    return number


def first(number: int) -> int:
    """Finished before the kill."""
    steps.mark("first")
    return number


def second(number: int) -> int:
    """Blocks until the kill, and returns at once after it."""
    steps.mark("second")
    if steps.blocking:
        Event().wait()
    return number


def third(number: int) -> int:
    """Only after the restart."""
    steps.mark("third")
    return number


def take(key: str, number: int) -> int:
    """Handle a message."""
    inbox.take(key, number)
    return number


class House:
    """The server, the broker and its actors, and a worker."""

    def __init__(self, order: Order, *, workers: int) -> None:
        port = redis_server.start(order.server, order.folder)
        options = KILLED if order.act in ("fill", "resume") else {}
        broker = RedisBroker(url=f"redis://127.0.0.1:{port}?max_connections=4096", **options)
        dramatiq.set_broker(broker)
        functions = (nothing, ring, first, second, third, take)
        self.actors: dict[str, Any] = {
            function.__name__: dramatiq.actor(function, broker=broker) for function in functions
        }
        worker = dramatiq.Worker(broker, worker_timeout=POLLING, worker_threads=workers)
        if order.act == "messages":
            worker.queue_prefetch = IN_ONE_THREAD
        worker.start()

    def pipeline(self, *names: str, number: int) -> None:
        """Actors one after the other; each gets what the one before it returned."""
        head, *rest = names
        messages = [self.actors[head].message(number)]
        messages += [self.actors[name].message() for name in rest]
        dramatiq.pipeline(messages).run()


def runs(order: Order) -> Facts:
    """A closed loop of pipelines of three messages."""
    house = House(order, workers=min(WORKERS, order.at_once))
    before, pace = disk(order.folder), Pace(order)

    def run(_: int) -> None:
        number = bells.hang()
        house.pipeline("nothing", "nothing", "ring", number=number)
        bells.wait(number)

    in_threads(pace, run)
    return pace.facts() | {"bytes_per_run": (disk(order.folder) - before) / pace.total}


def messages(order: Order) -> Facts:
    """Messages for a single worker thread."""
    house = House(order, workers=1)
    inbox.expect(order.keys, order.messages)

    def sender(start: int) -> None:
        for key in range(start, order.keys, WORKERS):
            for number in range(order.messages):
                house.actors["take"].send(f"key-{key}", number)

    started = perf_counter()
    for start in range(WORKERS):
        Thread(target=sender, args=(start,), daemon=True).start()
    wait_until(lambda: inbox.complete)
    seconds = perf_counter() - started
    return {"messages_per_second": inbox.expected / seconds, "disordered": inbox.disordered()}


def fill(order: Order) -> Facts:
    """Bring runs into their second message, a worker thread each, where everything is killed."""
    steps.blocking = True
    house = House(order, workers=order.runs)
    for number in range(order.runs):
        house.pipeline("first", "second", "third", number=number)
    wait_until(lambda: steps.count("second") >= order.runs)
    tell(ready=True)
    stay()


def resume(order: Order) -> Facts:
    """Wait for what the dead worker held to be given to another."""
    House(order, workers=WORKERS)
    until = perf_counter() + LOST_AFTER
    while steps.count("third") < order.runs and perf_counter() < until:
        time.sleep(0.01)
    return {"finished": steps.count("third"), "again": steps.count("first")}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    perform({"runs": runs, "messages": messages, "fill": fill, "resume": resume})
