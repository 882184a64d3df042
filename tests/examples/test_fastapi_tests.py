"""Applications of FastAPI under test, and under `uvicorn --reload`: nothing is left behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio.from_thread
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

import keyrun.asyncio
from keyrun import Context, workflow
from keyrun.storage import MemoryStore
from tests.examples.servers import FASTAPI, copy_example
from tests.faults.soaking import amount

TWENTY_TESTS = """
import threading
import time

import pytest
import trio
from fastapi.testclient import TestClient
from main import app

# Trio keeps idle threads for 10 seconds, and has no function that ends them.
trio._core._thread_cache.IDLE_TIMEOUT = 1


@pytest.mark.parametrize("number", range(20))
def test_an_order_ships(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path if number % 2 else ".")  # every other test has the same store
    with TestClient(app) as client:
        order = f"order-{number}"
        client.post("/orders", json={"id": order, "customer": "ann", "item": "tea"})
        client.post(f"/orders/{order}/paid")
        assert client.get(f"/orders/{order}").json() == "tea is on its way to ann"
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if "keyrun" in name or name.startswith("asyncio")]
    assert len([name for name in names if name.startswith("Trio thread ")]) <= 4


def test_in_the_end_no_thread_is_left():
    deadline = time.monotonic() + 60
    while threading.active_count() > 1:
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.05)
"""


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return {**kept, "PYTHONUNBUFFERED": "1"}


def test_twenty_tests_with_the_test_client_leave_no_warning_and_no_thread(tmp_path: Path) -> None:
    copy_example(FASTAPI, tmp_path)
    (tmp_path / "test_shop.py").write_text(TWENTY_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    plugins = [f"-pno:{name}" for name in ("asyncio", "cacheprovider", "trio", "xdist")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "21 passed" in done.stdout, done.stdout + done.stderr
    assert "warning" not in done.stdout


def test_reloads_of_uvicorn_leave_no_lock_and_no_warning(tmp_path: Path) -> None:
    copy_example(FASTAPI, tmp_path)
    log = tmp_path / "server.log"
    arguments = ("uvicorn", "main:app", "--reload")
    with socket.create_server(("127.0.0.1", 0)) as listener, log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "default", "-m", *arguments, "--fd", str(listener.fileno())],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
        )
        try:
            for started in range(1, amount(2, 10) + 2):
                wait_for(log, "Application startup complete", started)
                with (tmp_path / "main.py").open("a") as program:
                    program.write(f"# change {started}\n")
            process.send_signal(signal.SIGINT)
            process.wait(timeout=120)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    said = log.read_text()
    assert not re.findall(r"StoreLocked|Traceback|Warning|leaked", said), said


def test_a_plain_endpoint_passes_its_calls_to_the_loop() -> None:
    @workflow
    async def waits(ctx: Context) -> str:
        return str(await ctx.wait_signal("paid"))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with keyrun.asyncio.open_runtime(MemoryStore(), workflows=[waits]) as app.state.rt:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/paid")
    def paid() -> str:
        anyio.from_thread.run(partial(app.state.rt.submit, waits, key="k", run_id="r"))
        anyio.from_thread.run(app.state.rt.signal, "r", "paid", "yes")
        return str(anyio.from_thread.run(app.state.rt.run("r").result))

    @app.post("/wrong")
    def wrong() -> None:
        app.state.rt.statistics()

    with TestClient(app) as client:
        assert client.post("/paid").json() == "yes"
        with pytest.raises(RuntimeError, match="in an endpoint of a web framework, write `async"):
            client.post("/wrong")


def wait_for(log: Path, text: str, times: int) -> None:
    deadline = time.monotonic() + 120
    while log.read_text().count(text) < times:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
