"""A store with a run in every location, and the code that its runs need.

A run can be in many places: queued, delayed, running, evicted, paused, quarantined, compensated and
so on. `leave_behind` brings runs to each of them and crashes. `python -m tests.runtime.golden
locations FILE` writes the store, with the effects of all steps up to the crash, so that a test can
count effects over both processes. Files that are already there are never written again.
"""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from keyrun import (
    Compensation,
    Context,
    Continue,
    Entity,
    Graph,
    NodeInput,
    PermanentError,
    Retry,
    Runtime,
    Succeed,
    TransientError,
    Turn,
    Workflow,
    current_step,
    entity,
    machine,
    step,
    workflow,
)
from keyrun.flows import approval as approval_node
from keyrun.groups import Member
from keyrun.schedules import Every
from keyrun.storage import MemoryStore, Store, unseal
from keyrun.testing import RecordingHook, open_test_runtime
from tests.runtime.fragile import FragileStore
from tests.runtime.golden import dump, restore

effects: list[str] = []
"""`run_id:what` of every effect, when it is complete. An interrupted step leaves `run_id:what?`."""

healthy = True
"""Whether the outside world works: `charge` fails while it does not."""

SLOWLY = Retry.fixed(max_attempts=5, delay=300, jitter=0)
STOPPED = "stopped"
"""A namespace in which all runs are paused."""


@attrs.frozen
class Order:
    """An input that is not a plain value."""

    number: int
    lines: list[str]


def _effect(what: str) -> None:
    effects.append(f"{current_step().run_id}:{what}")


@step
async def note(what: str) -> str:
    """An effect that takes no time."""
    _effect(what)
    return what


@step(timeout=None)
async def work(what: str, seconds: float) -> str:
    """An effect that takes time, and is seen twice if a crash interrupts it."""
    effects.append(f"{current_step().run_id}:{what}?")
    await trio.sleep(seconds)
    _effect(what)
    return what


@step
async def tally() -> int:
    """Counts in the state of the key."""
    state = current_step().state
    state["tally"] = state.get("tally", 0) + 1
    _effect(f"tally {state['tally']}")
    return int(state["tally"])


@step(retry=SLOWLY)
async def stumble(times: int) -> int:
    memo = current_step().memo
    memo["tries"] = memo.get("tries", 0) + 1
    if memo["tries"] <= times:
        raise TransientError("not yet")
    _effect("stumble")
    return int(memo["tries"])


@step
async def charge() -> str:
    if not healthy:
        raise PermanentError("the card was declined")
    _effect("charge")
    return "receipt"


async def unbook(given: Compensation) -> None:
    await trio.sleep(100)
    _effect(f"unbook {given.output}")


@step(compensate=unbook)
async def book(what: str) -> str:
    _effect(f"book {what}")
    return what


@step(at_most_once=True, timeout=None)
async def send_once(seconds: float) -> str:
    effects.append(f"{current_step().run_id}:send?")
    await trio.sleep(seconds)
    _effect("send")
    return "sent"


@step(shield=True, timeout=None)
async def shielded(seconds: float) -> None:
    effects.append(f"{current_step().run_id}:shielded?")
    await trio.sleep(seconds)
    _effect("shielded")


@workflow
async def quick(ctx: Context, order: Order) -> Order:
    return Order(order.number + await ctx.step(tally), [*order.lines, ctx.now().isoformat()])


@workflow
async def steps(ctx: Context) -> list[str]:
    return [await ctx.step(work, name, 100) for name in "abc"]


@workflow
async def naps(ctx: Context, seconds: float) -> str:
    before = await ctx.step(note, "before")
    await ctx.sleep(seconds)
    return before + await ctx.step(note, "after")


@workflow
async def scopes(ctx: Context) -> list[Any]:
    with ctx.move_on_after(50) as first:
        await ctx.step(work, "cut off", 1000)
    with ctx.move_on_after(5000) as second:
        await ctx.sleep(1000)
        await ctx.step(note, "inside")
    return [first.expired, second.expired]


