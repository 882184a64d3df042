"""A process under constant load, which measures itself: memory, disk, tasks.

All kinds of runs come and go at the same pace, and ended ones are swept, so that after a while
nothing may grow any more. One line of JSON per sample.

Time is virtual, so that before each sample hours can pass in which all goes that is only kept for a
while, and with PYTHONMALLOC=malloc the C library tells to the byte what is in use. What is left is
all but the same each time: a leak of a few bytes per run is seen within a thousand of them.
"""

import ctypes
import gc
import json
import logging
import sys
from contextlib import suppress
from pathlib import Path

import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Continue,
    Entity,
    Graph,
    NodeInput,
    PermanentError,
    Retention,
    Retry,
    RunFailed,
    Runtime,
    Succeed,
    TransientError,
    Turn,
    current_step,
    entity,
    machine,
    open_runtime,
    step,
    workflow,
)
from keyrun.groups import Member
from keyrun.policies import CircuitBreaker, RateLimit, Resources
from keyrun.schedules import Every
from keyrun.testing import virtual_wall

KEYS = 20
KEPT = 60
"""Ended runs that are kept."""


@step(retry=Retry.fixed(max_attempts=2, delay=0.001, jitter=0))
async def flaky(text: str) -> int:
    """Fails once, with a memo and a state."""
    here = current_step()
    here.memo["text"] = text
    if here.attempt == 1:
        raise TransientError("as planned")
    here.state["last"] = text
    return len(text)


@step
async def refuse() -> None:
    """Fails for good."""
    raise PermanentError("as planned")


@workflow
async def busy(ctx: Context, number: int) -> int:
    """A bit of everything."""
    await ctx.gather(ctx.step(flaky, "x" * (number % 500)), ctx.step(flaky, "y"))
    with ctx.move_on_after(0.001):
        await ctx.sleep(60)
    ctx.report(50, "half way")
    if number % 7 == 0:
        await ctx.step(refuse)
    return await ctx.step(flaky, "z")


@machine(name="turning")
async def turning(t: Turn) -> Continue | Succeed:
    """Three turns."""
    return Succeed(t.number) if t.number == 2 else Continue(t.payload)


@workflow
async def child(ctx: Context, number: int) -> int:
    """Waits for longer than it stays in memory."""
    await ctx.sleep(5)
    return number


@workflow
async def parent(ctx: Context, number: int) -> int:
    """Waits for a child under another key, for one of its own, and for what it is sent; then goes
    on with an empty journal, once."""
    if number >= 0:
        await ctx.child(child, number, key=f"child of {ctx.key}")
        await ctx.child(child, number)
        await ctx.wait_signal("go")
        await ctx.approval("gate", timeout=60)
        ctx.continue_as(-1)
    return number


@workflow
async def tick(ctx: Context, number: int) -> int:
    """What a schedule or a group starts."""
    return await ctx.step(flaky, "tick")


async def node(given: NodeInput) -> int:
    """A node that is well."""
    return int(given.run_input)


async def sick(given: NodeInput) -> int:
    """One that is not, and whose circuit is opened."""
    raise TransientError("as planned")


GRAPH = Graph("diamond")
GRAPH.node("a", node, max_concurrent=2, rate=RateLimit(100))
GRAPH.node("b", node, resources=Resources(cpu=1), compensate=node)
GRAPH.node("c", sick, retry=Retry.none(), breaker=CircuitBreaker(minimum_calls=2), fallback="d")
GRAPH.node("d", node)
GRAPH.edge("a", "b", when="output >= 0")
GRAPH.edge("b", "c")


@entity
class Account(Entity):
    """What is called."""

    async def deposit(self, amount: int) -> int:
        """Remembers the last."""
        self.state["last"] = amount
        return amount


