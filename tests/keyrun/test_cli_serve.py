"""`keyrun serve`: an application runs until it is stopped, and says what it does."""

import json
import os
import signal
import socket
import stat
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from keyrun import open_reader
from keyrun.storage import LmdbStore
from keyrun.testing import open_test_runtime
from tests.keyrun.cli import invoke
from tests.keyrun.serving import KEYRUN, free_port, serving

HTTP = ("--http", "127.0.0.1:0")

SHOP = """
import logging
import time
import warnings

import keyrun
from keyrun import Context, step, workflow

log = logging.getLogger("shop")


@step(timeout=60)
def work(how: str) -> str:
    log.info("working %s", how, extra={"amount": 3})
    if how == "short":
        time.sleep(1)
    if how == "long":
        time.sleep(60)
    if how == "warn":
        warnings.warn("this is old")
    if how.startswith("evil"):
        raise keyrun.PermanentError(how)
    return how


@step
async def hold() -> None:
    log.info("holding the loop")
    time.sleep(60)


@step
async def fill() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@workflow
async def job(ctx: Context, how: str) -> str:
    if how == "hold":
        await ctx.step(hold)
    if how == "fill":
        await ctx.step(fill)
    return await ctx.step(work, how)


app = keyrun.App(workflows=[job], drain_timeout=30)
"""


def run_of(how: str) -> dict[str, str]:
    return {"workflow": "job", "input": how, "key": "k", "run_id": "r"}


def test_an_application_is_served_and_drains_after_a_signal(tmp_path: Path) -> None:
    with serving(tmp_path, *HTTP, source=SHOP, umask=0) as server:
        line = server.announced()
        assert line == (
            f"Serving shop:app at {server.url} (tokens in state/tokens)"
            " and unix:state/control.sock\n"
        )
        for name in ("tokens", "control.sock"):
            assert stat.S_IMODE((server.store / name).stat().st_mode) == 0o600
        server.until("/readyz", (200, "ok"))
        for probe in ("/livez", "/readyz"):
            assert server.get(probe, Host="another.example") == (200, "ok")
            assert server.get(probe, over_socket=True) == (200, "ok")
        assert server.get("/v1/counts")[0] == 401

        server.call("POST", "/v1/runs", run_of("short"))
        server.until_logged("working short")
        server.send(signal.SIGTERM)
        server.until("/readyz", (503, "draining"))
        assert server.get("/livez") == (200, "ok")
        assert server.get("/v1/counts")[0] == 503
        assert server.ended() == 0
    said = "".join(server.errors)
    assert "stopping because of SIGTERM" in said
    assert "draining: waiting up to 30 s for step 'work' of job run r (key k)" in said
    assert "drained in" in said

    async def state() -> object:
        async with open_reader(server.store) as reader:
            status = await reader.status("r")
            assert status is not None
            return status.steps_done

    assert trio.run(state) == 1, "the step that was running has finished"


@pytest.mark.parametrize(
    ("how", "first", "second", "code"),
    [("long", signal.SIGTERM, signal.SIGINT, 130), ("hold", signal.SIGINT, signal.SIGTERM, 143)],
)
def test_a_second_signal_ends_the_process_at_once(
    how: str, first: signal.Signals, second: signal.Signals, code: int, tmp_path: Path
) -> None:
    """While a step in a thread is stuck, and also while a step holds the event loop."""
    with serving(tmp_path, *HTTP, source=SHOP) as server:
        server.announced()
        # The answer has to arrive before the step holds the loop.
        server.call("POST", "/v1/runs", {**run_of(how), "delay": 0.2})
        server.until_logged("working long" if how == "long" else "holding the loop")
        server.send(first)
        if how == "long":
            server.until_logged("draining: waiting")
        else:
            time.sleep(0.2)
        begun = time.monotonic()
        server.send(second)
        assert server.ended() == code
        assert time.monotonic() - begun < 5


