"""`keyrun progress`: how far a run is, of a store at rest and of one that another process uses."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import attrs
import pytest
import trio

from keyrun import Reader, open_reader
from keyrun.cli.progress import follow_progress
from keyrun.status import Progress
from tests.keyrun.cli import invoke, lines
from tests.storage.processes import line, running_python, say

PROGRAM = """
import sys, trio, keyrun

@keyrun.step
async def wait(number: int) -> None:
    keyrun.current_step().report(50, "half way")
    if number == 1:
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)

@keyrun.workflow
async def job(ctx: keyrun.Context) -> None:
    await ctx.step(wait, 0)
    ctx.report(40, "the first part")
    await ctx.step(wait, 1)
    ctx.report(100, "all of it")

async def main():
    async with keyrun.open_runtime(sys.argv[1], workflows=[job]) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        await run.result()

trio.run(main)
"""


def test_a_run_at_rest_is_shown_as_a_sheet_and_as_json(filled: Path) -> None:
    sheet = "\n".join(lines("progress", filled, "r1"))
    assert "succeeded" in sheet
    assert "steps done" in sheet
    shown = json.loads(lines("progress", filled, "r1", "--json")[0])
    assert (shown["run_id"], shown["state"], shown["percent"]) == ("r1", "succeeded", 100)
    assert shown["steps"]["done"] >= 1
    assert set(shown) == {
        *("run_id", "key", "workflow", "state", "percent", "message", "steps", "running"),
        *("waiting_on", "last_error", "rate", "elapsed", "time_left", "nodes", "items"),
        *("compensating", "compensation"),
    }


def test_a_run_that_failed_says_why(filled: Path) -> None:
    shown = json.loads(lines("progress", filled, "r2", "--json")[0])
    assert shown["state"] == "failed"
    assert shown["last_error"]["kind"] == "permanent_error"
    assert "last error" in "\n".join(lines("progress", filled, "r2"))


def test_following_a_run_that_has_ended_ends(filled: Path) -> None:
    assert lines("progress", filled, "r1", "--follow")[-1].startswith("succeeded  100 %")


def test_a_run_that_has_ended_has_no_time_left(filled: Path) -> None:
    for run_id in ("r1", "r2"):
        assert not any(line.startswith("time left") for line in lines("progress", filled, run_id))


def test_on_a_terminal_the_lines_of_the_last_change_are_replaced(
    filled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long_message = "a message that does not fit " * 2
    first = attrs.evolve(progress_of_r4(filled), message=long_message)

    class Changing:
        async def watch(self, run_id: str, interval: float) -> AsyncIterator[Progress]:
            yield first
            yield attrs.evolve(first, message="short")

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    trio.run(follow_progress, cast(Reader, Changing()), "r4", 0.1, False)
    shown = capsys.readouterr().out
    before, again, after = shown.partition("\x1b[3F\x1b[J")
    assert again
    assert long_message.strip() in " ".join(before.split())
    assert max(map(len, before.splitlines())) < 40
    assert after.startswith("waiting")
    assert "short" in after


def progress_of_r4(store: Path) -> Progress:
    async def main() -> Progress:
        async with open_reader(store) as reader:
            found = await reader.progress("r4")
            assert found is not None
            return found

    return trio.run(main)


def test_an_unknown_run_is_refused(filled: Path) -> None:
    for words in ([], ["--follow"]):
        result = invoke("progress", filled, "nobody", *words)
        assert result.exit_code == 1
        assert "'nobody'" in result.stderr


def test_a_run_of_another_process_is_followed_to_its_end(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running_python(PROGRAM, store) as process:
        assert line(process) == "ready"
        keyrun = Path(sys.executable).parent / "keyrun"
        words = ["--follow", "--json", "--interval", "0.02"]
        command = [str(keyrun), "progress", str(store), "r", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout is not None
            try:
                seen = [json.loads(watcher.stdout.readline())]
                while not seen[-1]["running"]:
                    seen.append(json.loads(watcher.stdout.readline()))
                say(process, "")
                seen += map(json.loads, watcher.stdout)
            except BaseException:
                watcher.kill()
                raise
        assert watcher.returncode == 0
    (running,) = (one for one in seen if one["running"])
    assert (running["state"], running["percent"], running["message"]) == (
        "running",
        40,
        "the first part",
    )
    assert running["running"][0]["message"] == "half way"
    assert (seen[-1]["state"], seen[-1]["percent"], seen[-1]["steps"]["done"]) == (
        "succeeded",
        100,
        2,
    )