@workflow
async def gathers(ctx: Context) -> list[Any]:
    async def branch(ctx: Context) -> str:
        await ctx.sleep(900)
        return await ctx.step(note, "branch")

    return list(await ctx.gather(ctx.step(note, "one"), branch, ctx.step(work, "two", 600)))


@workflow
async def retries(ctx: Context) -> int:
    return await ctx.step(stumble, 3)


@workflow
async def listens(ctx: Context) -> list[Any]:
    await ctx.step(work, "tune in", 700)
    return [await ctx.wait_signal("news") for _ in range(3)]


@workflow
async def waits(ctx: Context) -> list[Any]:
    return [await ctx.wait_signal("news"), await ctx.wait_signal("news", timeout=10_000)]


@workflow
async def gated(ctx: Context) -> str:
    first = await ctx.approval("first")
    second = await ctx.approval("second", timeout=100_000)
    return await ctx.step(note, f"{first.by} and {second.by}")


@workflow(while_waiting="yield")
async def polite(ctx: Context, what: str) -> str:
    await ctx.step(note, f"{what} begins")
    answer = await ctx.wait_signal("go")
    await ctx.sleep(200)
    return await ctx.step(note, f"{what} {answer}")


@workflow
async def pays(ctx: Context) -> str:
    await ctx.step(note, "before")
    receipt = await ctx.step(charge)
    return await ctx.step(work, f"ship for {receipt}", 1000)


@workflow
async def trip(ctx: Context) -> None:
    for what in ("hotel", "flight", "car"):
        await ctx.step(book, what)
    await ctx.sleep(10)
    raise PermanentError("the trip is off")


@workflow
async def journey(ctx: Context) -> None:
    for what in ("train", "bus"):
        await ctx.step(book, what)
    await ctx.sleep(100_000)


@workflow
async def loops(ctx: Context, turn: int) -> int:
    await ctx.step(note, f"turn {turn}")
    await ctx.sleep(120)
    if turn < 8:
        ctx.continue_as(turn + 1)
    return turn


@workflow
async def leaf(ctx: Context, what: str) -> str:
    await ctx.step(note, what)
    await ctx.sleep(800)
    return await ctx.step(work, f"{what} ends", 10)


@workflow
async def middle(ctx: Context, what: str) -> str:
    return "middle of " + await ctx.child(leaf, what, key="leaf of middle")


@workflow
async def parent(ctx: Context) -> list[str]:
    return list(
        await ctx.gather(
            ctx.child(leaf, "own", key=None),
            ctx.child(leaf, "other", key="leaf"),
            ctx.child(middle, "deep", key="middle"),
        )
    )


@workflow
async def sends(ctx: Context) -> str:
    return await ctx.step(send_once, 10_000)


@workflow
async def stubborn(ctx: Context) -> None:
    await ctx.step(shielded, 10_000)


@workflow(instances=1)
async def single(ctx: Context) -> str:
    await ctx.sleep(500)
    return await ctx.step(note, "alone")


@machine()
async def timed(turn: Turn) -> Any:
    turn.state["turns"] = turn.number + 1
    effects.append(f"{turn.run_id}:turn {turn.number}")
    if turn.number == 8:
        return Succeed(turn.payload)
    return Continue([turn.number], after=100)


@machine()
async def signalled(turn: Turn) -> Any:
    effects.append(f"{turn.run_id}:turn {turn.number}")
    if turn.number == 3:
        return Succeed(turn.payload)
    heard = [] if turn.signal is None else [turn.signal.payload]
    return Continue([*(turn.payload or []), *heard], on_signal="next")


async def _node(given: NodeInput) -> str:
    _effect(current_step().step)
    return f"{given.run_input} {current_step().step}"


async def _slow_node(given: NodeInput) -> str:
    effects.append(f"{current_step().run_id}:{current_step().step}?")
    await trio.sleep(900)
    _effect(current_step().step)
    return current_step().step


def _diamond() -> Graph:
    graph = Graph("diamond")
    for name in ("start", "left", "end"):
        graph.node(name, _node)
    graph.node("right", _slow_node, timeout=None)
    for source, target in (("start", "left"), ("start", "right"), ("left", "end")):
        graph.edge(source, target)
    graph.edge("right", "end")
    return graph


