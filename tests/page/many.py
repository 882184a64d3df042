"""A store with many runs that have ended."""

from pathlib import Path

import trio

import keyrun
from keyrun import Context, Runtime, workflow
from tests.faults.soaking import shown

KEYS = 500


@workflow(name="show")
async def show(ctx: Context, number: int) -> int:
    """Return the input. It has the name of a workflow of the shop."""
    return number


async def _fill(store: Path, runs: int) -> None:
    async with keyrun.open_runtime(store, workflows=[show]) as rt, trio.open_nursery() as nursery:
        numbers = iter(shown(range(runs), "runs", runs))

        async def submit(key: int, rt: Runtime = rt) -> None:
            for number in numbers:
                await rt.submit(show, number, key=f"customer-{key}", tags=["many"])

        for key in range(KEYS):
            nursery.start_soon(submit, key)


def fill(folder: Path, runs: int) -> None:
    """Make a store with runs in a folder."""
    trio.run(_fill, folder / "state", runs)
