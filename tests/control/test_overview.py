"""The overview and the errors of dead letters: what the web page asks all the time."""

from typing import Any

import pytest
import trio

from keyrun import Context, step, workflow
from tests.control.world import Client, greet, served, wait_for_boss, wait_for_go


async def test_the_overview_counts_runs_attempts_and_commits(autojump_clock: Any) -> None:
    async with served() as client:
        first = await client.good("GET", "/v1/overview")
        assert first["runs"] == {}
        assert first["oldest_pending"] is None
        for number in range(3):
            await (await client.rt.submit(greet, "ann", key=f"g{number}")).result()
        await client.rt.submit(wait_for_go, key="a", run_id="a")
        await client.rt.submit(wait_for_boss, key="b", run_id="b")
        await client.rt.submit(greet, "broken", key="c", run_id="c")
        await trio.sleep(10)
        await client.rt.submit(greet, "bob", key="a", run_id="behind")
        await trio.sleep(5)
        found = await client.good("GET", "/v1/overview")
        assert found["runs"] == {"waiting": 2, "pending": 1}
        assert found["ended"] == {"succeeded": 3, "failed": 1}
        assert found["dead_letters"] == 1
        assert found["attempts"] == 3 + 3
        assert found["oldest_pending"] == pytest.approx(5)
        assert found["slots"] > 0
        assert found["statistics"] == await client.good("GET", "/v1/statistics")
        commits = found["commit_seconds"]
        assert len(commits["cumulative"]) == len(commits["bounds"]) + 1
        assert commits["cumulative"][-1] == found["statistics"]["commits"]["commits"]
        assert not found["paused"]
        await client.good("POST", "/v1/pause", {})
        assert (await client.good("GET", "/v1/overview"))["paused"]


async def test_a_search_through_many_runs_is_not_repeated_at_once(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks: ten pages cost as much as one."""
    async with served() as client:
        now = 1000.0
        monkeypatch.setattr("keyrun.control.overview.perf_counter", lambda: now)
        search = client.api._performer.runtime._overview._search
        took = 0.02

        async def slowly() -> None:
            nonlocal now
            await search()
            now += took

        monkeypatch.setattr(client.api._performer.runtime._overview, "_search", slowly)
        assert (await client.good("GET", "/v1/overview"))["runs"] == {}
        await client.rt.submit(wait_for_go, key="a")
        await trio.sleep(1)
        now += 1.9
        assert (await client.good("GET", "/v1/overview"))["runs"] == {}
        now += 0.2
        assert (await client.good("GET", "/v1/overview"))["runs"] == {"waiting": 1}


@step
async def charge(amount: int) -> None:
    if amount < 0:
        raise ValueError("negative")
    raise ConnectionError("refused")


@workflow
async def pay(ctx: Context, amount: int) -> None:
    await ctx.step(charge, 1 if amount else -1)


@workflow
async def decide(ctx: Context, _: None) -> None:
    raise LookupError("nothing to decide")


async def errors(client: Client, query: str = "") -> list[tuple[Any, ...]]:
    """Return the errors of all pages, added up."""
    found: dict[tuple[Any, ...], int] = {}
    cursor, more = "", True
    while more:
        page = await client.good("GET", f"/v1/dead-letters/errors?{query}{cursor}")
        for each in page["errors"]:
            about = each["workflow"], each["step"], each["kind"], each["error"]
            found[about] = found.get(about, 0) + each["runs"]
        more, cursor = page["cursor"] is not None, f"&cursor={page['cursor']}"
    return [(*about, runs) for about, runs in found.items()]


async def test_dead_letters_are_counted_by_error_page_by_page(autojump_clock: Any) -> None:
    async with served(options={"workflows": [pay, decide]}) as client:
        for number in range(7):
            await client.rt.submit(pay, number % 3, key=f"k{number}", run_id=f"pay-{number}")
            await trio.sleep(30)
        await client.rt.submit(decide, key="d", run_id="decide")
        await trio.sleep(30)
        page = await client.good("GET", "/v1/dead-letters/errors")
        first = page["errors"][0]
        assert (page["examined"], page["cursor"]) == (8, None)
        assert (first["error"], first["step"], first["runs"]) == (
            "builtins.ConnectionError",
            "charge",
            4,
        )
        assert first["newest_run_id"] == "pay-5"
        assert "refused" in first["reason"]
        assert first["newest_at"] == (await client.good("GET", "/v1/runs/pay-5"))["ended_at"]
        expected = [
            ("decide", None, "workflow_error", "builtins.LookupError", 1),
            ("pay", "charge", "step_failed", "builtins.ConnectionError", 4),
            ("pay", "charge", "step_failed", "builtins.ValueError", 3),
        ]
        assert sorted(await errors(client), key=repr) == expected
        assert sorted(await errors(client, "limit=3"), key=repr) == expected
        assert await errors(client, "limit=3&workflow=decide") == expected[:1]


async def test_a_session_names_the_namespace_and_the_version(autojump_clock: Any) -> None:
    async with served() as client:
        found = await client.good("GET", "/v1/session")
        assert found["namespace"] == client.api._performer.namespace
        assert found["read_only"] is None


async def test_a_schedule_has_its_next_firings_as_times(autojump_clock: Any) -> None:
    async with served() as client:
        plan = {"workflow": "wait_for_go", "key": "k", "when": {"every": 60}}
        made = await client.good("PUT", "/v1/schedules/tick", plan)
        assert len(made["next_times"]) == 5
        assert made["next_times"][0] == made["next_at"]
        assert all(each.endswith("Z") for each in made["next_times"])
