"""Keyed actors beside other designs: rates, answers, restarts, memory, and what timers notice.

Rates are per second of CPU time: all of this is computing, so on a quiet machine that is the clock
on the wall, and a busy neighbour is not measured. Slow peers get fewer keys and messages in the
same proportion, which flatters them: their working set is the smaller one.
"""

import random
import tracemalloc
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import accumulate
from time import perf_counter, process_time
from typing import Any, TypeVar

import attrs

from benchmarks.actor_peers import (
    Design,
    Host,
    Key,
    Question,
    asyncio_queue,
    keyrun,
    memory_channel,
    persistent_task,
    pykka_threads,
)
from benchmarks.figure import Bar
from benchmarks.harness import Bench, Metric
from keyrun.actors import Actor

W = TypeVar("W")
R = TypeVar("R")

BURST = 256
"""Messages after which the teller lets others run, as one does that reads them from a socket."""

DESIGNS: dict[str, tuple[Design, int]] = {
    "Keyrun": (keyrun, 1),
    "persistent Trio task": (persistent_task, 2),
    "asyncio.Queue": (asyncio_queue, 1),
    "memory channel": (memory_channel, 20),
    "pykka": (pykka_threads, 200),
}
"""How to host actors, and by how much to divide the work so that it is done in time."""

KEYRUN, TASK, QUEUE, CHANNEL, PYKKA = DESIGNS


class Tally:
    """What all actors of one measurement handled together."""

    def __init__(self) -> None:
        self.handled = 0


class Counter(Actor[Any, Any]):
    """Counts its messages: the state that an actor has at the least."""

    __slots__ = ("count", "tally")

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.count = 0

    async def receive(self, message: Any) -> Any:
        self.count += 1
        self.tally.handled += 1
        return message


class Answering(Counter):
    """Answers questions where the design itself has no `ask`."""

    __slots__ = ()

    async def receive(self, message: Any) -> Any:
        answer = await Counter.receive(self, getattr(message, "message", message))
        if isinstance(message, Question):
            message.answer = answer
            message.event.set()
        return answer


class Crashing(Counter):
    """Fails at every message, after it has counted it."""

    __slots__ = ()

    async def receive(self, message: Any) -> Any:
        await Counter.receive(self, message)
        raise ValueError(message)


@cache
def zipf(keys: int, messages: int) -> list[int]:
    """Who gets the messages when the n-th key gets a share of 1/n; the same in every run."""
    shares = list(accumulate(1 / rank for rank in range(1, keys + 1)))
    return random.Random(keys).choices(range(keys), cum_weights=shares, k=messages)


async def flood(host: Host, tally: Tally, targets: Sequence[Key]) -> float:
    """Tell every one of `targets` a message and wait until all are handled. Gives the rate."""
    expected = tally.handled + len(targets)
    tell = host.tell
    started = process_time()
    for at in range(0, len(targets), BURST):
        for key in targets[at : at + BURST]:
            tell(key, at)
        await host.pause()
    while tally.handled < expected:
        await host.pause()
    rate = len(targets) / (process_time() - started)
    assert tally.handled == expected, f"{tally.handled - expected} messages were handled twice"
    return rate


def tells(
    design: Design, targets: Sequence[Key], kind: type[Counter] = Counter
) -> dict[str, float]:
    """Messages per second to keys that nobody knows yet (cold), then again to the same (warm)."""
    tally = Tally()

    async def work(host: Host) -> dict[str, float]:
        return {part: await flood(host, tally, targets) for part in ("cold", "warm")}

    return design(lambda _: kind(tally), work)


def warm(design: Design, targets: Sequence[Key]) -> float:
    """Messages per second to keys that have their actor."""
    return tells(design, targets)["warm"]


def restarts(design: Design, targets: Sequence[Key]) -> float:
    """Actors made per second in place of one that the message before had crashed."""
    return tells(design, targets, Crashing)["warm"]


def asks(design: Design, trips: int) -> float:
    """Questions per second by somebody who asks the next one when the answer is there."""
    tally = Tally()
    kind = Answering if design in (persistent_task, memory_channel, asyncio_queue) else Counter

    async def work(host: Host) -> float:
        started = process_time()
        for trip in range(trips):
            answer = await host.ask(trip % 100, trip)
            assert answer == trip, f"asked {trip}, got {answer}"
        return trips / (process_time() - started)

    rate = design(lambda _: kind(tally), work)
    assert tally.handled == trips
    return rate


