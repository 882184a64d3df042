"""Keyrun's actors with their defaults."""

from time import perf_counter

import trio

from benchmarks.peers.programs.order import Order
from benchmarks.peers.programs.pace import Pace
from benchmarks.peers.programs.stage import Facts, perform_in
from benchmarks.peers.programs.tally import Count, Tally
from keyrun.actors import Actor, ActorSystem

YIELD_EVERY = 256


class Teller(Actor[int, int]):
    """The actor of a key."""

    def __init__(self, count: Count) -> None:
        self.tally = Tally(count)

    async def receive(self, message: int) -> int:
        """Handle a message."""
        return self.tally.take(message)


async def tell(order: Order) -> Facts:
    """Messages to all keys in turn, until all are handled."""
    count = Count()
    async with ActorSystem[int, int, int](lambda _: Teller(count)) as system:
        started = perf_counter()
        for number in range(order.messages):
            for key in range(order.keys):
                system.tell_nowait(key, number)
                if key % YIELD_EVERY == 0:
                    await trio.lowlevel.checkpoint()
        while count.handled < order.keys * order.messages:
            await trio.lowlevel.checkpoint()
        return count.facts(order, perf_counter() - started)


async def ask(order: Order) -> Facts:
    """A question and its answer, one at a time."""
    async with ActorSystem[int, int, int](lambda _: Teller(Count())) as system:
        pace = Pace(order)
        while pace.going():
            started = perf_counter()
            await system.ask(pace.total % order.keys, -1)
            pace.ran(started)
        return pace.facts()


if __name__ == "__main__":
    perform_in(trio.run, tell, ask)
