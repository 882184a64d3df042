"""The audit log: who did what, when, and with which result, for every write of the table."""

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from keyrun import Entity, entity
from keyrun.control.guard import TokenGuard
from keyrun.control.roles import Caller, Role
from keyrun.control.table import OPERATIONS
from keyrun.control.tokens import TokenFile
from keyrun.groups import Member
from keyrun.runtime.records.operation import AuditEntry
from keyrun.schedules import Every
from tests.control.sockets import listening
from tests.control.test_hostile_frames import Peer, call
from tests.control.world import Client, greet, served, wait_for_boss, wait_for_go

NEW = {"workflow": "wait_for_go", "key": "n", "run_id": "new"}
RUN = "/v1/runs/waits"
WRITES: dict[str, tuple[str, Any, str | None, dict[str, Any]]] = {
    "submit": ("/v1/runs", NEW, "new", {"key": "n"}),
    "submit_many": ("/v1/batches", {"runs": [NEW]}, "new", {"result": "1 of 1: new"}),
    "submit_or_signal": (
        "/v1/runs/new/submit-or-signal",
        {"workflow": "wait_for_go", "key": "n", "name": "go"},
        "new",
        {"run_id": "new", "key": "n"},
    ),
    "signal": (f"{RUN}/signals/go", {}, "waits", {"run_id": "waits", "result": "delivered"}),
    "approve": (
        "/v1/runs/gated/gates/boss/approve",
        {"by": "ann"},
        "gated",
        {"run_id": "gated", "summary": "by='ann', gate='boss'"},
    ),
    "reject": ("/v1/runs/gated/gates/boss/reject", {"by": "ann"}, "gated", {"run_id": "gated"}),
    "cancel": (f"{RUN}/cancel", {}, "waits", {"run_id": "waits", "key": "k", "result": "True"}),
    "pause": (f"{RUN}/pause", {}, "waits", {"run_id": "waits", "result": "True"}),
    "resume": (f"{RUN}/resume", {}, "waits", {"run_id": "waits", "result": "False"}),
    "redrive": ("/v1/runs/failed/redrive", {}, "failed", {"run_id": "failed", "result": "2"}),
    "forget": ("/v1/runs/failed", None, None, {"run_id": "failed", "key": "f"}),
    "pause_key": ("/v1/keys/k/pause", {}, None, {"key": "k"}),
    "resume_key": ("/v1/keys/k/resume", {}, None, {"key": "k"}),
    "release_key": ("/v1/keys/k/release", {}, None, {"key": "k", "result": "False"}),
    "call": (
        "/v1/entities/Account/a/deposit",
        {"args": [1]},
        None,
        {"key": "a", "summary": "entity='Account', method='deposit'"},
    ),
    "bulk": (
        "/v1/bulk/cancel",
        {"key": "k", "state": ["waiting"], "preview": False},
        "waits",
        {"key": "k", "result": "1 changed"},
    ),
    "pause_all": ("/v1/pause", {}, None, {}),
    "resume_all": ("/v1/resume", {}, None, {}),
    "submit_group": (
        "/v1/groups/new",
        {"members": [{"workflow": "wait_for_go", "key": "n"}]},
        None,
        {"target": "new"},
    ),
    "cancel_group": ("/v1/groups/g/cancel", {}, "g-0", {"target": "g", "result": "1"}),
    "schedule": (
        "/v1/schedules/new",
        {"workflow": "greet", "input": "x", "key": "n", "when": {"every": 60}},
        None,
        {"target": "new", "key": "n"},
    ),
    "pause_schedule": ("/v1/schedules/s/pause", {}, None, {"target": "s", "result": "True"}),
    "resume_schedule": ("/v1/schedules/s/resume", {}, None, {"target": "s"}),
    "delete_schedule": ("/v1/schedules/s", None, None, {"target": "s", "result": "True"}),
    "discard_outcomes": ("/v1/outbox", None, None, {"result": "0"}),
}
"""The path and the body of each write, the run whose history shows it, and what its entry says."""


@entity
class Fragile(Entity):
    async def fail(self) -> None:
        raise ValueError("it broke")


async def scene(client: Client) -> None:
    """Prepare what the writes change."""
    rt = client.rt
    await rt.submit(wait_for_go, key="k", run_id="waits")
    await rt.submit(wait_for_boss, key="b", run_id="gated")
    await rt.submit(greet, "broken", key="f", run_id="failed")
    await rt.schedule("s", greet, "x", key="s", when=Every(1e6))
    await rt.submit_group("g", [Member(wait_for_go, None, key="g")])
    await trio.sleep(100)


async def log(client: Client) -> list[AuditEntry]:
    return list((await client.rt.audit()).entries)