def _review() -> Graph:
    graph = Graph("review")
    graph.node("draft", _node)
    graph.node("gate", approval_node(), ports=("approved", "rejected", "timeout"))
    graph.node("publish", _node)
    graph.node("drop", _node)
    graph.edge("draft", "gate")
    graph.edge("gate", "publish", port="approved")
    graph.edge("gate", "drop", port="rejected")
    graph.edge("gate", "drop", port="timeout")
    return graph


diamond, review = _diamond(), _review()


@entity
class Account(Entity):
    """Has a balance."""

    async def deposit(self, amount: int, seconds: float = 0) -> int:
        effects.append(f"{self.key}:deposit {amount}?")
        await trio.sleep(seconds)
        self.state["balance"] = self.state.get("balance", 0) + amount
        effects.append(f"{self.key}:deposit {amount}")
        return int(self.state["balance"])


# Runs of the following workflows are quarantined, because the process that crashes last has other
# code, or none.


@step
async def recall() -> dict[str, int]:
    _effect("recall")
    return {"a": 1}


@workflow
async def unregistered(ctx: Context) -> str:
    await ctx.step(note, "before")
    await ctx.sleep(30)
    return await ctx.step(note, "after")


@workflow
async def contradicted(ctx: Context) -> str:
    await ctx.step(note, "before")
    await ctx.step(work, "in between", 5)
    await ctx.sleep(30)
    return await ctx.step(note, "after")


@workflow
async def misfit(ctx: Context, order: Order) -> int:
    await ctx.step(note, "read")
    return order.number


@workflow
async def remembers(ctx: Context) -> int:
    recalled = await ctx.step(recall)
    await ctx.sleep(30)
    await ctx.step(note, "after")
    return recalled["a"]


@workflow
async def excursion(ctx: Context) -> None:
    await ctx.step(book, "boat")
    await ctx.sleep(100_000)


@workflow(name="contradicted")
async def other_contradicted(ctx: Context) -> str:
    return await ctx.step(note, "before")


@workflow(name="misfit")
async def other_misfit(ctx: Context, number: int) -> int:
    await ctx.step(note, "new code")
    return number


@step(name="recall")
async def other_recall() -> int:
    _effect("new code")
    return 1


@workflow(name="remembers")
async def other_remembers(ctx: Context) -> int:
    recalled = await ctx.step(other_recall)
    await ctx.step(note, "new code")
    return recalled


@step(name="book")
async def other_book(what: str) -> str:
    _effect("new code")
    return what


@workflow(name="excursion")
async def other_excursion(ctx: Context) -> None:
    await ctx.step(other_book, "boat")
    await ctx.sleep(100_000)


COMMON: list[Workflow[Any, Any]] = [
    quick,
    steps,
    naps,
    scopes,
    gathers,
    retries,
    listens,
    waits,
    gated,
    polite,
    pays,
    trip,
    journey,
    loops,
    leaf,
    middle,
    parent,
    sends,
    stubborn,
    single,
    timed,
    signalled,
    diamond,
    review,
]
WORKFLOWS = [*COMMON, unregistered, contradicted, misfit, remembers, excursion]
"""What a later process needs to finish all runs."""
OTHERS = [*COMMON, other_contradicted, other_misfit, other_remembers, other_excursion]
"""What the process has that crashes last."""


class BuggyStore(FragileStore):
    """Raises an unexpected error when the state of the key `buggy` is read, as if Keyrun had a bug:
    the actor of that key crashes."""

    async def _get(self, table: str, key: bytes) -> bytes | None:
        if table == "state" and b"buggy" in key:
            raise RuntimeError("a bug")
        return await super()._get(table, key)


