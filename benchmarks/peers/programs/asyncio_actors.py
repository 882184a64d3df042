"""A bare asyncio task with an asyncio.Queue per key: no supervision, no limits, no fairness."""

import asyncio
from time import perf_counter

from benchmarks.peers.programs.order import Order
from benchmarks.peers.programs.pace import Pace
from benchmarks.peers.programs.stage import Facts, in_asyncio, perform_in
from benchmarks.peers.programs.tally import Count, Tally

YIELD_EVERY = 256


class Queues:
    """A queue and a task per key, made when the first message comes."""

    def __init__(self) -> None:
        self.count = Count()
        self._queues: dict[int, asyncio.Queue[tuple[int, asyncio.Future[int] | None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, key: int, number: int, answer: asyncio.Future[int] | None = None) -> None:
        """Put a message into the queue of a key."""
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = asyncio.Queue()
            self._tasks.add(asyncio.create_task(self._serve(queue)))
        queue.put_nowait((number, answer))

    async def ask(self, key: int, number: int) -> int:
        """The same, and wait for the answer."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.tell(key, number, answer)
        return await answer

    async def _serve(self, queue: "asyncio.Queue[tuple[int, asyncio.Future[int] | None]]") -> None:
        tally = Tally(self.count)
        while True:
            number, answer = await queue.get()
            result = tally.take(number)
            if answer is not None:
                answer.set_result(result)


async def tell(order: Order) -> Facts:
    """Messages to all keys in turn, until all are handled."""
    queues = Queues()
    started = perf_counter()
    for number in range(order.messages):
        for key in range(order.keys):
            queues.tell(key, number)
            if key % YIELD_EVERY == 0:
                await asyncio.sleep(0)
    while queues.count.handled < order.keys * order.messages:
        await asyncio.sleep(0)
    return queues.count.facts(order, perf_counter() - started)


async def ask(order: Order) -> Facts:
    """A question and its answer, one at a time."""
    queues, pace = Queues(), Pace(order)
    while pace.going():
        started = perf_counter()
        await queues.ask(pace.total % order.keys, -1)
        pace.ran(started)
    return pace.facts()


if __name__ == "__main__":
    perform_in(in_asyncio, tell, ask)