def test_log_lines_are_json_and_those_of_a_step_say_which_step_it_is(tmp_path: Path) -> None:
    with serving(tmp_path, *HTTP, "--json-logs", "--drain-timeout", "7", source=SHOP) as server:
        server.take(json.loads(server.until_logged("serving"))["message"])
        server.call("POST", "/v1/runs", run_of("warn"))
        assert server.call("GET", "/v1/runs/r?wait=30")["state"] == "succeeded"
        server.call("POST", "/v1/runs", run_of("long") | {"run_id": "stuck"})
        server.until_logged("working long")
        server.send(signal.SIGTERM)
        server.until_logged("drain_began")
        server.send(signal.SIGTERM)
        assert server.ended() == 143
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""
    lines = [json.loads(line) for line in server.errors]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    (working,) = (line for line in lines if line["message"] == "working warn")
    time_of = working.pop("time")
    assert time_of.endswith("Z")
    assert working == {
        "level": "INFO",
        "logger": "shop",
        "message": "working warn",
        "run": "r",
        "key": "k",
        "workflow": "job",
        "step": "work",
        "attempt": 1,
        "amount": 3,
    }
    assert any("this is old" in line["message"] for line in lines), "warnings are log lines, too"
    (draining,) = (line for line in lines if line.get("event") == "drain_began")
    assert draining["message"] == (
        "draining: waiting up to 7 s for step 'work' of job run stuck (key k)"
    )


def test_no_input_controls_the_terminal_or_begins_a_log_line(tmp_path: Path) -> None:
    evil = "evil \x1b]0;owned\x07\x9b2J\r\u202e\n2026-01-31 14:00:00,000 INFO shop: forged"
    with serving(tmp_path, *HTTP, source=SHOP) as server:
        server.announced()
        server.call("POST", "/v1/runs", run_of(evil))
        server.until_logged("errors.PermanentError: evil")
        server.send(signal.SIGTERM)
        assert server.ended() == 0
    said = "".join(server.errors)
    assert said.replace("\n", "").isprintable()
    assert "\\x1b]0;owned" in said
    assert said.count("forged") >= 2  # in the line of the step, and in the traceback
    begun = [line for line in server.errors if not line.startswith(" ")]
    assert not any("INFO shop: forged" in line[:40] for line in begun)


def test_a_store_that_fails_ends_the_process(tmp_path: Path) -> None:
    with serving(tmp_path, *HTTP, source=SHOP) as server:
        server.announced()
        server.call("POST", "/v1/runs", run_of("fill"))
        assert server.ended() == 6
    assert "ERROR keyrun.runtime: the store failed: " in server.errors[-1]


def test_a_process_that_waits_for_the_store_answers_probes_and_takes_over(tmp_path: Path) -> None:
    wait = ("--when-locked", "wait", "--lock-timeout", "inf")
    port = free_port()
    with ExitStack() as stack:
        first = stack.enter_context(serving(tmp_path, source=SHOP))
        assert first.announced() == "Serving shop:app at unix:state/control.sock\n"
        second = stack.enter_context(serving(tmp_path, "--http", f"127.0.0.1:{port}", *wait))
        second.url = f"http://127.0.0.1:{port}"
        second.until("/readyz", (503, "opening"))
        assert second.get("/livez") == (200, "ok")
        first.send(signal.SIGINT)
        assert first.ended() == 0
        second.until("/readyz", (200, "ok"))
        second.send(signal.SIGINT)
        assert second.ended() == 0


SLOW = """
import sys
from contextlib import asynccontextmanager

import keyrun
import trio


@asynccontextmanager
async def lifespan():
    try:
        await trio.sleep_forever()
        yield
    finally:
        print("closed", file=sys.stderr)


app = keyrun.App(lifespan=lifespan)
"""


def test_a_signal_while_the_application_opens_stops_it(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, "--http", f"127.0.0.1:{port}", source=SLOW) as server:
        server.url = f"http://127.0.0.1:{port}"
        server.until("/readyz", (503, "opening"))
        server.send(signal.SIGTERM)
        assert server.ended() == 0
    assert "closed\n" in server.errors


