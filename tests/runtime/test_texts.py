"""Texts that users give: each is checked where it comes in, and headers have a limit."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Entity,
    Graph,
    NodeInput,
    Retry,
    RunFailed,
    Runtime,
    current_step,
    entity,
    machine,
    step,
    workflow,
)
from keyrun.groups import Member
from keyrun.policies import Resources
from keyrun.runtime.records import checks
from keyrun.schedules import Cron, Every
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime

BAD = "caf\udce9"
LIMIT = 64 * 1024
FITS = {"a" * 10: "b" * (LIMIT - 100)}
TOO_MUCH = {"small": "x", "baggage": "ä" * (LIMIT // 2)}


@workflow
async def waiting(ctx: Context) -> None:
    await ctx.wait_signal("go")


@workflow
async def heard(ctx: Context) -> dict[str, str]:
    return ctx.headers


@entity
class Account(Entity):
    async def get(self) -> int:
        return 1


Call = Callable[[Runtime], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "submit, key": lambda rt: rt.submit(waiting, key=BAD),
    "submit, run_id": lambda rt: rt.submit(waiting, key="k", run_id=BAD),
    "submit, name of a header": lambda rt: rt.submit(waiting, key="k", headers={BAD: "x"}),
    "submit, header": lambda rt: rt.submit(waiting, key="k", headers={"x": BAD}),
    "submit, tag": lambda rt: rt.submit(waiting, key="k", tags=[BAD]),
    "submit_nowait, header": lambda rt: rt.submit_nowait(waiting, key="k", headers={"x": BAD}),
    "schedule, id": lambda rt: rt.schedule(BAD, waiting, key="k", when=Every(9)),
    "schedule, key": lambda rt: rt.schedule("s", waiting, key=BAD, when=Every(9)),
    "schedule, header": lambda rt: rt.schedule(
        "s", waiting, key="k", when=Every(9), headers={"x": BAD}
    ),
    "schedule, tag": lambda rt: rt.schedule("s", waiting, key="k", when=Every(9), tags=[BAD]),
    "pause_schedule": lambda rt: rt.pause_schedule(BAD),
    "resume_schedule": lambda rt: rt.resume_schedule(BAD),
    "delete_schedule": lambda rt: rt.delete_schedule(BAD),
    "schedules, after": lambda rt: rt.schedules(after=BAD),
    "group, id": lambda rt: rt.submit_group(BAD, [Member(waiting, key="k")]),
    "group, member id": lambda rt: rt.submit_group("g", [Member(waiting, key="k", member_id=BAD)]),
    "group, key": lambda rt: rt.submit_group("g", [Member(waiting, key=BAD)]),
    "group, header": lambda rt: rt.submit_group(
        "g", [Member(waiting, key="k", headers={"x": BAD})]
    ),
    "group, tag": lambda rt: rt.submit_group("g", [Member(waiting, key="k", tags=[BAD])]),
    "group": lambda rt: rt.group(BAD),
    "submit_or_signal, name": lambda rt: rt.submit_or_signal(
        waiting, key="k", run_id="x", name=BAD
    ),
    "submit_or_signal, signal_id": lambda rt: rt.submit_or_signal(
        waiting, key="k", run_id="x", name="go", signal_id=BAD
    ),
    "submit_or_signal, header": lambda rt: rt.submit_or_signal(
        waiting, key="k", run_id="x", name="go", headers={"x": BAD}
    ),
    "submit_or_signal, run_id": lambda rt: rt.submit_or_signal(
        waiting, key="k", run_id=BAD, name="go"
    ),
    "signal, name": lambda rt: rt.signal("r", BAD),
    "signal, signal_id": lambda rt: rt.signal("r", "x", signal_id=BAD),
    "signal, payload": lambda rt: rt.signal("r", "x", BAD),
    "approve, gate": lambda rt: rt.approve("r", BAD, by="me"),
    "approve, by": lambda rt: rt.approve("r", "gate", by=BAD),
    "approve, comment": lambda rt: rt.approve("r", "gate", by="me", comment=BAD),
    "reject, comment": lambda rt: rt.reject("r", "gate", by="me", comment=BAD),
    "runs, key": lambda rt: rt.runs(key=BAD),
    "runs, workflow": lambda rt: rt.runs(workflow=BAD),
    "runs, tag": lambda rt: rt.runs(tag=BAD),
    "keys, after": lambda rt: rt.keys(after=BAD),
    "pause_key": lambda rt: rt.pause_key(BAD),
    "resume_key": lambda rt: rt.resume_key(BAD),
    "release_key": lambda rt: rt.release_key(BAD),
    "call, key": lambda rt: rt.call(Account, BAD, "get"),
    "call, request_id": lambda rt: rt.call(Account, "k", "get", request_id=BAD),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_lone_surrogate_is_refused_and_nothing_is_stored(
    autojump_clock: MockClock, name: str
) -> None:
    async with open_test_runtime(workflows=[waiting], entities=[Account]) as rt:
        await rt.submit(waiting, key="r", run_id="r")
        with pytest.raises(ValueError, match=r"caf.udce9|lone surrogate") as caught:
            await CALLS[name](rt)
        assert not isinstance(caught.value, UnicodeError)
        assert [run.run_id for run in await rt.runs()] == ["r"]
        assert await rt.group("g") is None
        assert await rt.schedules() == []


@pytest.mark.parametrize("name", ["status", "history", "progress", "cancel", "pause", "resume"])
async def test_a_run_id_that_nobody_can_have_is_unknown(
    autojump_clock: MockClock, name: str
) -> None:
    async with open_test_runtime() as rt:
        assert not await getattr(rt, name)(BAD)


async def nothing(given: NodeInput) -> None: ...


async def turn(turn: object) -> Any: ...


async def job(ctx: Context) -> None: ...


def a_graph(**edge: str) -> None:
    graph = Graph("graph")
    graph.node(edge.pop("node", "a"), nothing, ports=[edge.pop("port", "p")])
    graph.node("b", nothing)
    graph.edge("a", "b", **edge)  # type: ignore[arg-type]
    graph.validate()


DEFINITIONS: dict[str, Callable[[], object]] = {
    "step": lambda: step(name=BAD)(nothing),
    "options": lambda: step(nothing).options(name=BAD),
    "workflow": lambda: workflow(name=BAD)(job),
    "machine": lambda: machine(name=BAD)(turn),
    "graph": lambda: Graph(BAD),
    "entity": lambda: entity(name=BAD)(type("Other", (), {"get": Account.get})),
    "node": lambda: a_graph(node=BAD),
    "port": lambda: a_graph(port=BAD),
    "to_port": lambda: a_graph(to_port=BAD),
    "condition": lambda: a_graph(when=f"output == '{BAD}'"),
    "resource": lambda: Resources(**{BAD: 1}),
    "timezone": lambda: Cron("* * * * *", BAD),
    "expression": lambda: Cron(BAD),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_lone_surrogate_in_a_name_is_refused_where_it_is_given(name: str) -> None:
    with pytest.raises(ValueError, match=r"caf.udce9") as caught:
        DEFINITIONS[name]()
    assert not isinstance(caught.value, UnicodeError)


IN_WORKFLOWS: dict[str, Callable[[Context], Any]] = {
    "child": lambda ctx: ctx.child(waiting, key=BAD),
    "wait_signal": lambda ctx: ctx.wait_signal(BAD),
    "approval": lambda ctx: ctx.approval(BAD),
    "patched": lambda ctx: ctx.patched(BAD),
    "report": lambda ctx: ctx.report(1, BAD),
    "continue_as": lambda ctx: ctx.continue_as(BAD),
}


@pytest.mark.parametrize("name", IN_WORKFLOWS)
async def test_a_lone_surrogate_in_a_workflow_fails_its_run(
    autojump_clock: MockClock, name: str
) -> None:
    @workflow
    async def odd(ctx: Context) -> None:
        found = IN_WORKFLOWS[name](ctx)
        if inspect.isawaitable(found):
            await found

    async with open_test_runtime(workflows=[odd, waiting]) as rt:
        with pytest.raises(RunFailed, match="valid Unicode"), trio.fail_after(1000):
            await (await rt.submit(odd, key="k")).result()


async def test_a_lone_surrogate_in_a_report_of_a_step_fails_the_attempt(
    autojump_clock: MockClock,
) -> None:
    @step(retry=Retry.none())
    async def odd() -> None:
        current_step().report(1, BAD)

    @workflow
    async def reporting(ctx: Context) -> None:
        await ctx.step(odd)

    async with open_test_runtime(workflows=[reporting]) as rt:
        with pytest.raises(RunFailed, match="message must be valid Unicode") as caught:
            await (await rt.submit(reporting, key="k")).result()
        assert caught.value.failure.step == "odd"


async def test_an_id_whose_first_submit_was_refused_is_free(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[heard]) as rt:
        for headers in ({"x": BAD}, TOO_MUCH):
            with pytest.raises(ValueError, match="header"):
                await rt.submit(heard, key="k", run_id="r", headers=headers)
        await (await rt.submit(heard, key="k")).result()
    async with open_test_runtime(store, workflows=[heard]) as rt:
        assert await rt.status("r") is None
        run = await rt.submit(heard, key="k", run_id="r", headers={"x": "y"})
        assert run.newly_submitted
        assert await run.result() == {"x": "y"}


GIVEN: dict[str, Callable[[Runtime, dict[str, str]], Awaitable[Any]]] = {
    "submit": lambda rt, headers: rt.submit(heard, key="k", headers=headers),
    "submit_nowait": lambda rt, headers: rt.submit_nowait(heard, key="k", headers=headers),
    "schedule": lambda rt, headers: rt.schedule(
        "s", heard, key="k", when=Every(9), headers=headers
    ),
    "submit_group": lambda rt, headers: rt.submit_group(
        "g", [Member(heard, key="k", headers=headers)]
    ),
    "submit_or_signal": lambda rt, headers: rt.submit_or_signal(
        heard, key="k", run_id="r", name="go", headers=headers
    ),
}


@pytest.mark.parametrize("name", GIVEN)
async def test_headers_have_a_limit_and_the_largest_is_named(
    autojump_clock: MockClock, name: str
) -> None:
    async with open_test_runtime(workflows=[heard]) as rt:
        with pytest.raises(
            ValueError, match=r"65,536 bytes, got 65,\d\d\d; the largest is 'baggage' with 65,536"
        ):
            await GIVEN[name](rt, TOO_MUCH)
        assert await rt.runs() == []
        await GIVEN[name](rt, FITS)
        await trio.sleep(15)
        status = (await rt.runs())[0]
        assert FITS.items() <= status.headers.items()


async def test_many_small_headers_count_together(autojump_clock: MockClock) -> None:
    many = {f"h{number}": "x" * 100 for number in range(1000)}
    async with open_test_runtime(workflows=[heard]) as rt:
        with pytest.raises(ValueError, match="the headers of a run may have 65,536 bytes"):
            await rt.submit(heard, key="k", headers=many)


async def test_a_child_has_the_headers_of_its_parent_however_large(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def parent(ctx: Context) -> dict[str, str]:
        return await ctx.child(heard, key="other")

    async with open_test_runtime(workflows=[parent, heard]) as rt:
        run = await rt.submit(parent, key="k", headers=FITS)
        assert await run.result() == FITS


async def test_a_schedule_of_an_earlier_version_keeps_its_large_headers(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_test_runtime(workflows=[heard]) as rt:
        with monkeypatch.context() as earlier:
            earlier.setattr(checks, "MAX_HEADERS", 10**9)
            await rt.schedule("s", heard, key="k", when=Every(9), headers=TOO_MUCH, tags=["t"])
        await trio.sleep(10)
        (status,) = await rt.runs()
    assert TOO_MUCH.items() <= status.headers.items()
    assert status.tags == ("t",)