async def family(runtime: Runtime, number: int, place: int) -> None:
    """A run that waits, with its children; it is sent what it waits for, twice."""
    run = await runtime.submit(parent, number, key=f"parent-{place}")
    for _ in range(2):
        await runtime.signal(run.run_id, "go", number, signal_id="only")
    await trio.sleep(20)
    await runtime.approve(run.run_id, "gate", by="somebody")
    await run.result()


async def others(runtime: Runtime, number: int, place: int) -> None:
    """A graph, calls, a group, a schedule."""
    with suppress(RunFailed):  # until the circuit is open
        await (await runtime.submit(GRAPH, number, key=f"graph-{place}")).result()
    for key in range(3):
        account = runtime.entity(Account, f"account-{key}")
        await account.deposit(number)
        await runtime.call(
            Account, f"account-{key}", "deposit", number, request_id=f"request-{number}"
        )
    members = [Member(tick, each, key=f"member-{each}") for each in range(2)]
    await (await runtime.submit_group(f"group-{number}", members)).results()
    name = f"schedule-{number}"
    await runtime.schedule(name, tick, number, key="clock", when=Every(10))
    await trio.sleep(25)
    await runtime.delete_schedule(name)


async def one(runtime: Runtime, number: int, place: int) -> None:
    """One run, or a few. `place` is its number in the sample. Runs without a state have a key of
    their own in their sample, so that none waits for another, and the next sample uses the same
    keys again. Keys with a state are few, since the state stays."""
    if number % 5 == 0:
        await (await runtime.submit(turning, number, key=f"machine-{place}")).result()
        return
    if number % 5 == 1:
        await family(runtime, number, place)
        return
    if number % 10 == 2:
        await others(runtime, number, place)
        return
    run = await runtime.submit(busy, number, key=f"key-{number % KEYS}")
    if number % 11 == 0:
        await runtime.cancel(run.run_id)
        return
    try:
        await run.result()
    except RunFailed:
        if number % 14:
            await runtime.redrive(run.run_id)
        else:
            await runtime.forget(run.run_id)


async def settle(runtime: Runtime) -> None:
    """Let everything end that is under way, and whatever is kept for a while go."""
    await trio.sleep(3600.0)
    for letter in await runtime.dead_letters(limit=1000):
        await runtime.forget(letter.run_id)
    await trio.sleep(3600.0)
    gc.collect()


class _Mallinfo(ctypes.Structure):
    """What `mallinfo2` answers."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def in_use() -> int:
    """Bytes that were asked for and not given back, by whomever."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo
    told = mallinfo2()
    return int(told.uordblks + told.hblkhd)


def resident() -> int:
    """Anonymous memory in bytes: the map of the store is not ours."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell how much of the memory is anonymous")


leaked: list[bytes] = []
"""What is never given back, if it is asked for: a measurement that does not see it is worth
nothing."""


async def main(folder: Path, samples: int, runs: int, leak: int) -> None:
    """Sample after sample. With `leak` each run leaves so many bytes behind."""
    retention = Retention(count=KEPT, age=1e9)
    async with open_runtime(
        folder / "store",
        workflows=[busy, turning, parent, child, tick, GRAPH],
        entities=[Account],
        resources=Resources(cpu=2),
        retention=retention,
        wall=virtual_wall,
    ) as runtime:
        number = 0
        for _ in range(samples):
            async with trio.open_nursery() as nursery:
                for place in range(runs):
                    nursery.start_soon(one, runtime, number, place)
                    leaked.append(bytes(leak))
                    number += 1
                    if number % 50 == 0:
                        await trio.sleep(0.005)
            await settle(runtime)
            figures = {
                "in_use": in_use(),
                "resident": resident(),
                "disk": (folder / "store" / "data.mdb").stat().st_size,
                "tasks": trio.lowlevel.current_statistics().tasks_living,
            }
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    logging.getLogger("keyrun").setLevel(logging.CRITICAL)
    samples, runs, leak = map(int, sys.argv[2:])
    trio.run(main, Path(sys.argv[1]), samples, runs, leak, clock=MockClock(autojump_threshold=0))
