"""A process that runs workflows, and notes what was acknowledged and what its steps did.

The notes are what the world outside has seen: whoever opens what a crash left must fit to them.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import trio

from keyrun import Context, Runtime, current_step, open_runtime, step, workflow
from keyrun.storage import LmdbStore

STORE = "store"
NOTES = "notes"
KEYS = ("a", "b", "c")
ROUNDS = 2
STEPS = 3

note: Callable[[str], object] = str
"""Whoever runs this puts its own here."""


@step
async def add(amount: int) -> int:
    """Add to the state of the key, so that a doubled or lost step is seen for ever."""
    here = current_step()
    note(f"step {here.run_id} {here.step}")
    here.state["total"] = here.state.get("total", 0) * 2 + amount
    return int(here.state["total"])


@workflow
async def sums(ctx: Context, amount: int) -> int:
    """Some steps that depend on each other and on the runs before."""
    total = 0
    for at in range(STEPS):
        total = await ctx.step(add, amount + at)
    return total


def expected() -> dict[str, int]:
    """The result of each run."""
    found = {}
    for key in KEYS:
        total = 0
        for number in range(ROUNDS):
            for at in range(STEPS):
                total = total * 2 + number + at
            found[f"{key}-{number}"] = total
    return found


async def submit_all(runtime: Runtime, key: str) -> None:
    """Submit the runs of a key in order, and note what comes back."""
    runs = []
    for number in range(ROUNDS):
        run = await runtime.submit(sums, number, key=key, run_id=f"{key}-{number}")
        note(f"submitted {run.run_id}")
        runs.append(run)
    for run in runs:
        note(f"ended {run.run_id} {await run.result()}")


async def main(folder: Path, committer: str) -> None:
    """All of it."""
    store = LmdbStore(folder / STORE, committer=committer)  # type: ignore[arg-type]
    async with open_runtime(store, workflows=[sums]) as runtime:
        async with trio.open_nursery() as nursery:
            for key in KEYS:
                nursery.start_soon(submit_all, runtime, key)


if __name__ == "__main__":
    with (Path(sys.argv[1]) / NOTES).open("ab", buffering=0) as notes:

        def note(text: str) -> object:
            return notes.write(f"{text}\n".encode())

        trio.run(main, Path(sys.argv[1]), sys.argv[2])
