"""`keyrun progress`: how far a run is, of a store at rest and of one that another process uses."""

import json
import subprocess
import sys
from pathlib import Path

from tests.keyrun.cli import invoke, lines

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
        *("waiting_on", "last_error", "rate", "elapsed", "time_left", "nodes"),
        *("compensating", "compensation"),
    }


def test_a_run_that_failed_says_why(filled: Path) -> None:
    shown = json.loads(lines("progress", filled, "r2", "--json")[0])
    assert shown["state"] == "failed"
    assert shown["last_error"]["kind"] == "permanent_error"
    assert "last error" in "\n".join(lines("progress", filled, "r2"))


def test_following_a_run_that_has_ended_ends(filled: Path) -> None:
    assert lines("progress", filled, "r1", "--follow")[-1].startswith("succeeded  100 %")


def test_an_unknown_run_is_refused(filled: Path) -> None:
    for words in ([], ["--follow"]):
        result = invoke("progress", filled, "nobody", *words)
        assert result.exit_code == 1
        assert "'nobody'" in result.stderr


def test_a_run_of_another_process_is_followed_to_its_end(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, store],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        keyrun = Path(sys.executable).parent / "keyrun"
        words = ["--follow", "--json", "--interval", "0.02"]
        command = [str(keyrun), "progress", str(store), "r", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout is not None
            seen = [json.loads(watcher.stdout.readline())]
            while not seen[-1]["running"]:
                seen.append(json.loads(watcher.stdout.readline()))
            process.stdin.write("\n")
            process.stdin.flush()
            seen += map(json.loads, watcher.stdout)
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