def idle_bytes(design: Design, keys: int) -> float:
    """What Python allocates per key, its name and its actor included, once it is idle again."""
    tally = Tally()

    async def work(host: Host) -> float:
        await flood(host, tally, ["the first makes what all share"])
        before = tracemalloc.get_traced_memory()[0]
        await flood(host, tally, [f"customer-{number:06}" for number in range(keys)])
        return (tracemalloc.get_traced_memory()[0] - before) / keys

    tracemalloc.start()
    try:
        return design(lambda _: Counter(tally), work)
    finally:
        tracemalloc.stop()


def timer_lag(design: Design, targets: Sequence[Key]) -> float:
    """By how many milliseconds a timer was late at worst while messages poured in."""
    tally = Tally()
    late: list[float] = []

    async def work(host: Host) -> float:
        async def tick() -> None:
            while True:
                due = perf_counter() + 0.001
                await host.sleep(0.001)
                late.append(perf_counter() - due)

        await flood(host, tally, targets)
        host.spawn(tick)
        await flood(host, tally, targets)
        return max(late) * 1000

    return design(lambda _: Counter(tally), work)


def cases(
    names: Sequence[str], measure: Callable[[Design, W], R], work: Callable[[int], W]
) -> dict[str, Callable[[], R]]:
    """`measure` for each of these designs, with its share of the work."""
    chosen = {name: DESIGNS[name] for name in names}
    return {name: partial(measure, design, work(share)) for name, (design, share) in chosen.items()}


def popular(bench: Bench) -> None:
    """Zipf, the measure of the bars: few keys get most of the messages, most keys get few."""
    # Most of the suite's time goes here, and a million messages are a steady figure by themselves.
    bench = attrs.evolve(bench, repeat=min(bench.repeat, 2))
    messages = bench.size(1_000_000, 100_000)

    def compare(name: str, names: Sequence[str], limit: str, **bars: float) -> None:
        bench.survey(
            f"{name} over {messages // 10:,} keys",
            cases(names, tells, lambda share: zipf(messages // 10 // share, messages // share)),
            metrics={
                # The bars are for many keys: that is where a task per key gets expensive.
                part: Metric(
                    unit="messages/s", bars={} if bench.quick else {KEYRUN: Bar(value=bar)}
                )
                for part, bar in bars.items()
            },
            limit=limit,
            warm_up=False,
        )

    compare("Zipf", [KEYRUN, TASK, CHANNEL, PYKKA], TASK, cold=3, warm=2)
    compare("Zipf beside asyncio", [KEYRUN, QUEUE], QUEUE, cold=4, warm=4)


def run(bench: Bench) -> None:
    """Measure."""
    some = bench.size(100_000, 20_000)
    bench.group(
        "one key",
        cases([*DESIGNS], warm, lambda share: [0] * (some // share)),
        unit="messages/s",
        limit=TASK,
    )
    bench.group(
        "fan-out over 10,000 keys",
        cases([*DESIGNS], warm, lambda share: [*range(10_000 // share)] * (some // 20_000)),
        unit="messages/s",
        limit=TASK,
    )
    popular(bench)
    bench.group(
        "ask",
        cases([*DESIGNS], asks, lambda share: some // min(10 * share, 50)),
        unit="answers/s",
        limit=TASK,
    )
    bench.group(
        "restart",
        cases([KEYRUN, TASK], restarts, lambda _: range(some // 20)),
        unit="restarts/s",
        limit=TASK,
    )
    bench.group(
        "longest timer lag in a flood",
        cases([KEYRUN, TASK, QUEUE], timer_lag, lambda _: zipf(some // 20, some // 2)),
        unit="ms",
        limit=TASK,
        better="lower",
    )
    # The stacks of pykka's threads are not Python's memory, so it cannot be weighed with this.
    bench.group(
        "idle key",
        cases([KEYRUN], idle_bytes, lambda _: some // 2)
        | cases([TASK, QUEUE, CHANNEL], idle_bytes, lambda _: some // 50),
        unit="bytes",
        limit=TASK,
        better="lower",
        bars={KEYRUN: Bar(value=500, better="lower", absolute=True)},
        warm_up=False,
    )
