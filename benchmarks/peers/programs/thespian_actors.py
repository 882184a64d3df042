"""Thespian on its simple base, where all actors share the thread of the caller.

Its other bases give each actor a process, which nobody would do for a thousand keys.
"""

from time import perf_counter

from thespian.actors import Actor, ActorSystem

from benchmarks.peers.programs.order import Order
from benchmarks.peers.programs.pace import Pace
from benchmarks.peers.programs.stage import Facts, perform
from benchmarks.peers.programs.tally import Count, Tally

count = Count()


class Teller(Actor):
    """The actor of a key."""

    def __init__(self) -> None:
        super().__init__()
        self.tally = Tally(count)

    def receiveMessage(self, message: object, sender: object) -> None:  # noqa: N802
        """Handle a message; a number below zero is a question."""
        if isinstance(message, int) and self.tally.take(message) < 0:
            self.send(sender, message)


def tell(order: Order) -> Facts:
    """Messages to all keys in turn, until all are handled: each is before `tell` returns."""
    system = ActorSystem("simpleSystemBase")
    started = perf_counter()
    actors = [system.createActor(Teller) for _ in range(order.keys)]
    for number in range(order.messages):
        for actor in actors:
            system.tell(actor, number)
    if count.handled != order.keys * order.messages:
        raise RuntimeError(f"only {count.handled} messages were handled")
    return count.facts(order, perf_counter() - started)


def ask(order: Order) -> Facts:
    """A question and its answer, one at a time."""
    system = ActorSystem("simpleSystemBase")
    actors = [system.createActor(Teller) for _ in range(order.keys)]
    pace = Pace(order)
    while pace.going():
        started = perf_counter()
        system.ask(actors[pace.total % order.keys], -1)
        pace.ran(started)
    return pace.facts()


if __name__ == "__main__":
    perform({act.__name__: act for act in (tell, ask)})