def test_closed_streams_do_not_stop_the_application(tmp_path: Path) -> None:
    """Nobody reads stdout, or it is closed together with stderr."""
    reading, writing = os.pipe()
    os.close(reading)
    port = free_port()
    with serving(tmp_path, "--http", f"127.0.0.1:{port}", source=SHOP, stdout=writing) as server:
        os.close(writing)
        server.url = f"http://127.0.0.1:{port}"
        server.until("/readyz", (200, "ok"))
        server.send(signal.SIGTERM)
        assert server.ended() == 0
    closed = f"exec {KEYRUN} serve shop:app --store state --http 127.0.0.1:{port} >&- 2>&-"
    with subprocess.Popen(["bash", "-c", closed], cwd=tmp_path) as process:
        try:
            server.until("/readyz", (200, "ok"))
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert invoke("verify", server.store).exit_code == 0


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with modules, as the current directory."""
    monkeypatch.chdir(tmp_path)
    modules = {
        "served_shop": "import keyrun\napp = keyrun.App()\ndef make(): ...\n",
        "served_broken": "def f():\n    import served_missing\n\nf()\n",
        "served_wrong": "import keyrun\napp = keyrun.App(drain_timeout=-1)\n",
        "served_failing": (
            "import keyrun\nfrom contextlib import asynccontextmanager\n"
            "@asynccontextmanager\nasync def life():\n"
            "    raise LookupError('no database')\n    yield\n"
            "app = keyrun.App(lifespan=life)\n"
        ),
    }
    for name, source in modules.items():
        (tmp_path / f"{name}.py").write_text(source)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["served_nowhere:app"], "no module named 'served_nowhere'"),
        (["served_shop"], "the target must be MODULE:APP, such as shop:app, got 'served_shop'"),
        (["served_shop:nope"], "'nope' in module 'served_shop' does not exist; the apps of the"),
        (["served_shop:make"], "'make' in module 'served_shop' is a function, not a keyrun.App"),
        (["served_wrong:app"], "drain_timeout must be at least 0, got -1"),
        (["served_shop:app", "--http", "8470"], "http must be HOST:PORT, such as 127.0.0.1:8470"),
        (["served_shop:app", "--token-file", "t"], "require --http HOST:PORT"),
        (["served_shop:app", *HTTP, "--allowed-host", "a b"], "'a b', which is not a host"),
        (["served_shop:app", "--drain-timeout", "-1"], "--drain-timeout"),
        (["served_shop:app", "--namespace", "a/b"], "namespace must be 1 to 64"),
    ],
)
def test_a_wrong_command_is_explained(shop: Path, words: list[str], message: str) -> None:
    result = invoke("serve", *words, "--store", "state")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not (shop / "state").exists()


def test_an_import_error_has_the_traceback_of_the_module(shop: Path) -> None:
    result = invoke("serve", "served_broken:app", "--store", "state")
    assert result.exit_code == 2
    said = result.stderr
    assert said.startswith("Traceback (most recent call last):\n")
    assert 'served_broken.py", line 4, in <module>\n    f()\n' in said
    assert "cli/target.py" not in said
    assert "ModuleNotFoundError: No module named 'served_missing'\n" in said


def test_a_token_file_that_others_can_read_is_refused(
    shop: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = shop / "tokens"
    tokens.write_text("0123456789abcdef admin ann\n")
    tokens.chmod(0o640)
    result = invoke("serve", "served_shop:app", "--store", "state", *HTTP, "--token-file", tokens)
    assert result.exit_code == 2
    assert f"other users may read {tokens}; run: chmod 600 {tokens}" in caplog.text
    missing = shop / "nowhere" / "tokens"
    result = invoke("serve", "served_shop:app", "--store", "state", *HTTP, "--token-file", missing)
    assert result.exit_code == 2
    assert f"cannot write the token file {missing}: No such file" in caplog.text
    assert not (shop / "state").exists()


@pytest.mark.parametrize(
    ("address", "reason"),
    [("192.0.2.1:80", "Cannot assign requested address"), ("no.invalid:80", "cannot listen on")],
)
def test_an_address_that_this_machine_does_not_have_is_refused(
    shop: Path, address: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    result = invoke("serve", "served_shop:app", "--store", "state", "--http", address)
    assert result.exit_code == 2
    assert reason in caplog.text
    assert address in caplog.text


def test_an_address_in_use_is_refused(shop: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = invoke("serve", "served_shop:app", "--store", "state", "--http", address)
    assert result.exit_code == 1
    assert f"cannot listen on {address}: Address already in use; stop the process" in caplog.text
    assert not (shop / "state").exists()


def test_an_application_that_fails_to_start_is_logged_with_its_traceback(
    shop: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = invoke("serve", "served_failing:app", "--store", "state")
    assert result.exit_code == 1
    assert "raise LookupError('no database')" in caplog.text


def test_a_store_that_cannot_be_opened_is_refused(
    shop: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (shop / "full").mkdir()
    (shop / "full" / "file").touch()
    result = invoke("serve", "served_shop:app", "--store", "full")
    assert result.exit_code == 4
    assert "the directory is not empty" in result.stderr

    async def locked() -> None:
        async with open_test_runtime(LmdbStore(shop / "state")):
            command = [str(KEYRUN), "serve", "served_shop:app", "--store", "state"]
            done = await trio.run_process(command, check=False, capture_stderr=True)
            assert done.stderr is not None
            assert b"the store state is locked" in done.stderr
            assert done.returncode == 4

    trio.run(locked)


def test_signals_have_their_handlers_back_after_the_command(shop: Path) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    assert invoke("serve", "served_failing:app", "--store", "state").exit_code == 1
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
