"""Bulk operations: a filter, a preview, and pages."""

from typing import Any

import pytest

from keyrun import RunFailed
from keyrun.control.roles import Role
from tests.control.world import Client, greet, served, wait_for_go


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
        answer = await client.call("POST", "/v1/bulk/approve", {"key": "k"})
        assert answer.status == 422


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
