"""The work that runtimes are measured with: runs of three steps that do nothing."""

from functools import partial
from time import perf_counter

import trio

from benchmarks.folders import folder
from keyrun import Context, open_runtime, step, workflow
from keyrun.storage import LmdbStore
from keyrun.storage.lmdb_store import CommitterName

STEPS = 3


@step
async def nothing() -> None:
    """The cheapest step there is."""


@workflow
async def three_steps(ctx: Context) -> None:
    """Three of them, one after the other."""
    await ctx.step(nothing)
    await ctx.step(nothing)
    await ctx.step(nothing)


def steps_per_second(
    committer: CommitterName,
    keys: int,
    runs: int,
    in_flight: int,
    *,
    is_shared: bool = False,
) -> float:
    """Durable steps per second, submit and result included, with `in_flight` runs at a time that
    are spread over `keys` keys. `is_shared` lets other processes join the store."""
    # `benchmarks.compare` runs this with versions of Keyrun that have no `when_locked`.
    open_store = partial(open_runtime, when_locked="join") if is_shared else open_runtime

    async def main() -> float:
        with folder() as path:
            store = LmdbStore(path, committer=committer)
            async with open_store(store, workflows=[three_steps]) as runtime:

                async def client(number: int) -> None:
                    for turn in range(runs):
                        key = (number + turn * in_flight) % keys
                        run = await runtime.submit(three_steps, key=f"key-{key}")
                        await run.result()

                started = perf_counter()
                async with trio.open_nursery() as nursery:
                    for number in range(in_flight):
                        nursery.start_soon(client, number)
                return in_flight * runs * STEPS / (perf_counter() - started)

    return trio.run(main)


def latencies(committer: CommitterName, runs: int) -> list[float]:
    """Milliseconds from submit to result, one run at a time, sorted."""

    async def main() -> list[float]:
        taken = []
        with folder() as path:
            store = LmdbStore(path, committer=committer)
            async with open_runtime(store, workflows=[three_steps]) as runtime:
                for _ in range(runs):
                    started = perf_counter()
                    run = await runtime.submit(three_steps, key="key")
                    await run.result()
                    taken.append((perf_counter() - started) * 1000)
        return sorted(taken)

    return trio.run(main)
