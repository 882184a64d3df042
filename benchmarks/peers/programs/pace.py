"""The pace of a closed loop: so many clients, each with one run under way, for so many seconds.

A fixed time instead of a fixed number of runs bounds what a slow peer takes, and gives a fast one
enough to do. Runs that end in the warm-up are done but not counted.
"""

import asyncio
from collections.abc import Awaitable, Callable
from threading import Thread
from time import perf_counter, sleep

from benchmarks.peers.programs.order import Order
from benchmarks.peers.programs.stage import Facts


class Pace:
    """Counts the runs of all clients of one loop."""

    def __init__(self, order: Order) -> None:
        self.at_once = order.at_once
        self.seconds = order.seconds
        self.total = 0
        self._taken: list[float] = []
        self._from = perf_counter() + order.warm_up
        self._until = self._from + order.seconds

    def going(self) -> bool:
        """Whether there is time for another run."""
        return perf_counter() < self._until

    def ran(self, started: float) -> None:
        """A run that was begun at `started` has ended."""
        ended = perf_counter()
        self.total += 1
        if self._from <= ended < self._until:
            self._taken.append(ended - started)

    def facts(self) -> Facts:
        """What was measured: runs per second, and milliseconds per run."""
        ordered = sorted(self._taken)
        if not ordered:
            raise RuntimeError(f"no run ended within {self.seconds:g} seconds")
        last = len(ordered) - 1
        return {
            "runs": len(ordered),
            "runs_per_second": len(ordered) / self.seconds,
            "p50_ms": ordered[round(last * 0.5)] * 1000,
            "p95_ms": ordered[round(last * 0.95)] * 1000,
            "p99_ms": ordered[round(last * 0.99)] * 1000,
        }


Client = Callable[[int], Awaitable[object]]


async def in_tasks(pace: Pace, run: Client) -> None:
    """The loop in asyncio tasks; `run` gets the number of its client."""

    async def client(number: int) -> None:
        while pace.going():
            started = perf_counter()
            await run(number)
            pace.ran(started)

    await asyncio.gather(*(client(number) for number in range(pace.at_once)))


def in_threads(pace: Pace, run: Callable[[int], object]) -> None:
    """The loop in threads, for what has no other way."""
    failures: list[BaseException] = []

    def client(number: int) -> None:
        try:
            while pace.going() and not failures:
                started = perf_counter()
                run(number)
                pace.ran(started)
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=client, args=(n,), daemon=True) for n in range(pace.at_once)]
    for thread in threads:
        thread.start()
    # A client may wait for ever for what the failure of another has stopped.
    while any(thread.is_alive() for thread in threads) and not failures:
        sleep(0.05)
    if failures:
        raise failures[0]
