"""A process that submits runs until the disk is full, and tells each that was acknowledged."""

import sys

import trio

from keyrun import Context, open_runtime, step, workflow
from keyrun.storage import LmdbStore, StoreError

BULK = "x" * 20_000


@step
async def measure(text: str) -> int:
    """The length, and something that takes room."""
    return len(text)


@workflow
async def order(ctx: Context, text: str) -> int:
    """One order."""
    return await ctx.step(measure, text)


async def main(path: str, committer: str) -> None:
    """Submit until there is no room any more."""
    number = 0
    try:
        store = LmdbStore(path, committer=committer)  # type: ignore[arg-type]
        async with open_runtime(store, workflows=[order]) as runtime:
            while True:
                run = await runtime.submit(order, BULK, key="k", run_id=f"order-{number}")
                print(run.run_id, flush=True)
                number += 1
    except StoreError as error:
        print(type(error).__name__)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
