"""A host that stops its loop inside of the block loses nothing that was acknowledged."""

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


@pytest.mark.parametrize("name", HOSTS)
def test_what_was_acknowledged_survives_a_loop_that_is_stopped(name: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    done = subprocess.run(
        [sys.executable, "-c", STOPS, name, str(path)],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = done.stdout.splitlines()
    assert said[0] == "acknowledged", done.stderr
    if not HOSTS[name].thread:
        assert (
            "leave the block before the loop stops, or open the runtime with thread=True" in said[1]
        )

    async def again() -> tuple[int, str]:
        async with open_runtime(path, workflows=ALL, when_locked="wait") as rt:
            await rt.signal("waits", "go", "on")
            ended = await (await rt.submit(one, 1, key="other", run_id="ended")).result()
            return ended, await (await rt.submit(waits, key="k", run_id="waits")).result()

    assert Host().run(again()) == (2, "on")