async def leave_behind(store: BuggyStore) -> list[str]:
    """Bring a run to every location, and crash. Returns the effects up to the crash."""
    global healthy
    async with open_test_runtime(store, workflows=WORKFLOWS) as rt:
        await rt.submit(unregistered, key="unregistered", run_id="unregistered")
        await rt.submit(quick, Order(1, []), key="unregistered", run_id="behind-unregistered")
        await rt.submit(contradicted, key="contradicted", run_id="contradicted")
        await rt.submit(misfit, Order(7, ["x"]), key="misfit", run_id="misfit", delay=30)
        await rt.submit(steps, key="damaged", run_id="damaged-run")
        await rt.submit(quick, Order(2, []), key="damaged", run_id="behind-damaged")
        await rt.submit(naps, 30, key="damaged-journal", run_id="damaged-journal")
        await rt.submit(naps, 2000, key="damage-unseen", run_id="damage-unseen")
        await rt.submit(remembers, key="remembers", run_id="remembers")
        await rt.submit(excursion, key="excursion", run_id="uncompensated")
        await trio.sleep(10)
        await rt.cancel("uncompensated")
        await trio.sleep(10)
        store.crash()
    store.damage("runs", _records(store, "runs", "damaged-run")[0])
    for run_id in ("damaged-journal", "damage-unseen"):
        store.damage("journal", _records(store, "journal", run_id)[0])

    async with open_test_runtime(store, namespace=STOPPED, workflows=WORKFLOWS) as rt:
        await rt.submit(naps, 1000, key="nap", run_id="stopped-nap")
        await trio.sleep(10)
        await rt.pause_all()
        await rt.submit(quick, Order(3, []), key="k", run_id="stopped")

    hook = RecordingHook(failures=10**6)
    healthy = False
    async with (
        trio.open_nursery() as clients,
        open_test_runtime(store, workflows=OTHERS, entities=[Account], on_terminal=hook) as rt,
    ):
        await _go_everywhere(rt, clients)
        before = list(effects)
        store.crash()
    return before


