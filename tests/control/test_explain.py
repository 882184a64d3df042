"""`GET /v1/runs/{run_id}/explain` gives one cause and one sentence for everything that a run can
wait for."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from keyrun import Context, Entity, Graph, NodeInput, Retry, current_step, entity, step, workflow
from keyrun.policies import CircuitBreaker, RateLimit, Resources
from keyrun.status import Cause
from keyrun.storage import MemoryStore
from tests.control.world import Client, client_of, served

LONG = 1000.0


async def _last() -> None:
    await trio.sleep(LONG)


breaker = CircuitBreaker(failure_rate=0.5, minimum_calls=1, open_for=LONG)
busy = step(name="busy", timeout=None)(_last)
limited = step(name="limited", timeout=None, rate=RateLimit(1, per=LONG))(_last)
narrow = step(name="narrow", timeout=None, max_concurrent=1)(_last)
large = step(name="large", timeout=None, resources=Resources(cpu=1))(_last)


@step(breaker=breaker, retry=Retry.none())
async def broken() -> None:
    raise ValueError("no")


@step(retry=Retry.fixed(max_attempts=2, delay=50, jitter=0))
async def flaky() -> None:
    raise ValueError("no")


STEPS = {
    "busy": busy,
    "limited": limited,
    "narrow": narrow,
    "large": large,
    "broken": broken,
    "flaky": flaky,
}


@workflow
async def call(ctx: Context, name: str) -> None:
    await ctx.step(STEPS[name])


@workflow
async def pause(ctx: Context) -> None:
    await ctx.sleep(50)


@workflow
async def listen(ctx: Context) -> None:
    await ctx.wait_signal("go", timeout=50)


@workflow
async def ask(ctx: Context) -> None:
    await ctx.approval("boss")


@workflow
async def parent(ctx: Context) -> None:
    await ctx.child(ask, None, key="other")


@workflow(instances=1)
async def single(ctx: Context) -> None:
    await ctx.sleep(LONG)


async def _produce(given: NodeInput) -> None: ...


async def _consume(given: NodeInput) -> None:
    await trio.sleep(LONG)


crowded = Graph("crowded")
crowded.node("produce", _produce)
crowded.node("consume", _consume, max_concurrent=1, max_waiting=1, timeout=None)
crowded.edge("produce", "consume")


@entity(name="Slow")
class Slow(Entity):
    async def work(self) -> None:
        await trio.sleep(LONG)


WORKFLOWS = [call, pause, listen, ask, parent, single, crowded]
OPTIONS = {
    "workflows": WORKFLOWS,
    "entities": [Slow],
    "max_concurrent_steps": 4,
    "resources": Resources(cpu=1),
    "drain_timeout": 0,
}

Prepare = Callable[[Client], Awaitable[None]]


def runs(*submitted: dict[str, Any]) -> Prepare:
    """Return a function that submits runs. The last one is the run `r` of the key `k`."""

    async def prepare(client: Client) -> None:
        for number, each in enumerate(submitted):
            named = {"key": f"key-{number}", "run_id": f"run-{number}"}
            if number == len(submitted) - 1:
                named = {"key": "k", "run_id": "r"}
            await client.good("POST", "/v1/runs", {**named, **each})
            await trio.testing.wait_all_tasks_blocked()

    return prepare


def of(name: str, **more: Any) -> dict[str, Any]:
    return {"workflow": "call", "input": name, **more}


def wait(name: str, **more: Any) -> dict[str, Any]:
    return {"workflow": name, **more}


def after(path: str, then: Prepare) -> Prepare:
    """Return a function that sends a request first."""

    async def prepare(client: Client) -> None:
        await client.good("POST", path)
        await then(client)

    return prepare


CASES: list[tuple[Cause, Prepare, str, dict[str, Any]]] = [
    (Cause.RUNNING, runs(of("busy")), "is running busy (attempt 1).", {"step": "busy"}),
    (
        Cause.QUEUED,
        runs(of("busy", key="k", run_id="first"), of("busy")),
        "waits behind run first of its key, which is running busy (attempt 1).",
        {"holder": "first"},
    ),
    (Cause.SLOT, runs(*[of("busy")] * 5), "waits for a slot", {}),
    (
        Cause.RATE_LIMIT,
        runs(of("limited"), of("limited")),
        "has not started limited, which waits for its rate limit.",
        {"step": "limited"},
    ),
    (
        Cause.CIRCUIT,
        runs(of("broken"), of("broken")),
        "has not started broken, which waits for its circuit breaker, which is open.",
        {"step": "broken"},
    ),
    (Cause.RESOURCES, runs(of("large"), of("large")), "has not started large", {"step": "large"}),
    (
        Cause.MAX_CONCURRENT,
        runs(of("narrow"), of("narrow")),
        "because of its max_concurrent.",
        {"step": "narrow"},
    ),
    (
        Cause.MAX_WAITING,
        runs(wait("crowded"), wait("crowded"), wait("crowded")),
        "has not started produce, which waits, because as many calls of a later node wait as its "
        "max_waiting allows.",
        {"step": "produce"},
    ),
    (
        Cause.INSTANCES,
        runs(wait("single"), wait("single")),
        "waits until another run of its workflow has ended",
        {},
    ),
    (
        Cause.PAUSED,
        after("/v1/keys/k/pause", runs(of("busy"))),
        "is paused, because its key is paused by uid 1000 since 2023-11-14 22:13:20 UTC.",
        {"holder": "key", "by": "uid 1000"},
    ),
    (
        Cause.PAUSED,
        after("/v1/pause", runs(of("busy"))),
        "is paused, because the runtime is paused by uid 1000 since 2023-11-14 22:13:20 UTC.",
        {"holder": "runtime", "by": "uid 1000"},
    ),
    (
        Cause.BACKOFF,
        runs(of("flaky")),
        "waits until 2023-11-14 22:14:10 UTC before the next attempt of flaky.",
        {"step": "flaky", "until": "2023-11-14T22:14:10.000000Z"},
    ),
    (
        Cause.TIMER,
        runs(wait("pause")),
        "waits for a timer until 2023-11-14 22:14:10 UTC.",
        {"until": "2023-11-14T22:14:10.000000Z"},
    ),
    (
        Cause.SIGNAL,
        runs(wait("listen")),
        "waits for the signal 'go' until 2023-11-14 22:14:10 UTC.",
        {"holder": "go", "until": "2023-11-14T22:14:10.000000Z"},
    ),
    (Cause.APPROVAL, runs(wait("ask")), "a decision at the gate 'boss'.", {"holder": "boss"}),
    (
        Cause.CHILD,
        runs(wait("parent")),
        "under key other, which waits for a decision at the gate 'boss'.",
        {"holder_key": "other"},
    ),
    (
        Cause.DELAYED,
        runs(of("busy", delay=50)),
        "is delayed until 2023-11-14 22:14:10 UTC.",
        {"until": "2023-11-14T22:14:10.000000Z"},
    ),
]


@pytest.mark.parametrize(
    ("cause", "prepare", "says", "fields"),
    CASES,
    ids=[f"{each[0]}-{each[2][-20:]}" for each in CASES],
)
async def test_a_run_names_what_it_waits_for(
    cause: Cause, prepare: Prepare, says: str, fields: dict[str, Any], autojump_clock: Any
) -> None:
    async with served(options=OPTIONS) as client:
        await prepare(client)
        await trio.testing.wait_all_tasks_blocked()
        found = await client.good("GET", "/v1/runs/r/explain")
        of_key = await client.good("GET", "/v1/keys/k/explain")
    assert (found["cause"], found["run_id"], found["key"]) == (cause, "r", "k")
    assert found["sentence"].startswith("Run r ")
    assert says in found["sentence"]
    assert fields.items() <= found.items()
    if cause not in (Cause.QUEUED, Cause.DELAYED):
        assert of_key == found


@pytest.mark.parametrize("evict_after", [1, LONG], ids=["evicted", "in memory"])
async def test_a_run_that_was_paused_names_who_did_it_and_what_it_waits_for(
    evict_after: float, autojump_clock: Any
) -> None:
    async with served(options={**OPTIONS, "evict_after": evict_after}) as client:
        await runs(wait("listen"))(client)
        assert await client.good("POST", "/v1/runs/r/pause") == {"result": True}
        await trio.sleep(5)
        assert client.rt.statistics().live == (1 if evict_after > 5 else 0)
        found = await client.good("GET", "/v1/runs/r/explain")
    assert (found["cause"], found["holder"], found["by"]) == ("paused", "run", "uid 1000")
    assert found["sentence"] == (
        "Run r is paused by uid 1000 since 2023-11-14 22:13:20 UTC until it is resumed, and waits "
        "for the signal 'go' until 2023-11-14 22:14:10 UTC."
    )


@pytest.mark.parametrize("calls", [1, 3])
async def test_a_run_behind_a_call_of_an_entity_names_the_call(
    calls: int, autojump_clock: Any
) -> None:
    async with served(options=OPTIONS) as client, trio.open_nursery() as nursery:
        for _ in range(calls):
            nursery.start_soon(client.call, "POST", "/v1/entities/Slow/k/work", {})
            await trio.testing.wait_all_tasks_blocked()
        of_key = await client.good("GET", "/v1/keys/k/explain")
        assert (of_key["cause"], of_key["run_id"]) == ("call", None)
        assert of_key["sentence"] == "Key k is running the call of Slow.work, and no run holds it."
        await runs(of("busy"))(client)
        found = await client.good("GET", "/v1/runs/r/explain")
        assert found == await client.good("GET", "/v1/keys/k/explain")
        nursery.cancel_scope.cancel()
    assert (found["cause"], found["holder"]) == ("call", "Slow.work")
    assert found["sentence"] == "Run r waits behind the call of Slow.work, which runs."


async def test_a_run_behind_a_call_that_waits_for_a_slot_names_the_call(
    autojump_clock: Any,
) -> None:
    async with served(options=OPTIONS) as client, trio.open_nursery() as nursery:
        await runs(*[of("busy", key=f"b{n}", run_id=f"b{n}") for n in range(4)])(client)
        nursery.start_soon(client.call, "POST", "/v1/entities/Slow/k/work", {})
        await trio.testing.wait_all_tasks_blocked()
        await runs(of("busy"))(client)
        found = await client.good("GET", "/v1/runs/r/explain")
        nursery.cancel_scope.cancel()
    assert (found["cause"], found["holder"]) == ("call", "Slow.work")
    assert found["sentence"] == "Run r waits behind a call of Slow.work."


async def test_a_quarantined_run_names_the_reason(autojump_clock: Any) -> None:
    store = MemoryStore()
    async with served(options={**OPTIONS, "store": store}) as client:
        await runs(wait("pause"))(client)
    async with served(options={**OPTIONS, "store": store, "workflows": [call]}) as client:
        await trio.testing.wait_all_tasks_blocked()
        found = await client.good("GET", "/v1/runs/r/explain")
    assert found["cause"] == "quarantined"
    assert "is quarantined (unregistered): " in found["sentence"]


async def test_an_ended_run_and_an_idle_key_say_so(autojump_clock: Any) -> None:
    async with served() as client:
        run = {"workflow": "greet", "input": "ann", "key": "k", "run_id": "r"}
        await client.good("POST", "/v1/runs", run)
        await client.good("GET", "/v1/runs/r?wait=5")
        found = await client.good("GET", "/v1/runs/r/explain")
        assert (found["cause"], found["sentence"]) == (
            "ended",
            "Run r has succeeded at 2023-11-14 22:13:20 UTC.",
        )
        assert (await client.good("GET", "/v1/keys/k/explain"))["cause"] == "idle"


async def test_a_runtime_that_closes_names_the_drain(autojump_clock: Any) -> None:
    seen: list[Any] = []

    @step(timeout=None, shield=True)
    async def stubborn() -> None:
        await trio.sleep(2)
        client = client_of(current_step().runtime)
        seen.append(await client.good("GET", "/v1/runs/next/explain"))

    @workflow
    async def slow(ctx: Context) -> None:
        await ctx.step(stubborn)

    options = {"workflows": [slow], "max_concurrent_steps": 1, "drain_timeout": 0}
    async with served(options=options) as client:
        for run_id in ("first", "next"):
            run = {"workflow": "slow", "key": run_id, "run_id": run_id}
            await client.good("POST", "/v1/runs", run)
        await trio.sleep(1)
    assert [each["cause"] for each in seen] == ["draining"]
