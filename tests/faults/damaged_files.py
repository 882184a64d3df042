"""A process that damages copies of a store, one after the other, and tells what is left of each.

LMDB trusts the structure of its file and can crash on a damaged one, which is why this is a process
of its own: whoever started it goes on with the next copy.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from random import Random
from typing import Any

import trio

from keyrun import Context, current_step, open_runtime, step, workflow
from keyrun.storage import StoreError

RUNS = 24
KEYS = 4


@step
async def add(amount: int) -> int:
    """Add to the state of the key."""
    state = current_step().state
    state["total"] = state.get("total", 0) + amount
    return int(state["total"])


@workflow
async def sums(ctx: Context, amount: int) -> list[int]:
    """Two steps, of which the results tell all that came before."""
    return [await ctx.step(add, amount), await ctx.step(add, amount)]


@workflow
async def filler(ctx: Context, text: str) -> str:
    """Something that takes pages of its own."""
    return text


def expected() -> dict[str, list[int]]:
    """The result of each run."""
    totals = dict.fromkeys(range(KEYS), 0)
    found = {}
    for number in range(RUNS):
        key = number % KEYS
        found[f"run-{number}"] = [totals[key] + number, totals[key] + 2 * number]
        totals[key] += 2 * number
    return found


async def fill(path: Path) -> None:
    """A store of runs, half of which wait behind a key that is paused."""
    async with open_runtime(path, workflows=[sums, filler]) as runtime:
        for number in range(RUNS):
            if number == RUNS // 2:
                await runtime.pause_all()
            key, run_id = f"key-{number % KEYS}", f"run-{number}"
            run = await runtime.submit(sums, number, key=key, run_id=run_id)
            if number < RUNS // 2:
                await run.result()
        await runtime.submit(filler, "x" * 30_000, key="filler", run_id="filler")


def damage(file: Path, random: Random) -> str:
    """Do something to the file, and say what."""
    size = file.stat().st_size
    with file.open("r+b") as opened:
        match random.randrange(4):
            case 0:
                length = random.randrange(size)
                opened.truncate(length)
                return f"cut to {length}"
            case 1:
                page = random.randrange(size // 4096)
                opened.seek(page * 4096)
                opened.write(bytes(4096))
                return f"page {page} zeroed"
            case _:
                at, bit = random.randrange(size), random.randrange(8)
                opened.seek(at)
                byte = opened.read(1)[0]
                opened.seek(at)
                opened.write(bytes([byte ^ 1 << bit]))
                return f"bit {bit} of {at} flipped"


async def look(path: Path) -> dict[str, Any]:
    """What becomes of the runs, or why nobody can tell."""
    found: dict[str, Any] = {}
    try:
        with trio.fail_after(120):
            async with open_runtime(path, workflows=[sums, filler]) as runtime:
                await runtime.resume_all()
                for run_id in expected():
                    found[run_id] = await _ending(runtime, run_id)
    except StoreError as error:
        found["error"] = str(error)
    return found


async def _ending(runtime: Any, run_id: str) -> Any:
    with trio.move_on_after(1):
        while True:
            status = await runtime.status(run_id)
            if status is None or status.state.terminal:
                break
            if status.state == "quarantined":
                return "quarantined"
            await trio.sleep(0.002)
        if status is None:
            return "gone"
        return status.result if status.state == "succeeded" else f"{status.state}: {status.reason}"
    return "waits"


def main(folder: Path, first: int, last: int) -> None:
    """One line of JSON for each copy."""
    for number in range(first, last):
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder / "store", copy)
        (copy / "lock.mdb").unlink(missing_ok=True)
        said = damage(copy / "data.mdb", Random(number))
        print(json.dumps({"said": said, "found": trio.run(look, copy)}), flush=True)


if __name__ == "__main__":
    # What is wrong is told by what is printed.
    os.environ["PYTHONWARNINGS"] = "ignore"
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