async def _go_everywhere(rt: Runtime, clients: trio.Nursery) -> None:
    global healthy
    # Ends that the hook has not accepted, of all three kinds, and a run that is forgotten.
    await rt.submit(quick, Order(4, ["a"]), key="ended", run_id="succeeded", headers={"h": "1"})
    await rt.submit(pays, key="ended", run_id="dead", tags=["x"])
    await rt.submit(naps, 1000, key="ended", run_id="cancelled")
    await rt.submit(quick, Order(5, []), key="ended", run_id="forgotten")
    # Runs that wait, evicted or not.
    await rt.submit(naps, 1000, key="evicted", run_id="evicted")
    await rt.submit(quick, Order(6, []), key="evicted", run_id="pending")
    await rt.submit(quick, Order(7, []), key="evicted", run_id="pending-2")
    await rt.submit(scopes, key="scopes", run_id="scopes")
    await rt.submit(gathers, key="gathers", run_id="gathers")
    await rt.submit(retries, key="backoff", run_id="backoff")
    await rt.submit(listens, key="buffered", run_id="buffered")
    await rt.submit(waits, key="waits", run_id="waits")
    await rt.submit(gated, key="gated", run_id="gated")
    await rt.submit(gated, key="gated-2", run_id="gated-2")
    await rt.submit(quick, Order(8, []), key="delayed", run_id="delayed", delay=2000)
    await rt.submit(quick, Order(9, []), key="delayed", run_id="delayed-2", delay=1000)
    # Runs that are held.
    await rt.submit(naps, 1000, key="paused", run_id="paused")
    await rt.submit(quick, Order(10, []), key="paused", run_id="behind-paused")
    await rt.pause_key("paused-key")
    await rt.submit(quick, Order(11, []), key="paused-key", run_id="under-paused-key")
    await rt.submit(quick, Order(12, []), key="paused-2", run_id="delayed-paused", delay=500)
    # Compensation, continue_as, children.
    await rt.submit(journey, key="journey", run_id="cancelled-compensated")
    await rt.submit(loops, 1, key="loops", run_id="continued")
    await rt.submit(parent, key="parent", run_id="parent")
    await rt.submit(quick, Order(14, []), key="leaf", run_id="behind-child")
    # A key that yields: both runs wait, and a third one ran meanwhile.
    await rt.submit(polite, "first", key="polite", run_id="polite-1")
    await rt.submit(polite, "second", key="polite", run_id="polite-2")
    await rt.submit(quick, Order(15, []), key="polite", run_id="ahead")
    # Concurrency, machines, graphs, groups, schedules.
    await rt.submit(single, key="single", run_id="single-1")
    await rt.submit(single, key="single-2", run_id="single-2")
    await rt.submit(timed, None, key="timed", run_id="timed")
    await rt.submit(signalled, None, key="signalled", run_id="signalled")
    await rt.submit(diamond, "d", key="diamond", run_id="diamond")
    await rt.submit(review, "r", key="review", run_id="review")
    await rt.submit(review, "r", key="review-2", run_id="review-2")
    members: list[Member[Any, Any]] = [
        Member(quick, Order(16, []), key="g-done", member_id="done"),
        Member(naps, 1000, key="g-open", member_id="open"),
    ]
    await rt.submit_group("group", members)
    await rt.schedule("schedule", quick, Order(17, []), key="schedule", when=Every(3600))
    await rt.schedule("busy", naps, 250, key="busy", when=Every(100))
    await rt.schedule("paused", quick, Order(18, []), key="schedule", when=Every(60), paused=True)
    # Redriven: one is in its second generation, one waits for its turn in it.
    await rt.submit(pays, key="redriven", run_id="redriven")
    await rt.submit(pays, key="redriven-pending", run_id="redriven-pending")
    # An entity: one call has been answered.
    await rt.call(Account, "account", "deposit", 10, request_id="one")
    # A key whose actor crashes.
    await rt.submit(quick, Order(19, []), key="buggy", run_id="buggy")

    await trio.sleep(150)
    await rt.cancel("cancelled")
    await rt.pause("paused")
    await rt.pause("delayed-paused")
    await rt.approve("gated", "first", by="Ann")
    for payload in (1, 2):
        await rt.signal("buffered", "news", payload, signal_id=f"news-{payload}")
    await rt.signal("waits", "news", "heard")
    await rt.signal("signalled", "next", "one")
    await trio.sleep(100)
    await rt.forget("forgotten")
    await rt.submit(naps, 1000, key="redriven-pending", run_id="before-redriven")
    healthy = True
    await rt.redrive("redriven-pending")
    await rt.submit(trip, key="trip", run_id="compensated")
    await rt.submit(quick, Order(13, []), key="trip", run_id="behind-compensated")
    await rt.cancel("cancelled-compensated")
    # Steps that the crash interrupts.
    await rt.submit(steps, key="running", run_id="running")
    await rt.submit(sends, key="sends", run_id="at-most-once")
    await rt.submit(stubborn, key="stubborn", run_id="cancelling")
    await rt.redrive("redriven")
    for name, amount, seconds in (("two", 20, 1000), ("three", 30, 0), ("four", 40, 0)):
        call = partial(rt.call, Account, "account", "deposit", amount, seconds, request_id=name)
        clients.start_soon(_unanswered, call)
        await trio.sleep(1)
    await rt.signal("polite-2", "go", "goes")
    await trio.sleep(149)
    await rt.cancel("cancelling")
    await trio.sleep(1)
    clients.cancel_scope.cancel()


async def _unanswered(call: Callable[[], Awaitable[object]]) -> None:
    """Make a call that the crash cuts off."""
    await call()
    raise AssertionError("the call was answered before the crash")


def _number(store: MemoryStore, run_id: str) -> bytes:
    key = b"default\0" + run_id.encode()
    (number,) = unseal("ids", key, store._tables["ids"].records[key])
    return int(number).to_bytes(8)


def _records(store: MemoryStore, table: str, run_id: str) -> list[bytes]:
    """The keys of the records of a run."""
    prefix = b"default\0" + _number(store, run_id)
    return [key for key in store._tables[table].keys if key.startswith(prefix)]


def write(path: Path, store: MemoryStore, before: list[str]) -> None:
    """Keep a store, and the effects up to the crash."""
    kept = {"effects": before, "records": dump(store)}
    path.write_text(json.dumps(kept, indent=1) + "\n")


async def read(path: Path, store: Store) -> list[str]:
    """Fill a store with what a file has, and return the effects up to the crash."""
    kept = json.loads(path.read_text())
    await restore(store, kept["records"])
    return list(kept["effects"])
