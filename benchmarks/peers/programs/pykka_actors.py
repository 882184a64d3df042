"""Pykka: a thread per actor, and so per key."""

from threading import Lock
from time import perf_counter

import pykka

from benchmarks.peers.programs.evidence import wait_until
from benchmarks.peers.programs.order import Order
from benchmarks.peers.programs.pace import Pace
from benchmarks.peers.programs.stage import Facts, perform
from benchmarks.peers.programs.tally import Count, Tally


class Teller(pykka.ThreadingActor):
    """The actor of a key."""

    # All actors count together, which is not atomic; beside a change of threads it is cheap.
    lock = Lock()

    def __init__(self, count: Count) -> None:
        super().__init__()
        self.tally = Tally(count)

    def on_receive(self, message: int) -> int:
        """Handle a message."""
        with self.lock:
            return self.tally.take(message)


def tell(order: Order) -> Facts:
    """Messages to all keys in turn, until all are handled."""
    count = Count()
    started = perf_counter()
    actors = [Teller.start(count) for _ in range(order.keys)]
    for number in range(order.messages):
        for actor in actors:
            actor.tell(number)
    wait_until(lambda: count.handled >= order.keys * order.messages)
    return count.facts(order, perf_counter() - started)


def ask(order: Order) -> Facts:
    """A question and its answer, one at a time."""
    actors = [Teller.start(Count()) for _ in range(order.keys)]
    pace = Pace(order)
    while pace.going():
        started = perf_counter()
        actors[pace.total % order.keys].ask(-1)
        pace.ran(started)
    return pace.facts()


if __name__ == "__main__":
    perform({act.__name__: act for act in (tell, ask)})
