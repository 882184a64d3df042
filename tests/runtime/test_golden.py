"""Stores that earlier Keyruns left behind: opened today, everything in them goes on and ends."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from keyrun import State
from keyrun.testing import RecordingHook, open_test_runtime
from tests.runtime import golden

FILES = sorted(Path(golden.__file__).parent.glob("format-*.json"))


def test_there_is_a_store_of_every_format() -> None:
    assert [file.stem for file in FILES] == ["format-1"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.stem))
async def test_what_an_earlier_keyrun_left_goes_on_and_ends(
    autojump_clock: MockClock, file: Path
) -> None:
    store, hook = await golden.load(file), RecordingHook()
    async with open_test_runtime(store, workflows=golden.WORKFLOWS, on_terminal=hook) as rt:
        done = await rt.status("done")
        assert done is not None
        assert (done.state, done.headers, done.result.number) == (State.SUCCEEDED, {"h": "1"}, 2)
        assert done.result.lines == ["a", "2023-11-14T22:13:20+00:00"]
        dead = (await rt.dead_letters())[0]
        assert (dead.run_id, dead.tags, dead.steps_done) == ("dead", ("x",), 1)
        assert dead.failure is not None
        assert dead.failure.reason.endswith("PermanentError: never")
        cancelled = await rt.status("cancelled")
        assert cancelled is not None
        assert cancelled.state is State.CANCELLED
        held = await rt.status("held")
        assert held is not None
        assert held.state is State.PAUSED
        await rt.resume_key("held")
        assert await rt.resume("turns")
        results = {}
        for run_id in ("sleeps", "behind", "stumbles", "gathers", "turns", "delayed", "held"):
            status = await rt.status(run_id)
            assert status is not None
            while not status.state.terminal:
                await trio.sleep(60)
                status = await rt.status(run_id)
                assert status is not None
            results[run_id] = status.result
        assert results["sleeps"] == (1, "True hung")
        assert results["behind"].number == 6
        assert results["stumbles"] == 4
        assert results["gathers"] == ["hung", 10, "hung"]
        assert results["turns"] == [3, [2, [1, [0, None]]]]
        assert results["delayed"].number == 6
        assert results["held"].number == 8
        assert await rt.redrive("dead") == 2
        group = await rt.group("group")
        assert group is not None
        (member,) = (await group.results()).values()
        assert member.result is not None
        assert member.result.number == 10
        (schedule,) = await rt.schedules()
        assert schedule.schedule_id == "hourly"
        assert len(await rt.history("sleeps")) > 5
        await trio.sleep(3600)
        assert len(await rt.runs(key="hourly")) >= 1
    assert {one.run_id for one in hook.outcomes} >= {"done", "dead", "cancelled", *results}
