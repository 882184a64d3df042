"""Submits of several tasks of one client: they travel together, and each has its own answer."""

from typing import Any

import pytest
import trio

from keyrun import Backpressure, InputMismatch, Runtime
from keyrun.control.background import beside
from keyrun.control.loopback import Loopback
from keyrun.control.owner import Owner
from keyrun.control.remote import RemoteRuntime
from keyrun.control.submits import MOST_BYTES, MOST_RUNS
from keyrun.control.target import Target
from keyrun.control.transport import Transport
from keyrun.testing import open_test_runtime
from tests.control.clients import linked
from tests.control.world import WORKFLOWS, greet, wait_for_go

OPTIONS: dict[str, Any] = {"workflows": WORKFLOWS, "max_pending_per_key": 2}


async def operations(rt: Runtime) -> list[str]:
    """Return the operations and results of the audit log."""
    return [f"{each.operation} {each.result}" for each in (await rt.audit()).entries]


async def together(*calls: Any) -> list[Any]:
    """Await calls in one task each, and return the answers or the errors."""
    answers: list[Any] = [None] * len(calls)

    async def call(at: int) -> None:
        try:
            answers[at] = await calls[at]
        except Exception as error:
            answers[at] = error

    async with trio.open_nursery() as nursery:
        for at in range(len(calls)):
            nursery.start_soon(call, at)
    return answers


async def test_submits_of_one_pass_of_the_loop_share_a_commit_and_an_entry_of_the_audit_log(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        await rt.pause_all()
        before = rt.statistics().commits.commits
        runs = await together(*[client.submit(greet, "x", key=f"k{at}") for at in range(10)])
        assert rt.statistics().commits.commits == before + 1
        assert [each.key for each in runs] == [f"k{at}" for at in range(10)]
        (entry,) = await operations(rt)
        assert entry.startswith("submit_together 10 of 10: ")
        for each in runs:
            history = await rt.history(each.run_id)
            assert [event.detail for event in history if event.event == "operation"]
        await rt.resume_all()
        assert [await each.result() for each in runs] == ["X"] * 10


async def test_a_submit_alone_is_no_batch(autojump_clock: trio.testing.MockClock) -> None:
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        await client.submit(greet, "x", key="k", run_id="r")
        await client.submit(greet, "x", key="k", run_id="r2")
        assert await operations(rt) == ["submit r", "submit r2"]


async def test_a_run_that_is_rejected_raises_its_error_and_the_others_are_submitted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        await rt.submit(greet, "ann", key="k", run_id="r")
        first, second, third, fourth = await together(
            client.submit(greet, "x", key="a"),
            client.submit(greet, "bob", key="k", run_id="r"),
            client.submit("unknown", key="b"),
            client.submit(greet, "ann", key="k", run_id="r"),
        )
        assert await first.result() == "X"
        assert isinstance(second, InputMismatch)
        assert (second.run_id, second.key) == ("r", "k")
        with pytest.raises(type(third), match="unknown"):
            await rt.submit("unknown", key="b")  # type: ignore[call-overload]
        assert not fourth.newly_submitted


async def test_a_run_without_room_waits_or_raises_and_delays_no_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        await rt.submit(wait_for_go, key="full", run_id="r")
        await trio.sleep(1)
        for _ in range(2):
            await rt.submit(wait_for_go, key="full")
        answered = []

        async def submit(name: str) -> None:
            await client.submit(greet, "x", key=name)
            answered.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit, "full")
            nursery.start_soon(submit, "other")
            with pytest.raises(Backpressure, match="full"):
                await client.submit_nowait(greet, "x", key="full")
            await trio.sleep(1)
            assert answered == ["other"]
            await rt.signal("r", "go")
        assert answered == ["other", "full"]


async def test_a_lone_submit_without_room_raises_at_once_if_it_must_not_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        await rt.pause_all()
        for _ in range(2):
            await client.submit_nowait(greet, "x", key="full")
        began = trio.current_time()
        with pytest.raises(Backpressure, match="full"):
            await client.submit_nowait(greet, "x", key="full")
        assert trio.current_time() == began


async def test_a_task_that_stops_waiting_before_there_is_an_owner_submits_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    transport = Transport(Target())
    client = RemoteRuntime(transport)
    runs = []

    async def submit(key: str, seconds: float) -> None:
        with trio.move_on_after(seconds):
            runs.append(await client.submit(greet, "x", key=key))

    async with open_test_runtime(**OPTIONS) as rt, trio.open_nursery() as nursery:
        nursery.start_soon(submit, "gone", 1)
        nursery.start_soon(submit, "stays", 50)
        await trio.sleep(2)
        async with beside(lambda: transport.use(Loopback(Owner(rt)))):
            await trio.sleep(1)
            assert [each.key for each in runs] == ["stays"]
            assert [each.key for each in await rt.runs()] == ["stays"]


async def test_a_cancelled_submit_leaves_the_others_of_its_batch_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            handles = []

            async def submit(key: str) -> None:
                handles.append(await client.submit(greet, "x", key=key))

            async def cancelled() -> None:
                with scope:
                    await submit("cancelled")

            nursery.start_soon(cancelled)
            nursery.start_soon(submit, "kept")
            await trio.lowlevel.checkpoint()
            scope.cancel()
        assert [each.key for each in handles] == ["kept"]
        # The connection is as it was.
        assert await (await client.submit(greet, "x", key="k")).result() == "X"


async def test_submits_that_are_cancelled_at_once_start_runs_as_in_the_process_of_the_runtime(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        for it in (client, rt):
            with trio.CancelScope() as scope:
                scope.cancel()
                await together(*[it.submit(greet, "x", key=f"k{at}") for at in range(3)])
        assert await (await client.submit(greet, "x", key="k")).result() == "X"
        assert sorted(each.key for each in await rt.runs()) == sorted(
            ["k0", "k1", "k2"] * 2 + ["k"]
        )


async def test_a_batch_is_bounded_by_its_runs_and_its_bytes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        await rt.pause_all()
        await together(*[client.submit(greet, "x", key=f"k{at}") for at in range(MOST_RUNS + 2)])
        large = "x" * (MOST_BYTES // 3)
        await together(*[client.submit(greet, large, key=f"l{at}") for at in range(6)])
        counts = sorted(int(each.split()[1]) for each in await operations(rt))
        assert counts == [2, 3, 3, MOST_RUNS]
