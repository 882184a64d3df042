"""The pace of a closed loop: so many clients, each with one run under way, for so many seconds.

A fixed time instead of a fixed number of runs bounds what a slow peer takes, and gives a fast one
enough to do. Runs that end in the warm-up are done but not counted. The figures are those of the
best second: whatever else the machine does can only make them worse.
"""

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
        # Seconds, or what there is if that is less; each with how long its runs took.
        self._parts: list[list[float]] = [[] for _ in range(max(1, int(order.seconds)))]
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
            part = int((ended - self._from) / self.seconds * len(self._parts))
            self._parts[part].append(ended - started)

    def facts(self) -> Facts:
        """What was measured: runs per second, and milliseconds per run."""
        parts = [sorted(part) for part in self._parts if part]
        if not parts:
            raise RuntimeError(f"no run ended within {self.seconds:g} seconds")
        everything = sorted(taken for part in parts for taken in part)
        best = max(len(part) for part in parts)
        # A part in which little was done says little about how long it takes.
        busy = [part for part in parts if len(part) * 2 >= best]
        return {
            "runs": len(everything),
            "runs_per_second": best * len(self._parts) / self.seconds,
            "mean_runs_per_second": len(everything) / self.seconds,
            "p50_ms": min(_share(part, 0.5) for part in busy),
            "p95_ms": _share(everything, 0.95),
            "p99_ms": _share(everything, 0.99),
        }


def _share(ordered: list[float], share: float) -> float:
    """How many milliseconds that share of the runs took at most."""
    return ordered[round((len(ordered) - 1) * share)] * 1000


Client = Callable[[int], Awaitable[object]]


async def in_tasks(pace: Pace, run: Client) -> None:
    """The loop in asyncio tasks; `run` gets the number of its client."""
    import asyncio

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
