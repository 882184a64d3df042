"""What a client answers: for each operation, what the runtime in this process answers.

Each scenario runs twice on virtual time, on a runtime and on a client of a runtime. `it` is what is
tested. `rt` is the runtime in both, and prepares what the scenario needs.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Entity,
    Graph,
    Limits,
    NodeInput,
    PermanentError,
    Priority,
    Reader,
    Retry,
    RunHandle,
    Runtime,
    Workflow,
    entity,
    step,
    workflow,
)
from keyrun.control.operation import Operation
from keyrun.control.owner import Owner
from keyrun.control.problems import ATTRIBUTES, name_of
from keyrun.control.remote import RemoteRuntime
from keyrun.control.requests import NewRun
from keyrun.control.roles import ITSELF
from keyrun.control.shapes import CODEC, Payload
from keyrun.control.table import CALLS
from keyrun.groups import GroupHandle, Member
from keyrun.schedules import Cron, Every, Once
from keyrun.status import History
from keyrun.testing import open_test_runtime
from tests.control.clients import linked


@step(retry=Retry.exponential(max_attempts=2, base=1, jitter=0))
async def shout(word: str) -> str:
    if word == "broken":
        raise ValueError("the word is broken")
    if word == "banned":
        raise PermanentError("the word is banned")
    return word.upper()


@attrs.frozen
class Order:
    item: str
    count: int = 1


@workflow
async def greet(ctx: Context, word: str) -> str:
    return await ctx.step(shout, word)


@workflow
async def order(ctx: Context, given: Order) -> Order:
    return Order(given.item, given.count + 1)


@workflow
async def wait_for_go(ctx: Context, _: None) -> Any:
    return await ctx.wait_signal("go")


@workflow
async def wait_for_boss(ctx: Context, _: None) -> None:
    await ctx.approval("boss")


@workflow
async def parent(ctx: Context) -> str:
    ctx.report(50, "half")
    return await ctx.child(greet, "child", key="of-parent")


@workflow
async def gives_up(ctx: Context) -> None:
    ctx.cancel("no more")


async def node(given: NodeInput) -> str:
    return "node"


line = Graph("line")
line.node("first", node)
line.node("second", node)
line.edge("first", "second")


@entity
class Account(Entity):
    async def deposit(self, amount: int) -> int:
        self.state["balance"] = self.state.get("balance", 0) + amount
        return int(self.state["balance"])

    async def order(self, given: Order) -> Order:
        return given

    async def fail(self) -> None:
        raise ValueError("no such account")


WORKFLOWS: list[Workflow[Any, Any]] = [
    greet,
    order,
    wait_for_go,
    wait_for_boss,
    parent,
    gives_up,
    line,
]


@attrs.frozen
class World:
    """A runtime, and what is tested."""

    rt: Runtime
    it: Any
    found: list[Any] = attrs.field(factory=list)
    owner: Owner = attrs.field(init=False)
    """Performs operations on the runtime."""

    @owner.default
    def _make_owner(self) -> Owner:
        return Owner(self.rt)

    async def note(self, answer: Awaitable[Any]) -> Any:
        """Note an answer, or the error that was raised instead."""
        try:
            answered = await answer
        except Exception as error:
            about = {name: getattr(error, name, None) for name in ATTRIBUTES}
            self.found.append((name_of(error), _plain(str(error)), about))
        else:
            self.found.append(_plain(answered))
            return answered

    async def operate(self, name: str, /, **arguments: Any) -> Any:
        """Note the answer of an operation that is no method of `Runtime`."""
        return await self.note(self._operate(name, arguments))

    async def _operate(self, name: str, arguments: dict[str, Any]) -> Any:
        if isinstance(self.it, RemoteRuntime):
            return await self.it._perform(CALLS[name], arguments)
        operation, owner = CALLS[name], self.owner
        if operation.streams:
            return [each async for each in await owner.stream(operation, arguments, ITSELF)]
        return await owner.perform(operation, arguments, ITSELF)

    async def furnish(self) -> None:
        """Start runs of all kinds."""
        rt = self.rt
        # Trio runs tasks that are ready in any order.
        await rt.submit(greet, "ann", key="k1", run_id="good", tags=["t"], headers={"h": "1"})
        await trio.sleep(0.1)
        await rt.submit(greet, "broken", key="k2", run_id="bad")
        await trio.sleep(0.1)
        await rt.submit(wait_for_go, key="k3", run_id="waiting", limits=Limits(run_timeout=1e6))
        await trio.sleep(0.1)
        await rt.submit(greet, "bob", key="k3", run_id="behind", priority=Priority.HIGH)
        await trio.sleep(0.1)
        await rt.submit(wait_for_boss, key="k4", run_id="gate")
        await trio.sleep(0.1)
        await rt.submit(parent, key="k5", run_id="parent")
        await trio.sleep(0.1)
        await rt.submit(line, {"a": 1}, key="k6", run_id="graph")
        await trio.sleep(0.1)
        await rt.submit(gives_up, key="k7", run_id="given-up")
        await trio.sleep(0.1)
        await rt.submit(order, Order("tea"), key="k8", run_id="order")
        await trio.sleep(0.1)
        await rt.submit(greet, "late", key="k9", run_id="late", delay=1e6)
        await trio.sleep(0.1)
        await rt.submit_group("g", [Member(greet, "a", key="g1"), Member(wait_for_go, key="g2")])
        await trio.sleep(0.1)
        await rt.schedule("s", greet, "c", key="k1", when=Every(86_400))
        await trio.sleep(0.1)
        await rt.call(Account, "k1", "deposit", 5)
        await trio.sleep(0.1)
        await trio.sleep(10)


_GENERATED = re.compile("060a[0-9a-f]{19}")
"""An id that Keyrun has generated."""


def _plain(answer: Any) -> Any:
    """Return an answer as plain data, with the same word for all generated ids."""
    if isinstance(answer, RunHandle):
        return _plain((answer.run_id, answer.key, answer.newly_submitted))
    if isinstance(answer, GroupHandle):
        return answer.group_id, answer.newly_submitted
    if isinstance(answer, History):
        return _plain((answer.records, list(answer)))
    if isinstance(answer, str):
        return _GENERATED.sub("generated", answer)
    if isinstance(answer, bytes):
        return _plain(answer.decode("latin-1"))
    if isinstance(answer, dict):
        # Admission numbers depend on the order in which tasks run.
        return {str(key): _plain(value) for key, value in answer.items() if key != "number"}
    if isinstance(answer, list | tuple):
        return type(answer).__name__, [_plain(each) for each in answer]
    if attrs.has(type(answer)):
        fields = {each.name: getattr(answer, each.name) for each in attrs.fields(type(answer))}
        return type(answer).__name__, _plain(fields)
    return answer


Scenario = Callable[[World], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}
IDS = ("good", "bad", "waiting", "behind", "gate", "parent", "graph", "given-up", "order", "nobody")


def scenario(*names: str) -> Callable[[Scenario], Scenario]:
    """Register the scenario of operations."""

    def register(function: Scenario) -> Scenario:
        for name in names:
            assert name in CALLS
            assert name not in SCENARIOS
            SCENARIOS[name] = function
        return function

    return register


@scenario("submit")
async def _(w: World) -> None:
    it = w.it
    run = await w.note(it.submit(greet, "ann", key="k", run_id="r"))
    await w.note(run.result())
    await w.note(run.status())
    await w.note(it.submit(greet, "ann", key="k", run_id="r"))
    await w.note(it.submit(greet, "bob", key="k", run_id="r"))
    await w.note(it.submit(greet, 5, key="k"))
    await w.note(it.submit(greet, "a", key=""))
    await w.note(it.submit(greet, "a", key="k", run_id="not valid"))
    await w.note(it.submit(greet, "a", key="k", headers={"keyrun-x": "y"}))
    await w.note(it.submit(greet, "a", key="k", headers={"x": 5}))
    await w.note(it.submit(greet, "a", key="k", tags="tag"))
    await w.note(it.submit(greet, "a", key="k", priority="high"))
    await w.note(it.submit(greet, "a", key="k", limits=5))
    await w.note(it.submit(greet, "a", key="k", delay=-1))
    await w.note(it.submit("greet", "a", key="k"))
    await w.note(it.submit(greet, "a", key="k", tags=[5]))
    await w.note(it.submit(greet, object(), key="k"))

    @workflow(name="unknown")
    async def unknown(ctx: Context) -> None: ...

    await w.note(it.submit(unknown, key="k"))
    for each in ("late", "later"):
        full = await w.note(it.submit(wait_for_go, key="full", run_id=each, tags=["a"], delay=5))
        await w.note(full.status())
    await trio.sleep(6)
    await it.submit(wait_for_go, key="full", run_id="third")
    await w.note(it.submit(wait_for_go, key="full", run_id="fourth"))
    await w.note(it.submit_nowait(wait_for_go, key="full", run_id="fifth"))
    await w.note(it.submit_nowait(greet, "x", key="other", run_id="sixth"))


@scenario("submit_many")
async def _(w: World) -> None:
    runs = [
        NewRun(workflow="greet", input=_payload("a"), key="k", run_id="r"),
        NewRun(workflow="nothing", key="k", run_id="r2"),
        NewRun(workflow="greet", input=_payload(5), key="k", run_id="r3"),
        NewRun(workflow="order", input=_payload(Order("x"), Order), key="k", run_id="r4"),
    ]
    await w.operate("submit_many", runs=runs)
    await w.operate("submit_many", runs=runs)


@scenario("submit_together")
async def _(w: World) -> None:
    runs = [
        NewRun(workflow="greet", input=_payload("a"), key="k", run_id="r"),
        NewRun(workflow="nothing", key="k", run_id="r2"),
        NewRun(workflow="wait_for_go", key="full"),
        NewRun(workflow="greet", input=_payload(5), key="k", run_id="r3"),
        *[NewRun(workflow="wait_for_go", key="full") for _ in range(3)],
    ]
    await w.operate("submit_together", runs=runs)
    await w.operate("submit_together", runs=runs[:2])


def _payload(value: Any, declared: Any = Any) -> Payload:
    return Payload("payload", encoded=CODEC.encode(value, declared))


@scenario("submit_or_signal", "signal")
async def _(w: World) -> None:
    it = w.it
    await w.note(it.submit_or_signal(wait_for_go, key="k", run_id="r", name="go", payload=[1]))
    await w.note(it.run("r").result())
    await w.note(it.submit_or_signal(wait_for_go, key="k", run_id="r", name="go"))
    await w.note(it.submit_or_signal(greet, "x", key="k", run_id="r", name="go"))
    await w.rt.submit(wait_for_boss, key="k", run_id="r2")
    await w.note(it.submit_or_signal(wait_for_boss, key="k", run_id="r2", name="go", payload=(1,)))
    await w.rt.submit(wait_for_go, key="k3", run_id="r3")
    await trio.sleep(1)
    await w.note(it.signal("r2", "go", {"a": b"1"}, signal_id="s", replace=True))
    await w.note(it.signal("r3", "go", {"a": b"1"}, signal_id="s"))
    await w.note(it.run("r3").result())
    await w.note(it.signal("r3", "go", {"a": b"1"}, signal_id="s"))
    await w.note(it.signal("r3", "go", signal_id="s2"))
    await w.note(it.signal("nobody", "go"))
    await w.note(it.signal("r2", ""))
    await w.note(it.signal("r2", "go", object()))
    await w.note(it.signal("r2", "go", signal_id=5))


@scenario("approve", "reject")
async def _(w: World) -> None:
    it = w.it
    for each in ("r1", "r2"):
        await w.rt.submit(wait_for_boss, key=each, run_id=each)
    await trio.sleep(1)
    await w.note(it.approve("r1", "nobody", by="ann"))
    await w.note(it.approve("r1", "boss", by=""))
    await w.note(it.approve("r1", "", by="ann"))
    await w.note(it.approve("r1", "boss", by="ann", comment=5))
    await w.note(it.approve("r1", "boss", by="ann", comment="fine"))
    await w.note(it.approve("r1", "boss", by="ann"))
    await w.note(it.reject("r2", "boss", by="ann"))
    await w.note(it.reject("nobody", "boss", by="ann"))
    await w.note(it.run("r1").result())
    await w.note(it.run("r2").result())


@scenario("cancel", "pause", "resume", "redrive", "forget")
async def _(w: World) -> None:
    await w.furnish()
    for name in ("pause", "resume", "redrive", "cancel", "forget"):
        for run_id in IDS:
            await w.note(getattr(w.it, name)(run_id))
            await trio.sleep(0.1)
    await w.note(w.it.cancel(5))
    await w.note(w.it.run("good").cancel())


@scenario("find_runs", "runs", "dead_letters", "find_dead_letters")
async def _(w: World) -> None:
    await w.furnish()
    it = w.it
    for find in (it.runs, it.find_runs, it.dead_letters, it.find_dead_letters):
        await w.note(find())
        await w.note(find(key="k1", tag="t", workflow="greet", version=1, since=0, until=1e12))
        await w.note(find(step="shout", error="ValueError", newest_first=True))
        await w.note(find(limit=0))
        await w.note(find(limit=True))
    for find in (it.runs, it.find_runs):
        await w.note(find(state="failed", origin="submit", group="g"))
        await w.note(find(state=["failed", "running"], limit=2))
        await w.note(find(state="nothing"))
    await w.note(it.runs(after="good", limit=2))
    await w.note(it.runs(after="nobody"))
    page = await w.note(it.find_runs(limit=3))
    await w.note(it.find_runs(limit=3, cursor=page.cursor))
    await w.note(it.find_runs(cursor="broken"))


@scenario("status", "result", "find_run", "status_of_run", "wait_for_end")
async def _(w: World) -> None:
    await w.furnish()
    for run_id in IDS:
        await w.note(w.it.status(run_id))
        await w.note(w.it.status(run_id, result=False))
        await w.note(w.it.run(run_id).status())
        await w.note(w.it.run(run_id).result(timeout=1))
        await w.operate("status", run_id=run_id, wait=1)
        await w.operate("result", run_id=run_id)
        await w.operate("find_run", run_id=run_id)
    await w.operate("status_of_run", run_id="good", number=10**6)
    await w.operate("wait_for_end", run_id="good", number=10**6)
    await w.note(w.it.run("good").result(timeout=-1))
    run = w.it.run("good")
    await run.status()
    await w.rt.forget("good")
    await w.note(run.result())
    await w.note(run.status())
    await w.rt.pause_all()
    await w.rt.cancel("waiting")
    await w.note(w.it.run("waiting").result())


@scenario("history", "export", "input", "whole_history", "stored_page")
async def _(w: World) -> None:
    await w.furnish()
    for run_id in set(IDS) - {"parent"}:  # whose journal has a random number
        history = await w.note(w.it.history(run_id))
        await w.note(w.it.history_page(run_id, limit=2))
        await w.note(w.it.input(run_id))
        await w.operate("history", run_id=run_id)
        await w.operate("export", run_id=run_id)
        w.found.append(
            [_plain(w.it.value(each.stored)) for each in history if each.stored is not None]
        )
    page = await w.it.history_page("bad", limit=1)
    await w.note(w.it.history_page("bad", limit=1, cursor=page.cursor))


@scenario("progress", "watch", "explain", "execution_graph", "family")
async def _(w: World) -> None:
    await w.furnish()
    for run_id in IDS:
        await w.note(w.it.progress(run_id))
        await w.note(w.it.explain(run_id))
        await w.note(w.it.execution_graph(run_id))
        await w.note(w.it.family(run_id))
    for run_id in ("good", "bad", "nobody"):
        await w.note(_all(w.it.watch(run_id)))
    await w.note(_called(lambda: w.it.watch("good", interval=-1)))
    await w.note(_called(lambda: w.it.watch("not valid")))
    watch = w.it.watch("waiting", interval=0)
    await w.note(anext(watch))
    await w.rt.signal("waiting", "go")
    await w.note(_all(watch))


async def _all(items: Any) -> list[Any]:
    return [each async for each in items]


async def _called(function: Callable[[], Any]) -> Any:
    return function()


@scenario("find_keys", "keys", "key_view", "explain_key", "entities")
async def _(w: World) -> None:
    await w.furnish()
    await w.note(w.it.keys())
    await w.note(w.it.keys(limit=1, after="k3"))
    await w.note(w.it.keys(quarantined=True))
    page = await w.note(w.it.find_keys(limit=1))
    await w.note(w.it.find_keys(limit=1, cursor=page.cursor))
    await w.note(w.it.find_keys(limit=-1))
    for key in ("k1", "k2", "k3", "k4", "nothing", ""):
        await w.note(w.it.key_view(key))
        await w.note(w.it.explain_key(key))
        await w.note(w.it.entities(key))


@scenario("pause_key", "resume_key", "release_key", "pause_all", "resume_all")
async def _(w: World) -> None:
    await w.furnish()
    it = w.it
    await trio.sleep(0.1)
    await w.note(it.pause_key("k3"))
    await trio.sleep(0.1)
    await w.note(it.pause_key(""))
    await trio.sleep(0.1)
    await w.note(it.resume_key("k3"))
    await trio.sleep(0.1)
    await w.note(it.resume_key("nothing"))
    await trio.sleep(0.1)
    await w.note(it.release_key("k2"))
    await trio.sleep(0.1)
    await w.note(it.release_key(5))
    await trio.sleep(0.1)
    await w.note(it.pause_all())
    await w.rt.submit(greet, "x", key="x", run_id="held")
    await trio.sleep(1)
    await trio.sleep(0.1)
    await w.note(it.run("held").result(timeout=1))
    await trio.sleep(0.1)
    await w.note(it.resume_all())
    await trio.sleep(0.1)
    await w.note(it.run("held").result(timeout=1))


@scenario("call")
async def _(w: World) -> None:
    it = w.it
    await w.note(it.call(Account, "k", Account.deposit, 5))
    await w.note(it.call(Account, "k", "deposit", amount=5, request_id="q"))
    await w.note(it.call(Account, "k", "deposit", amount=5, request_id="q"))
    await w.note(it.entity(Account, "k").deposit(5))
    await w.note(it.entity(Account, "k", request_id="q").deposit(5))
    await w.note(it.entity(Account, "k", timeout=5).order(Order("x")))
    await w.note(it.call(Account, "k", "order", given=Order("x")))
    await w.note(it.call(Account, "k", "fail"))
    await w.note(it.call(Account, "k", "fail", request_id="f"))
    await w.note(it.call(Account, "k", "fail", request_id="f"))
    await w.note(it.call(Account, "", "deposit", 5))
    await w.note(it.call(Account, "k", "nothing"))
    await w.note(it.call(Account, "k", "deposit", "five"))
    await w.note(it.call(Account, "k", "deposit", "five", request_id="five"))
    await w.note(it.call(Account, "k", "deposit"))
    await w.note(it.call(Account, "k", "deposit", 1, 2))
    await w.note(it.call(Account, "k", "deposit", amounts=2))
    await w.note(it.call(Account, "k", "deposit", 5, timeout=-1))
    await w.note(it.call(Account, "k", "deposit", 5, request_id="not valid"))
    await w.note(it.call(Order, "k", "deposit", 5))

    @entity(name="unknown")
    class Unknown(Entity):
        async def act(self) -> None: ...

    await w.note(it.call(Unknown, "k", "act"))
    await w.note(_called(lambda: it.entity(Account, "")))


@scenario("bulk")
async def _(w: World) -> None:
    await w.furnish()
    filters = {"workflow": "greet", "limit": 2}
    await w.note(_bulk(w, action="cancel", **filters))
    await w.note(_bulk(w, action="cancel", preview=False, **filters))
    await w.note(_bulk(w, action="redrive", preview=False, **filters))
    await w.note(_bulk(w, action="cancel"))
    await w.note(_bulk(w, action="cancel", key="k1", limit=10**9))


async def _bulk(w: World, **arguments: Any) -> Any:
    return attrs.evolve(await w._operate("bulk", arguments), bulk_id="")


@scenario("find_approvals", "workflows", "policies", "counts", "outbox", "discard_outcomes")
async def _(w: World) -> None:
    await w.furnish()
    await w.note(w.it.find_approvals())
    await w.note(w.it.find_approvals(key="k1", workflow="greet", limit=1))
    await w.note(w.it.find_approvals(limit=0))
    await w.note(w.it.workflows())
    await w.note(w.it.policies())
    await w.note(w.it.counts())
    await w.note(w.it.unfinished())
    await w.note(w.it.outbox())
    await w.note(w.it.discard_outcomes())
    await w.note(w.it.outbox())


@scenario("audit")
async def _(w: World) -> None:
    await w.furnish()
    owner = Owner(w.rt)
    for run_id in ("waiting", "nobody", "gate"):
        arguments = {"run_id": run_id}
        await owner.perform(CALLS["cancel"], arguments, ITSELF, f"op-{run_id}")
        await trio.sleep(1)
    await w.note(w.it.audit())
    page = await w.note(w.it.audit(limit=1, newest_first=True))
    await w.note(w.it.audit(limit=1, newest_first=True, cursor=page.cursor))
    await w.note(w.it.audit(since=0, until=1, who="nobody", operation="cancel"))
    await w.note(w.it.audit(run_id="gate", key="k4"))
    await w.note(w.it.history("gate"))


@scenario(
    "submit_group",
    "group",
    "outcomes",
    "cancel_group",
    "group_status",
    "find_groups",
    "member_ends",
)
async def _(w: World) -> None:
    it = w.it
    members = [
        Member(greet, "a", key="k1"),
        Member(greet, "banned", key="k2", tags=["t"], headers={"a": "b"}),
        Member(order, Order("x"), key="k3", member_id="mine", delay=5, priority=Priority.LOW),
        Member(gives_up, key="k4", limits=Limits(run_timeout=5)),
    ]
    group = await w.note(it.submit_group("g", members))
    await w.note(group.results())
    await w.note(group.status())
    await w.note(_all(group))
    await w.operate("member_ends", group_id="nothing")
    await w.note(it.submit_group("g", members[:1]))
    await w.note(it.submit_group("g", [5]))
    await w.note(it.submit_group("empty", []))
    await w.note(it.submit_group("not valid", members))
    await w.note(it.submit_group("bad", [Member(greet, "a", key="")]))
    await w.note(it.submit_group("two", [members[0], Member(wait_for_go, key="k5")]))
    two = await w.note(it.group("two"))
    outcomes = aiter(two)
    await w.note(anext(outcomes))
    await w.note(_late(outcomes))
    await w.note(it.group_status("two"))
    await w.note(it.group_status("nothing"))
    await w.note(it.group("nothing"))
    await w.note(two.cancel())
    await w.note(_all(outcomes))
    await w.operate("group", group_id="nothing")
    await w.operate("cancel_group", group_id="nothing")
    await w.note(it.find_groups(limit=1))
    await w.note(it.find_groups(limit=0))


async def _late(outcomes: Any) -> Any:
    """A step of an iteration that is cancelled loses nothing."""
    with trio.move_on_after(1):
        return await anext(outcomes)
    return "nothing yet"


SCENARIOS["find_groups"] = SCENARIOS["group"]


@scenario("schedule", "find_schedules", "schedules", "pause_schedule", "resume_schedule")
async def _(w: World) -> None:
    it = w.it
    for name, when in (("a", Every(60, start=5)), ("b", Cron("0 3 * * *", "UTC")), ("c", Once(5))):
        await w.note(it.schedule(name, greet, "x", key="k", when=when, misfire="skip"))
    await w.note(it.schedule("a", greet, "x", key="k", when=Every(60), overlap=True, paused=True))
    await w.note(it.schedule("d", order, Order("x"), key="k", when=Every(9), tags=["t"]))
    await w.note(it.schedule("", greet, "x", key="k", when=Every(60)))
    await w.note(it.schedule("e", greet, 5, key="k", when=Every(60)))
    await w.note(it.schedule("e", greet, "x", key="k", when=Every(60), overlap="yes"))
    await w.note(it.schedule("e", greet, "x", key="k", when=Every(60), misfire="never"))
    await w.note(it.schedule("e", greet, "x", key="k", when=5))
    for name in ("a", "nothing"):
        await w.note(it.pause_schedule(name))
        await w.note(it.pause_schedule(name))
        await w.note(it.resume_schedule(name))
        await w.note(it.resume_schedule(name))
    await w.note(it.schedules())
    await w.note(it.schedules(limit=1, after="a"))
    page = await w.note(it.find_schedules(limit=1))
    await w.note(it.find_schedules(limit=1, cursor=page.cursor))
    for name in ("a", "a", "b"):
        await w.note(it.delete_schedule(name))
    await trio.sleep(30)
    await w.note(it.schedules())


SCENARIOS["delete_schedule"] = SCENARIOS["schedule"]


@scenario("events")
async def _(w: World) -> None:
    it = w.it
    await w.note(_called(lambda: it.events(kinds=["nothing"])))
    await w.note(_called(lambda: it.events(buffer=0)))
    await w.note(_called(lambda: it.events(run_id="not valid")))
    await w.note(anext(it.events()))
    async with it.events() as events, it.events(run_id="bad", kinds="run_failed") as some:
        await w.furnish()
        found = []
        async for event in events:
            if event.key not in ("k5", "of-parent"):  # the child may end before its parent waits
                found.append(event)
            if event.run_id == "bad" and event.kind == "run_failed":
                break
        w.found.append(_plain(found))
        w.found.append(events.dropped)
        await w.note(anext(some))
    await w.note(anext(events))
    await w.note(events.__aenter__())


@scenario("statistics", "about")
async def _(w: World) -> None:
    await w.furnish()
    await w.operate("about")
    for found in (w.it.statistics(), await w._operate("statistics", {})):
        w.found.append(attrs.evolve(found, loop=None, commits=None))


@scenario("recent_events")
async def _(w: World) -> None:
    cursor = (await w._operate("recent_events", {})).cursor
    await w.furnish()
    await trio.sleep(10)
    found = await w._operate("recent_events", {"after": cursor, "run_id": "bad"})
    about = [(type(each), each.kind, each.run_id, each.key) for each in found.events]
    assert len(about) > 5
    w.found.append((about, found.missed))


@scenario("overview", "dead_letter_errors")
async def _(w: World) -> None:
    await w.furnish()
    await w.rt.submit(greet, "banned", key="dead", run_id="dead")
    await trio.sleep(10)
    found = await w._operate("overview", {})
    w.found.append(_plain(attrs.evolve(found, statistics=None, commit_seconds=None)))
    w.found.append(found.commit_seconds.bounds)
    await w.operate("dead_letter_errors")


def run(play: Scenario, *, through_client: bool) -> list[Any]:
    """Run a scenario on virtual time, and return the answers."""

    async def main() -> list[Any]:
        options: dict[str, Any] = {
            "workflows": WORKFLOWS,
            "entities": [Account],
            "max_pending_per_key": 3,
            "backpressure_timeout": 5,
        }
        async with open_test_runtime(**options) as rt:
            if not through_client:
                world = World(rt, rt)
                await play(world)
            else:
                async with linked(rt, workflows=WORKFLOWS) as client:
                    world = World(rt, client)
                    await play(world)
        return world.found

    return trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("operation", CALLS.values(), ids=lambda each: each.name)
def test_an_operation_answers_through_a_client_what_the_runtime_answers(
    operation: Operation,
) -> None:
    play = SCENARIOS[operation.name]
    if operation.name != next(name for name, each in SCENARIOS.items() if each is play):
        return  # the scenario of several operations runs once
    expected, answered = run(play, through_client=False), run(play, through_client=True)
    assert expected
    assert difference(answered, expected) is None


def test_a_client_has_every_method_of_the_runtime() -> None:
    """A method that is not the client's own would read a store that the client does not have."""
    public = {name for cls in (Runtime, Reader) for name in vars(cls) if not name.startswith("_")}
    assert public - set(vars(RemoteRuntime)) == {"run"}


async def test_what_only_the_process_of_the_owner_knows_is_an_error_that_says_so(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime() as rt, linked(rt) as client:
        with pytest.raises(RuntimeError, match="in the process that owns the store"):
            _ = client.unreadable


def difference(left: Any, right: Any, place: str = "answers") -> str | None:
    """Return the first place at which two plain values differ."""
    if type(left) is type(right) and isinstance(left, list | tuple) and len(left) == len(right):
        pairs = enumerate(zip(left, right, strict=True))
        found = (difference(*each, f"{place}[{at}]") for at, each in pairs)
    elif type(left) is type(right) is dict and left.keys() == right.keys():
        found = (difference(left[name], right[name], f"{place}.{name}") for name in left)
    else:
        return None if left == right else f"{place}: {left!r} and {right!r}"
    return next((each for each in found if each is not None), None)
