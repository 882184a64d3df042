"""Steps and methods that wait for calls: they keep no slot, and no circle of them hangs."""

from collections.abc import Coroutine
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from keyrun import (
    CallFailed,
    CallTimeout,
    Context,
    Entity,
    Retry,
    RunFailed,
    Runtime,
    entity,
    step,
    workflow,
)
from keyrun.errors import CallCycle
from tests.runtime.accounts import opened

runtimes: list[Runtime] = []
Answers = dict[str, Any]


@entity
class Node(Entity):
    async def reach(self, *path: str) -> list[str]:
        """Wait for a second, and reach the next."""
        await trio.sleep(1)
        if not path:
            return [self.key]
        return [self.key, *await runtimes[-1].entity(Node, path[0]).reach(*path[1:])]

    async def ask(self, after: float, key: str = "", request_id: str = "", *then: Any) -> str:
        """Wait, and ask another one with a request id."""
        await trio.sleep(after)
        if not key:
            return self.key
        asked = runtimes[-1].entity(Node, key, request_id=request_id or None)
        return self.key + await asked.ask(*then)

    async def leave_running(self, nursery: Any, key: str) -> None:
        nursery.start_soon(runtimes[-1].call, Node, key, "reach")
        await trio.lowlevel.checkpoint()


@step(retry=Retry.none())
async def reach(*path: str) -> Any:
    return await runtimes[-1].call(Node, path[0], "reach", *path[1:])


@workflow
async def reaching(ctx: Context, path: list[str]) -> Any:
    return await ctx.step(reach, *path)


@workflow
async def parent(ctx: Context, path: list[str]) -> Any:
    """The child is of the key that comes first, and its step reaches the rest."""
    await ctx.sleep(2)
    return await ctx.child(reaching, path[1:], key=path[0])


WORKFLOWS = [reaching, parent]


async def into(answers: Answers, name: str, call: Coroutine[Any, Any, Any]) -> None:
    try:
        answers[name] = await call
    except Exception as error:
        answers[name] = error


async def test_who_waits_for_a_call_leaves_its_slot_to_it(autojump_clock: MockClock) -> None:
    async with opened(None, Node, workflows=WORKFLOWS, max_concurrent_steps=2) as rt:
        runtimes.append(rt)
        most = 0
        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    path = [f"{number}{letter}" for letter in "abc"]
                    nursery.start_soon(rt.call, Node, path[0], "reach", *path[1:])
                    await rt.submit(reaching, path, key=f"run-{number}", run_id=f"r{number}")
                while rt.statistics().running_steps:
                    most = max(most, rt.statistics().running_steps)
                    await trio.sleep(0.1)
            for number in range(6):
                run = await rt.submit(
                    reaching,
                    [f"{number}{letter}" for letter in "abc"],
                    key=f"run-{number}",
                    run_id=f"r{number}",
                )
                assert len(await run.result()) == 3
        assert most == 2
        assert rt.statistics().running_steps == 0


async def test_a_slot_that_was_left_to_others_is_not_given_back_twice(
    autojump_clock: MockClock,
) -> None:
    @entity
    class Hasty(Entity):
        async def both(self) -> list[str]:
            async with trio.open_nursery() as nursery:
                for key in ("x", "y"):
                    nursery.start_soon(runtimes[-1].call, Node, key, "reach")
            return await runtimes[-1].entity(Node, "z").reach()

        async def nap(self) -> None:
            await trio.sleep(30)

    async with opened(None, Node, Hasty, max_concurrent_steps=1) as rt:
        runtimes.append(rt)
        assert await rt.entity(Hasty, "k").both() == ["z"]
        assert rt.statistics().running_steps == 0
        async with trio.open_nursery() as nursery:
            answers: Answers = {}
            cut = rt.call(Hasty, "k", "both", timeout=1.5)
            nursery.start_soon(into, answers, "cut", cut)
            await trio.sleep(0.1)
            # Has the slot when the time of the other is up.
            nursery.start_soon(rt.call, Hasty, "n", "nap")
        assert isinstance(answers["cut"], CallTimeout)
        assert rt.statistics().running_steps == 0
        assert rt.statistics().waiting_for_slot == 0
        assert await rt.entity(Hasty, "k").both() == ["z"]


