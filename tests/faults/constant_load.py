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
from pathlib import Path

import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Continue,
    PermanentError,
    Retention,
    Retry,
    RunFailed,
    Runtime,
    Succeed,
    TransientError,
    Turn,
    current_step,
    machine,
    open_runtime,
    step,
    workflow,
)
from keyrun.testing import virtual_wall

KEYS = 20
FRESH = 500
KEPT = 200
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


async def one(runtime: Runtime, number: int) -> None:
    """One run. The keys of machines come again after a while; those that keep a state are few,
    since a state stays."""
    if number % 5 == 0:
        await (await runtime.submit(turning, number, key=f"machine-{number % FRESH}")).result()
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
        folder / "store", workflows=[busy, turning], retention=retention, wall=virtual_wall
    ) as runtime:
        number = 0
        for _ in range(samples):
            async with trio.open_nursery() as nursery:
                for _ in range(runs):
                    nursery.start_soon(one, runtime, number)
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
