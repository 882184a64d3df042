"""The demo: it is killed, resumes, and checks its guarantees. A broken guarantee fails it."""

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import trio
from click.testing import CliRunner
from rich.console import Console

from keyrun.demo import command
from keyrun.demo.display import DemoDisplay
from keyrun.demo.entry import Begun, begin, campaign_of, opening
from keyrun.runtime.records.journal_entry import EntryKind
from keyrun.runtime.records.tables import Ledger
from keyrun.storage import Batch, LmdbStore, unseal
from keyrun.stress.violation import Promise

PYTHON = [sys.executable, "-m", "keyrun.demo"]
SMALL = ["--seconds=1", "--keys=10", "--seed=3"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PYTHON, *arguments], capture_output=True, text=True, timeout=120)


def kept(text: str) -> int:
    """Return the number of guarantees that hold."""
    return len(re.findall("^yes  ", text, re.MULTILINE))


def end_when(
    folder: Path, lines: int, how: signal.Signals, seconds: float
) -> subprocess.CompletedProcess[str]:
    """Start a demo of `seconds`, and send it the signal `how` when its log has `lines` lines. The
    demo takes longer than a busy machine needs to notice."""
    evidence = folder / "evidence.log"
    with subprocess.Popen(
        [*PYTHON, *SMALL, f"--seconds={seconds}", f"--store={folder}"],
        stdout=subprocess.PIPE,
        text=True,
    ) as demo:
        while demo.poll() is None:
            if evidence.exists() and evidence.read_bytes().count(b"\n") >= lines:
                demo.send_signal(how)
                break
            with suppress(subprocess.TimeoutExpired):
                demo.wait(0.02)
        assert demo.stdout is not None
        text = demo.stdout.read()
        code = demo.wait()
    return subprocess.CompletedProcess(demo.args, code, text)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo that was killed three times, and then ran to its end."""
    folder = tmp_path_factory.mktemp("demo") / "orders"
    chance, lines = Random(5), 1
    for _ in range(3):
        killed = end_when(folder, lines, signal.SIGKILL, 5)
        assert killed.returncode == -signal.SIGKILL
        lines += chance.randrange(150)
    done = run(*SMALL, f"--store={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"Resuming the demo in .*, which was killed after ", done.stdout)
    assert kept(done.stdout) == len(Promise)
    return folder


def test_a_demo_that_was_killed_resumes_and_ends_with_its_proof(finished: Path) -> None:
    again = CliRunner().invoke(command, ["--store", str(finished)])
    assert again.exit_code == 0, again.output
    assert "has finished. This is its proof." in again.output.replace("\n", " ")
    for what in ("events of the log: ", "records of the store\n", "histories of the runs: "):
        assert f"Checking {what}" in again.output
    assert re.search(r"^ +3  kills", again.output, re.MULTILINE)
    assert kept(again.output) == len(Promise)


def test_the_demo_kills_its_own_service_and_logs_plain_lines_of_60_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("--seconds=3", "--keys=10", "--kill-every=0.8", "--seed=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert kept(done.stdout) == len(Promise)
    assert re.search(r"^ +[1-9]\d*  kills", done.stdout, re.MULTILINE)
    assert re.search(r"^ *\d+\.\d s +\d+ orders +\d+ attempts/s", done.stdout, re.MULTILINE)
    opening, _, lines = done.stdout.partition("\n\n")
    assert "keyrun/demo/orders.py\n" in opening
    assert opening.endswith("The same command resumes it.")
    assert max(len(line) for line in lines.splitlines() if "http" not in line) <= 60
    assert "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_its_page_shows_the_customers_and_orders_through_kills_and_changes_none(
    tmp_path: Path,
) -> None:
    command = [*PYTHON, *SMALL, "--seconds=600", "--kill-every=1", f"--store={tmp_path / 'orders'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        address = next(line for line in demo.stdout if line.startswith("http")).strip()
        base, token = address.split("/#token=")
        kills = 0
        states = set()
        while kills < 2:
            line = next(demo.stdout)
            found = re.search(r"(\d+) kills", line)
            kills = max(kills, int(found[1]) if found else 0)
            answer = asked(base, token, "/v1/runs?limit=5&newest_first=true")
            assert {run["workflow"] for run in answer["runs"]} <= {"order"}
            states |= {run["key"].partition("-")[0] for run in answer["runs"]}
            assert asked(base, token, "/v1/session")["role"] in ("read", "admin")
        assert states == {"customer"}
        refused = asked(base, token, f"/v1/runs/{answer['runs'][0]['run_id']}/cancel", "POST")
        assert refused["status"] in (403, 421)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 130


def asked(base: str, token: str, path: str, method: str = "GET") -> Any:
    """Return what the page of the demo would get."""
    request = Request(base + path, headers={"Authorization": f"Bearer {token}"}, method=method)
    try:
        with urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())
    except HTTPError as error:
        return json.loads(error.read())


async def left_in_good_order(store: Path) -> bool:
    """Whether the last runtime has removed its mark."""
    async with LmdbStore(store) as opened:
        ledger = Ledger(opened.namespace("default"))
        return await ledger.get("counter", ledger.name("open")) is None


@pytest.mark.parametrize(("how", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_demo_that_was_stopped_has_drained_and_says_that_it_was_not_killed(
    tmp_path: Path, how: signal.Signals, name: str
) -> None:
    folder = tmp_path / "orders"
    stopped = end_when(folder, 100, how, 600)
    assert stopped.returncode == 130
    assert "Stopping. Running steps finish first" in stopped.stdout
    assert f"Stopped by {name}, not killed: the running steps have finished." in stopped.stdout
    begun, _ = begin(folder, Begun(seconds=1.0, keys=1, seed=1))
    record = campaign_of(folder, begun, 0.0).record
    assert (record.stops, record.kills) == (1, 0)
    assert "which was stopped after" in opening(folder, begun, record, True)[0]
    assert trio.run(left_in_good_order, folder / "store")


def test_on_a_terminal_it_is_drawn_within_60_columns_and_the_cursor_stays(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 60, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    with subprocess.Popen([*PYTHON, *SMALL], stdout=slave, cwd=tmp_path, env=environment) as demo:
        os.close(slave)
        drawn = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            if not part:
                break
            drawn += part
    os.close(master)
    assert demo.returncode == 0
    assert b"\x1b[?25l" not in drawn  # hides the cursor
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.decode())
    lines = text.replace("\r", "\n").splitlines()
    assert max(len(line) for line in lines if "/" not in line) <= 60
    assert "orders of 10 customers" in text
    assert "histories of the runs ━" in text
    assert kept(text) == len(Promise)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    refused = CliRunner().invoke(command, ["--store", str(tmp_path)])
    assert refused.exit_code == 2
    assert "contains no demo" in refused.output
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("table", "promise"),
    [
        ("runs", Promise.LOSS),
        ("journal", Promise.LIMITS),
        ("status", Promise.LOSS),
    ],
)
def test_the_proof_fails_when_a_record_is_missing(
    finished: Path, tmp_path: Path, table: str, promise: Promise
) -> None:
    folder = tmp_path / "orders"
    shutil.copytree(finished, folder)

    async def tamper() -> None:
        async with LmdbStore(folder / "store") as store:
            batch = Batch()
            rows = await store.scan(table)
            if table == "journal":
                rows = [
                    (key, raw) for key, raw in rows if unseal(table, key, raw)[0] == EntryKind.DONE
                ]
            batch.delete(table, rows[0][0])
            await store.commit(batch)

    trio.run(tamper)
    proof = CliRunner().invoke(command, ["--store", str(folder)])
    assert proof.exit_code == 1, proof.output
    assert f"NO   {promise}\n" in proof.output


def test_the_proof_fails_when_the_evidence_shows_a_step_twice(
    finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "orders"
    shutil.copytree(finished, folder)
    evidence = folder / "evidence.log"
    lines = evidence.read_text().splitlines()
    step = next(line for line in lines if line.startswith("B "))
    evidence.write_text("\n".join([*lines, step, ""]))
    proof = CliRunner().invoke(command, ["--store", str(folder)])
    assert proof.exit_code == 1, proof.output
    assert f"NO   {Promise.DOUBLED}\n" in proof.output


def test_the_picture_of_a_service_at_work_holds_60_columns(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    drawn = StringIO()
    console = Console(file=drawn, force_terminal=True, width=60)
    begun, _ = begin(finished, Begun(seconds=1.0, keys=1, seed=1))
    with DemoDisplay(console) as display:
        display.show(campaign_of(finished, begun, 0.0))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue())
    assert "orders of 10 customers" in text
    assert "3  times killed and restarted" in text
    assert max(map(len, text.splitlines())) <= 60


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("keyrun.demo.display.EVERY", 0.0)
    drawn = StringIO()
    begun, _ = begin(finished, Begun(seconds=1.0, keys=1, seed=1))
    with DemoDisplay(Console(file=drawn, force_terminal=True, width=60)) as display:
        display.show(campaign_of(finished, begun, 0.0))
    assert "attempts/s" in drawn.getvalue()
    assert "\x1b" not in drawn.getvalue()