async def test_a_circle_that_a_repeat_closes_is_found(autojump_clock: MockClock) -> None:
    async with opened(None, Node) as rt:
        runtimes.append(rt)
        answers: Answers = {}
        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                # One asks b, which asks a after a while; a asks b for the same meanwhile.
                again = (2, "a", "", 0)
                first = rt.call(Node, "b", "ask", *again, request_id="same")
                nursery.start_soon(into, answers, "b", first)
                second = rt.call(Node, "a", "ask", 1, "b", "same", *again)
                nursery.start_soon(into, answers, "a", second)
        assert all(isinstance(each, CallFailed) for each in answers.values())
        assert "'b' would wait for 'a', which waits for 'b'" in str(answers["b"])


async def test_a_circle_of_calls_that_wait_for_room_is_found(autojump_clock: MockClock) -> None:
    answers: Answers = {}
    async with opened(None, Node, max_pending_per_key=1, backpressure_timeout=1000) as rt:
        runtimes.append(rt)
        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(into, answers, "b", rt.call(Node, "b", "ask", 2, "a", "", 0))
                await trio.sleep(0.5)
                nursery.start_soon(into, answers, "next", rt.call(Node, "b", "reach"))
                # Asks b, which has no room.
                nursery.start_soon(into, answers, "a", rt.call(Node, "a", "reach", "b"))
        assert isinstance(answers["b"], CallCycle)
        assert answers["a"] == ["a", "b"]


async def test_a_child_that_calls_the_key_of_its_parent_is_told(autojump_clock: MockClock) -> None:
    async with opened(None, Node, workflows=WORKFLOWS) as rt:
        runtimes.append(rt)
        with trio.fail_after(100):
            run = await rt.submit(parent, ["b", "a"], key="a")
            with pytest.raises(RunFailed, match=r"'b' would wait for 'a', which waits for 'b'"):
                await run.result()
            # Also by way of another entity.
            run = await rt.submit(parent, ["b", "c", "a"], key="a")
            with pytest.raises(RunFailed, match=r"'c' would wait for 'a', which waits for 'b', wh"):
                await run.result()
            run = await rt.submit(parent, ["b", "c", "d"], key="a")
            assert await run.result() == ["c", "d"]


async def test_a_child_under_a_key_that_waits_for_its_parent_fails(
    autojump_clock: MockClock,
) -> None:
    answers: Answers = {}
    async with opened(None, Node, workflows=WORKFLOWS) as rt, trio.open_nursery() as nursery:
        runtimes.append(rt)
        with trio.fail_after(100):
            run = await rt.submit(parent, ["b", "c"], key="a")
            # Holds b and waits for a when the parent starts its child.
            nursery.start_soon(into, answers, "b", rt.call(Node, "b", "ask", 1, "a", "", 0))
            with pytest.raises(RunFailed, match="would wait forever: a -> b -> a"):
                await run.result()
    assert answers == {"b": "ba"}


async def test_code_that_a_method_left_running_holds_no_key(autojump_clock: MockClock) -> None:
    answers: Answers = {}
    async with opened(None, Node) as rt, trio.open_nursery() as nursery:
        runtimes.append(rt)
        nursery.start_soon(into, answers, "b", rt.call(Node, "b", "reach", "a"))
        await wait_all_tasks_blocked()
        await rt.call(Node, "a", "leave_running", nursery, "b")
        # Something waits for b that was called from a, but a does not.
    assert answers == {"b": ["b", "a"]}


@pytest.mark.parametrize("request_id", [None, "once"])
async def test_workflow_code_that_calls_the_key_of_its_run_is_told(
    autojump_clock: MockClock, request_id: str | None
) -> None:
    def call(key: str) -> Coroutine[Any, Any, Any]:
        return runtimes[-1].call(Node, key, "reach", request_id=request_id)

    @workflow
    async def direct(ctx: Context) -> Any:
        return await call(ctx.key)

    @workflow
    async def in_branches(ctx: Context) -> Any:
        return await ctx.gather(lambda ctx: call("other"), lambda ctx: call(ctx.key))

    async with opened(None, Node, workflows=[direct, in_branches]) as rt:
        runtimes.append(rt)
        with trio.fail_after(100):
            for flow in (direct, in_branches):
                run = await rt.submit(flow, key="k")
                with pytest.raises(RunFailed, match=r"CallCycle: Node.reach would wait forever"):
                    await run.result()
            # The run of another key is waited for as ever, and nobody else is in the way.
            assert await call("k") == ["k"]
