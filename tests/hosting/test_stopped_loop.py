"""A host that stops or closes its loop inside of the block loses nothing that was acknowledged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keyrun.asyncio import open_runtime
from tests.hosting.hosts import HOSTS, Host
from tests.hosting.workflows import ALL, one, waits

STOPS = """
import asyncio, os, sys
import keyrun.asyncio
from tests.hosting.hosts import HOSTS
from tests.hosting.workflows import ALL, one, waits

host, path = HOSTS[sys.argv[1]], sys.argv[2]

async def main(store):
    async with keyrun.asyncio.open_runtime(store, workflows=ALL, thread=host.thread) as rt:
        await rt.submit(waits, key="k", run_id="waits")
        await (await rt.submit(one, 1, key="other", run_id="ended")).result()
        print("acknowledged", flush=True)
        asyncio.get_running_loop().stop()
        await asyncio.sleep(3600)

loop = host.new_loop()
task = loop.create_task(main(path))
loop.run_forever()
if not host.thread:
    try:
        host.run(main(path + "-other"))
    except RuntimeError as error:
        print(error, flush=True)
os._exit(0)
"""


def run(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=60,
    )


async def finish(path: Path) -> tuple[int, str]:
    """Return the results of the runs that a program left."""
    async with open_runtime(path, workflows=ALL, when_locked="wait") as rt:
        await rt.signal("waits", "go", "on")
        ended = await (await rt.submit(one, 1, key="other", run_id="ended")).result()
        return ended, await (await rt.submit(waits, key="k", run_id="waits")).result()


@pytest.mark.parametrize("name", HOSTS)
def test_what_was_acknowledged_survives_a_loop_that_is_stopped(name: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    done = run(STOPS, name, str(path))
    said = done.stdout.splitlines()
    assert said[0] == "acknowledged", done.stderr
    if not HOSTS[name].thread:
        assert (
            "leave the block before the loop stops, or open the runtime with thread=True" in said[1]
        )

    assert Host().run(finish(path)) == (2, "on")


CLOSES = """
import asyncio, gc, sys, threading, time
import keyrun.asyncio
from keyrun.storage import LmdbStore
from tests.hosting.hosts import HOSTS
from tests.hosting.workflows import ALL, one, waits

host, path = HOSTS[sys.argv[1]], sys.argv[2]

async def main():
    async with keyrun.asyncio.open_runtime(path, workflows=ALL) as rt:
        await rt.submit(waits, key="k", run_id="waits")
        await (await rt.submit(one, 1, key="other", run_id="ended")).result()
        print("acknowledged", flush=True)
        asyncio.get_running_loop().stop()
        await asyncio.sleep(3600)

def application():
    loop = host.new_loop()
    task = loop.create_task(main())
    loop.run_forever()
    loop.close()
    task._log_destroy_pending = False

thread = threading.Thread(target=application)
thread.start()
thread.join()
for _ in range(20):
    gc.collect()
    time.sleep(0.05)
"""


@pytest.mark.parametrize("name", ["guest", "uvloop"])
def test_a_loop_that_is_closed_ends_keyrun_with_one_message(name: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    done = run(CLOSES, name, str(path))
    assert done.stdout.splitlines() == ["acknowledged"], done.stderr
    (said,) = done.stderr.splitlines()
    assert said.startswith("the event loop was closed inside of a block of keyrun.asyncio.open_r")
    assert Host().run(finish(path)) == (2, "on")


CLOSES_BESIDE_A_THREAD = """
import asyncio, sys, threading
import keyrun.asyncio, keyrun.sync
from keyrun import Context, step, workflow

path, begun = sys.argv[1], threading.Event()

@step(asyncio=True)
async def on_loop(begin: str) -> str:
    begun.set()
    await asyncio.sleep(3600 if begin == "at once" else 0)
    return "on the loop"

@workflow
async def stays(ctx: Context, begin: str) -> str:
    if begin == "late":
        await ctx.sleep(0.3)
    return await ctx.step(on_loop, begin)

async def main():
    async with keyrun.asyncio.open_runtime(
        path, workflows=[stays], thread=True, drain_timeout=0.1
    ) as rt:
        await rt.submit(stays, "late", key="late", run_id="late")
        if sys.argv[2] == "at once":
            await rt.submit(stays, "at once", key="at-once")
            await asyncio.to_thread(begun.wait)
        asyncio.get_running_loop().stop()
        await asyncio.sleep(3600)

loop = asyncio.new_event_loop()
task = loop.create_task(main())
loop.run_forever()
loop.close()
task._log_destroy_pending = False
with keyrun.sync.open_runtime(
    path, workflows=[stays], when_locked="wait", drain_timeout=0
) as rt:
    print(rt.run("late").result(timeout=20))
"""


@pytest.mark.parametrize("begin", ["late", "at once"])
def test_an_asyncio_step_on_a_closed_loop_closes_the_runtime_and_loses_no_attempt(
    begin: str, tmp_path: Path
) -> None:
    done = run(CLOSES_BESIDE_A_THREAD, str(tmp_path / "state"), begin)
    assert done.stdout == "on the loop\n", done.stderr
