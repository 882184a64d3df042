"""`keyrun stats`: how many runs of what have not ended, and which patches they did not take."""

import json
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from keyrun import Context, Workflow, step, workflow
from keyrun.storage import LmdbStore
from keyrun.testing import open_test_runtime
from tests.keyrun.cli import invoke, lines


@step
async def note() -> None: ...


def flow(*, asks: bool, version: int = 1) -> Workflow[Any, Any]:
    @workflow(name="flow", version=version)
    async def changing(ctx: Context) -> None:
        await ctx.step(note)
        if asks and ctx.patched("twice"):
            await ctx.step(note)
        await ctx.wait_signal("go")

    return changing


def fill(path: Path) -> None:
    """Two runs that passed a change before it came, one that took it, one that waits to start."""

    async def main() -> None:
        store = LmdbStore(path)
        async with open_test_runtime(store, workflows=[flow(asks=False)]) as runtime:
            for key in "ab":
                await runtime.submit(flow(asks=False), key=key, run_id=key)
            await trio.sleep(5)
        later = [flow(asks=True), flow(asks=True, version=2)]
        async with open_test_runtime(store, workflows=later) as runtime:
            for key in "ab":
                await runtime.pause(key)
                await runtime.resume(key)
            await runtime.submit(later[0], key="c")
            await runtime.submit(later[0], key="d", delay=1000)
            await trio.sleep(5)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_unfinished_runs_and_patches_are_counted(tmp_path: Path) -> None:
    fill(tmp_path / "state")
    (found,) = map(json.loads, lines("stats", tmp_path / "state", "--json"))
    one, two = found["unfinished"]
    assert (one["workflow"], one["version"], one["runs"]) == ("flow", 1, 2)
    assert (two["workflow"], two["version"], two["runs"]) == ("flow", 2, 2)
    # One of them has not started, so that no code is known to have started it.
    assert sorted(each["runs"] for each in two["by_fingerprint"]) == [1, 1]
    assert None in {each["fingerprint"] for each in two["by_fingerprint"]}
    assert found["unpatched"] == [{"workflow": "flow", "patch": "twice", "runs": 2}]
    shown = lines("stats", tmp_path / "state", "--quick")
    assert shown[0].split() == [
        *["workflow", "version", "unfinished", "runs", "started", "by", "code"]
    ]
    assert any(line.split()[:3] == ["flow", "1", "2"] for line in shown)
    assert shown[-1].split() == ["flow", "twice", "2"]


def test_a_store_without_unfinished_runs_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_test_runtime(LmdbStore(tmp_path / "state"), workflows=[flow(asks=True)]):
            pass

    trio.run(main)
    result = invoke("stats", tmp_path / "state")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No unfinished runs found." in result.stderr
    kept = '{"unfinished":[],"unpatched":[]}'
    assert lines("stats", tmp_path / "state", "--quick", "--json") == [kept]


def test_runs_are_counted_by_workflow_version_state_and_error(filled: Path) -> None:
    (found,) = map(json.loads, lines("stats", filled, "--json"))
    expected = [
        ("checkout", "failed", "keyrun.runtime.errors.PermanentError", 1),
        ("checkout", "pending", None, 1),
        ("checkout", "succeeded", None, 1),
        ("checkout", "waiting", None, 2),
        ("refund", "succeeded", None, 2),
    ]
    fields = ("workflow", "state", "error", "runs")
    assert [tuple(each[name] for name in fields) for each in found["runs"]] == expected
    assert {each["version"] for each in found["runs"]} == {1}
    shown = lines("stats", filled)
    assert shown[0].split() == ["workflow", "version", "state", "error", "runs"]
    assert shown[1].split()[-2:] == ["keyrun.runtime.errors.PermanentError", "1"]
    filtered = lines("stats", filled, "--key", "alice", "--json")
    assert [each["runs"] for each in json.loads(filtered[0])["runs"]] == [1, 1]
