"""Bulk operations: a filter, a preview, and pages."""

from typing import Any

import pytest
import trio

from keyrun import Context, RunFailed, State, workflow
from keyrun.control.roles import Role
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime
from tests.control.world import (
    Client,
    client_of,
    greet,
    served,
    shout,
    wait_for_boss,
    wait_for_go,
)


async def waiting(client: Client, count: int) -> None:
    for number in range(count):
        await client.rt.submit(wait_for_go, key=f"k{number % 2}", run_id=f"r{number}", tags=["t"])


async def test_a_bulk_operation_is_previewed_and_then_done(autojump_clock: Any) -> None:
    async with served() as client:
        await waiting(client, 10)
        seen = await client.good("POST", "/v1/bulk/cancel", {"key": "k0"})
        assert seen["preview"]
        assert (seen["matched"], seen["changed"], seen["cursor"]) == (5, 0, None)
        assert seen["examples"] == ["r0", "r2", "r4", "r6", "r8"]
        assert (await client.rt.status("r0")).state == "waiting"
        done = await client.good("POST", "/v1/bulk/cancel", {"key": "k0", "preview": False})
        assert (done["matched"], done["changed"], done["failed"]) == (5, 5, 0)
        assert [each.run_id for each in await client.rt.runs(state="cancelled")] == seen["examples"]


async def test_a_bulk_operation_continues_at_its_cursor_under_one_id(autojump_clock: Any) -> None:
    """A page that is repeated gets its own first answer."""
    async with served() as client:
        await waiting(client, 7)
        changed, cursor = [], None
        headers = [("idempotency-key", "all-of-t")]
        while True:
            wanted = {"tag": "t", "limit": 3, "cursor": cursor, "preview": False}
            done = await client.good("POST", "/v1/bulk/pause", wanted, headers=headers)
            again = await client.good("POST", "/v1/bulk/pause", wanted, headers=headers)
            assert again == done
            changed.append(done["changed"])
            cursor = done["cursor"]
            if cursor is None:
                break
        assert sum(changed) == 7
        assert max(changed) == 3


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({}, "at least one filter"),
        ({"preview": False}, "at least one filter"),
        ({"state": []}, "at least one filter"),
        ({"key": None, "limit": 5}, "at least one filter"),
        ({"key": "k", "limit": 1001}, "limit must be"),
        ({"key": "k", "limit": 0}, "limit must be"),
        ({"key": "k", "cursor": "x"}, "cursor"),
        ({"state": ["succeeded"]}, "can be changed by cancel"),
    ],
)
async def test_a_bulk_operation_without_limits_is_refused(
    body: dict[str, Any], complaint: str, autojump_clock: Any
) -> None:
    async with served() as client:
        await waiting(client, 2)
        answer = await client.call("POST", "/v1/bulk/cancel", body)
        assert answer.status == 422
        assert complaint in answer.json["detail"]
        assert (await client.rt.status("r0")).state == "waiting"


async def test_an_unknown_action_is_refused(autojump_clock: Any) -> None:
    async with served() as client:
        answer = await client.call("POST", "/v1/bulk/submit", {"key": "k"})
        assert answer.status == 422


async def test_runs_that_match_are_signalled_with_one_payload(autojump_clock: Any) -> None:
    async with served() as client:
        await waiting(client, 6)
        wanted = {"key": "k0", "name": "go", "payload": {"$bytes": "eA=="}, "preview": False}
        headers = [("idempotency-key", "go-1")]
        for _ in range(2):
            done = await client.good("POST", "/v1/bulk/signal", wanted, headers=headers)
            assert (done["matched"], done["changed"], done["failed"]) == (3, 3, 0)
        assert [await client.rt.run(f"r{at}").result() for at in (0, 2, 4)] == [b"x"] * 3
        assert {each.state for each in await client.rt.runs(key="k1")} <= {"waiting", "pending"}