@pytest.mark.parametrize("name", [name for name, each in OPERATIONS.items() if each.writes])
async def test_a_write_is_in_the_audit_log_and_in_the_history_of_its_run(
    name: str, tmp_path: Path, autojump_clock: Any
) -> None:
    path, body, run_id, said = WRITES[name]
    tokens = TokenFile.create(tmp_path / "tokens", name="ann")
    secret = tokens.path.read_text().split()[-3]
    async with served(guard=TokenGuard(tokens)) as client:
        await scene(client)
        if name in ("redrive", "forget"):
            assert (await client.rt.status("failed")).state == "failed"
        now = client.rt._partition.state.wall()
        headers = [("authorization", f"Bearer {secret}")]
        answer = await client.call(OPERATIONS[name].verb, path, body, headers=headers, state={})
        assert answer.status == 200, answer.body
        entries = [each for each in await log(client) if each.operation == name]
        assert len(entries) == 1
        (entry,) = entries
        assert (entry.who, entry.role, entry.error) == ("ann", "admin", None)
        assert now <= entry.at < now + 10
        assert entry.result
        for field, value in said.items():
            assert getattr(entry, field) == value, field
        if run_id is not None:
            if name == "cancel_group":
                (run_id,) = [each.run_id for each in await client.rt.runs(state="cancelled")]
            history = await client.rt.history(run_id)
            details = [each.detail for each in history if each.event == "operation"]
            wanted = "cancel" if name == "bulk" else name
            assert [each.startswith(f"{wanted} by ann") for each in details] == [True], details
        assert secret not in repr(await log(client))


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/v1/runs/nope/signals/go", {}, "UnknownRun"),
        ("/v1/runs/failed/signals/go", {}, "RunEnded"),
        ("/v1/runs/waits/gates/boss/approve", {"by": "ann"}, "GateNotWaiting"),
        (
            "/v1/runs",
            {**NEW, "run_id": "waits", "workflow": "greet", "input": "x"},
            "InputMismatch",
        ),
        ("/v1/groups/nope/cancel", {}, "UnknownGroup"),
        ("/v1/entities/Fragile/a/fail", {}, "builtins.ValueError"),
    ],
)
async def test_a_write_that_fails_is_in_the_audit_log_with_its_error(
    path: str, body: Any, error: str, autojump_clock: Any
) -> None:
    async with served(options={"entities": [Fragile]}) as client:
        await scene(client)
        assert (await client.call("POST", path, body)).status >= 400
        (entry,) = await log(client)
        assert (entry.who, entry.error) == ("uid 1000", error)
        assert entry.result != "done"


async def test_each_run_of_a_batch_has_the_batch_in_its_history(autojump_clock: Any) -> None:
    async with served() as client:
        lines = b"".join(
            b'{"workflow": "greet", "input": "x", "key": "k", "run_id": "r%d"}\n' % number
            for number in range(20)
        )
        headers = [("content-type", "application/x-ndjson")]
        await client.call("POST", "/v1/runs", body=lines, headers=headers)
        (entry,) = await log(client)
        assert entry.result.startswith("20 of 20: r0, r1, ")
        assert entry.result.endswith("r9, ...")
        for number in (0, 19):
            history = await client.rt.history(f"r{number}")
            (said,) = [each.detail for each in history if each.event == "operation"]
            assert said.startswith("submit_many by uid 1000")


async def test_a_bulk_operation_has_one_entry_per_call_and_one_per_run(autojump_clock: Any) -> None:
    async with served() as client:
        for number in range(5):
            await client.rt.submit(wait_for_go, key="k", run_id=f"r{number}", tags=["t"])
        wanted = {"tag": "t", "limit": 3, "preview": False}
        headers = [("idempotency-key", "cleanup")]
        await client.good("POST", "/v1/bulk/cancel", {"tag": "t"}, headers=headers)
        assert await log(client) == [], "a preview writes nothing"
        first = await client.good("POST", "/v1/bulk/cancel", wanted, headers=headers)
        again = await client.good("POST", "/v1/bulk/cancel", wanted, headers=headers)
        assert again == first
        rest = wanted | {"cursor": first["cursor"]}
        await client.good("POST", "/v1/bulk/cancel", rest, headers=headers)
        entries = await log(client)
        bulks = [each for each in entries if each.operation == "bulk"]
        assert [each.result for each in bulks] == ["3 changed", "2 changed"]
        assert bulks[0].summary == "tag='t', limit=3, preview=False, action='cancel'"
        cancels = [each.run_id for each in entries if each.operation == "cancel"]
        assert sorted(str(each) for each in cancels) == [f"r{number}" for number in range(5)]
        other = {"key": "k", "preview": False}
        answer = await client.call("POST", "/v1/bulk/cancel", other, headers=headers)
        assert (answer.status, answer.json["error"]) == (409, "InputMismatch")


async def test_a_write_through_the_channel_is_in_the_audit_log(autojump_clock: Any) -> None:
    async with served() as client, trio.open_nursery() as nursery:
        await scene(client)
        peer = Peer(client, Caller(name="uid 7", role=Role.OPERATE))
        nursery.start_soon(peer.serve)
        peer.send(call(1, "cancel", run_id="waits"))
        await trio.sleep(10)
        (entry,) = await log(client)
        assert (entry.operation, entry.who, entry.role) == ("cancel", "uid 7", "operate")
        nursery.cancel_scope.cancel()


async def test_the_audit_log_has_the_user_at_the_other_end_of_the_socket(tmp_path: Path) -> None:
    async with listening(tmp_path) as server:
        head = b"POST /v1/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"
        await server.send(head + b"\r\n", unix=True)
        await server.send(head + server.bearer + b"\r\n")
        entries = (await server.rt.audit()).entries
        assert [each.who for each in entries] == [f"uid {os.getuid()}", "admin"]


async def test_a_write_that_was_refused_changes_nothing_and_is_logged(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as client:
        await scene(client)
        caplog.clear()
        peer = Peer(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.serve)
            peer.send(call(1, "cancel", run_id="waits"))
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        assert await log(client) == []
        assert "refused cancel to 'reader': it has the role read" in caplog.text