@pytest.mark.parametrize("action", ["approve", "reject"])
async def test_runs_that_wait_at_a_gate_are_decided(action: str, autojump_clock: Any) -> None:
    async with served() as client:
        await waiting(client, 2)
        for number in range(3):
            await client.rt.submit(wait_for_boss, key=f"b{number}", run_id=f"b{number}", tags=["t"])
        await trio.sleep(1)
        wanted = {"tag": "t", "gate": "boss", "by": "ann", "comment": "all of them"}
        seen = await client.good("POST", f"/v1/bulk/{action}", wanted)
        assert (seen["matched"], seen["changed"]) == (3, 0)
        assert seen["examples"] == ["b0", "b1", "b2"]
        done = await client.good("POST", f"/v1/bulk/{action}", {**wanted, "preview": False})
        assert (done["matched"], done["changed"], done["failed"]) == (3, 3, 0)
        await trio.sleep(1)
        ended = "succeeded" if action == "approve" else "failed"
        assert len(await client.rt.runs(workflow="wait_for_boss", state=ended)) == 3
        entry = (await client.rt.audit(run_id="b1")).entries[0]
        assert (entry.operation, "ann" in entry.summary) == (action, True)


async def test_the_keys_of_runs_that_are_quarantined_are_released(autojump_clock: Any) -> None:
    words = ["as it was"]

    @workflow
    async def changeable(ctx: Context) -> Any:
        await ctx.step(shout, words[0])
        return await ctx.wait_signal("go")

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[changeable]) as rt:
        for number in range(3):
            await rt.submit(changeable, key=f"k{number}", run_id=f"r{number}")
        await trio.sleep(1)
    words[0] = "changed"
    async with open_test_runtime(store, workflows=[changeable]) as rt:
        client = client_of(rt)
        await trio.sleep(1)
        for number in range(3):
            await rt.signal(f"r{number}", "go")
        await trio.sleep(1)
        assert len(await rt.runs(state=State.QUARANTINED)) == 3
        words[0] = "as it was"
        wanted = {"workflow": "changeable", "preview": False}
        done = await client.good("POST", "/v1/bulk/release_key", wanted)
        assert (done["matched"], done["changed"], done["failed"]) == (3, 3, 0)
        await trio.sleep(1)
        assert len(await rt.runs(state=State.SUCCEEDED)) == 3


@pytest.mark.parametrize(
    ("action", "body", "complaint"),
    [
        ("cancel", {"name": "go"}, "cancel has no argument 'name'"),
        ("signal", {}, "signal requires the argument 'name'"),
        ("approve", {"gate": "boss"}, "approve requires the argument 'by'"),
        ("approve", {"by": "ann"}, "approve requires the argument 'gate'"),
        ("signal", {"name": "go", "payload": {"$bytes": "!"}}, "payload["),
        ("release_key", {"payload": 7}, "release_key has no argument 'payload'"),
    ],
)
async def test_arguments_that_the_action_does_not_take_or_that_are_missing_are_refused(
    action: str, body: dict[str, Any], complaint: str, autojump_clock: Any
) -> None:
    async with served() as client:
        answer = await client.call("POST", f"/v1/bulk/{action}", {"key": "k", **body})
        assert answer.status == 422
        assert complaint in answer.json["detail"]


async def test_failed_runs_are_redriven_and_forgotten(autojump_clock: Any) -> None:
    async with served() as client:
        for number in range(3):
            run = await client.rt.submit(greet, "broken", key="k", run_id=f"r{number}")
            with pytest.raises(RunFailed):
                await run.result()
        wanted = {"workflow": "greet", "preview": False}
        assert (await client.good("POST", "/v1/bulk/redrive", wanted))["changed"] == 3
        for number in range(3):
            with pytest.raises(RunFailed):
                await client.rt.run(f"r{number}").result()
        assert (await client.good("POST", "/v1/bulk/forget", wanted))["changed"] == 3
        assert await client.rt.runs() == []


async def test_a_bulk_operation_requires_the_role_of_its_action(autojump_clock: Any) -> None:
    from keyrun.control.guard import ApplicationGuard

    guard = ApplicationGuard(lambda _: ("ann", Role.OPERATE), None, ["*"])
    async with served(guard=guard) as client:
        headers = [("host", "x"), ("sec-fetch-site", "same-origin")]
        body = {"key": "k"}
        answer = await client.call("POST", "/v1/bulk/forget", body, headers=headers)
        assert answer.status == 403
        answer = await client.call("POST", "/v1/bulk/cancel", body, headers=headers)
        assert answer.status == 200
