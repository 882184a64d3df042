"""The viewer: shows a store, live or idle, and follows the change."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from keyrun import Context, Runtime, open_runtime, workflow
from keyrun.control.guard import TokenGuard
from keyrun.control.http import HttpApi
from keyrun.control.listening import bind_tcp, serving, url_of
from keyrun.control.operation import Operation
from keyrun.control.owner import Owner
from keyrun.control.roles import NotAllowed
from keyrun.control.table import OPERATIONS
from keyrun.control.tokens import TokenFile
from keyrun.control.viewer import Viewer, viewing
from keyrun.errors import NoOwner
from tests.control.conformity import check_answer
from tests.control.test_overview import pay
from tests.control.test_streams import events_of
from tests.control.world import WORKFLOWS, Account, Client, greet, wait_for_boss, wait_for_go
from tests.keyrun.serving import serving as serving_process


@asynccontextmanager
async def live(store: Path, *, namespace: str = "default") -> AsyncIterator[Runtime]:
    """Own a store, and serve its control plane."""
    async with open_runtime(
        store,
        workflows=[*WORKFLOWS, pay],
        entities=[Account],
        namespace=namespace,
        control=True,
    ) as rt:
        yield rt


@asynccontextmanager
async def viewed(address: Path | str, **options: Any) -> AsyncIterator[tuple[Client, Viewer]]:
    """Open a viewer behind the API."""
    async with viewing(address, namespace="default", **options) as viewer:
        yield Client(HttpApi(viewer, TokenGuard())), viewer


async def until(viewer: Viewer, *, is_live: bool) -> None:
    """Wait until the viewer follows the store."""
    with trio.fail_after(30):
        while viewer.is_live is not is_live:
            await viewer.changed()


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """A store with runs, which no process has open."""
    async with live(tmp_path / "state") as rt:
        await (await rt.submit(greet, "ann", key="ann", run_id="done")).result()
        await rt.submit(wait_for_go, key="bob", run_id="waits")
        await rt.submit(wait_for_boss, key="bob", run_id="behind")
        await rt.call(Account, "ann", Account.deposit, 5)
    return tmp_path / "state"


async def test_what_is_done_in_the_page_of_a_live_store_is_done_by_its_owner(store: Path) -> None:
    async with live(store) as rt, viewed(f"unix:{store}/control.sock") as (client, _):
        session = await client.good("GET", "/v1/session")
        assert (session["role"], session["read_only"]) == ("admin", None)
        runs = await client.good("GET", "/v1/runs?newest_first=true")
        assert [each["run_id"] for each in runs["runs"]] == ["behind", "waits", "done"]
        assert (await client.good("GET", "/v1/overview"))["runs"] == {"waiting": 1, "pending": 1}
        signal = await client.good("POST", "/v1/runs/waits/signals/go", {"payload": 5})
        assert signal == {"result": "delivered"}
        assert await rt.run("waits").result() == 5
        history = await client.good("GET", "/v1/runs/waits/history")
        assert session["name"] in {each["who"] for each in history["events"]}
        new = {"workflow": "greet", "input": "eve", "key": "eve", "run_id": "new"}
        assert (await client.good("POST", "/v1/runs", new))["newly_submitted"]
        found = await client.good("GET", "/v1/runs/new?wait=30")
        assert found["result"] == "EVE"
        call = {"args": [2]}
        assert await client.good("POST", "/v1/entities/Account/ann/deposit", call) == {"result": 7}
        bulk = {"key": "bob", "preview": False}
        assert (await client.good("POST", "/v1/bulk/cancel", bulk))["changed"] == 1
        missing = await client.call("GET", "/v1/runs/nobody")
        assert (missing.status, missing.json["error"]) == (404, "UnknownRun")
        wrong = await client.call("POST", "/v1/runs", {"workflow": "nothing", "key": "k"})
        assert (wrong.status, wrong.json["error"]) == (404, "UnknownWorkflow")


async def test_the_events_and_the_progress_of_a_live_store_are_streamed(store: Path) -> None:
    async with live(store) as rt, viewed(f"unix:{store}/control.sock") as (client, _):
        target = "/v1/events?most_per_second=200"
        async with client.stream(target) as events, client.stream("/v1/runs/waits/watch") as watch:
            await events.until(b"retry: 2000\nid: ")
            await watch.until(b'"state":"waiting"')
            await rt.signal("waits", "go")
            found = events_of(await events.until(b"run_succeeded"))
            assert [each["kind"] for each in found if each["run_id"] == "waits"] == [
                "run_resumed",
                "run_succeeded",
            ]
            assert len({each["id"] for each in found}) == len(found)
            await watch.until(b"event: end")
        last = found[-1]["id"]
        async with client.stream("/v1/events", headers=[("last-event-id", last)]) as again:
            (missed,) = events_of(await again.until(b"data:"))
            assert (missed["kind"], missed["missed"], missed["sampled"]) == ("missed", None, False)


async def test_an_idle_store_is_read_and_every_action_is_refused_with_the_reason(
    store: Path,
) -> None:
    async with viewed(store) as (client, _):
        session = await client.good("GET", "/v1/session")
        assert session["read_only"].startswith(f"no process answers at {store}/control.sock, so")
        runs = await client.good("GET", "/v1/runs")
        assert [each["state"] for each in runs["runs"]] == ["succeeded", "waiting", "pending"]
        assert (await client.good("GET", "/v1/runs/done"))["result"] == "ANN"
        assert (await client.good("GET", "/v1/runs/done/input"))["result"] == "ann"
        assert (await client.good("GET", "/v1/runs/waits?wait=0.01"))["state"] == "waiting"
        history = await client.good("GET", "/v1/runs/done/history")
        assert history["events"][-1]["value"] == "ANN"
        why = await client.good("GET", "/v1/keys/bob/explain")
        assert why["sentence"] == "Run waits waits for signal go."
        overview = await client.good("GET", "/v1/overview")
        assert overview["runs"] == {"waiting": 1, "pending": 1}
        assert overview["statistics"] is overview["slots"] is None
        for target, body in (
            ("/v1/runs/waits/cancel", None),
            ("/v1/runs", {"workflow": "greet", "input": "x", "key": "k"}),
            ("/v1/bulk/cancel", {"key": "bob", "preview": False}),
            ("/v1/pause", {}),
        ):
            refused = await client.call("POST", target, body)
            assert (refused.status, refused.json["error"]) == (421, "StoreReadOnly")
            assert session["read_only"] in refused.json["detail"]


READS = [each for each in OPERATIONS.values() if each.path and not each.writes]
VALUES = {"run_id": "waits", "key": "bob", "group_id": "g"}


@pytest.mark.parametrize("operation", READS, ids=lambda each: each.name)
async def test_an_idle_store_answers_or_refuses_each_question(
    operation: Operation, store: Path
) -> None:
    async with viewed(store) as (client, _):
        target = "/v1" + operation.path.format(**VALUES)
        if operation.streams:
            async with client.stream(target) as stream:
                with trio.fail_after(30):
                    while not stream.start:
                        await stream.more()
            assert stream.start["status"] in (200, 404, 421)
            return
        answer = await client.call("GET", target)
        assert answer.status in (200, 404, 421), answer.body
        check_answer("GET", target, answer.status, answer.headers, answer.body)


SHOP = """
from typing import Any
from keyrun import App, Context, workflow

@workflow
async def wait_for_go(ctx: Context, _: None) -> Any:
    return await ctx.wait_signal("go")

app = App(workflows=[wait_for_go])
"""


async def test_the_page_follows_a_store_that_becomes_live_and_idle_again(store: Path) -> None:
    async with viewed(store) as (client, viewer), client.stream("/v1/events") as events:
        await events.until(b"retry")
        refused = await client.call("POST", "/v1/runs/waits/signals/go", {})
        assert refused.status == 421
        with serving_process(store.parent, source=SHOP) as process:
            await until(viewer, is_live=True)
            await events.until(b"event: end")
            assert (await client.good("GET", "/v1/session"))["read_only"] is None
            async with client.stream("/v1/events") as of_owner:
                await of_owner.until(b"retry")
                await client.good("POST", "/v1/runs/waits/signals/go", {})
                await of_owner.until(b"run_succeeded")
                process.process.kill()
                await of_owner.until(b"event: end")
        await until(viewer, is_live=False)
        assert (await client.good("GET", "/v1/runs/waits"))["state"] == "succeeded"
        assert (await client.good("GET", "/v1/session"))["read_only"] is not None


async def test_a_call_that_its_owner_did_not_answer_is_read_from_the_store(store: Path) -> None:
    async with viewed(store) as (client, viewer):
        with serving_process(store.parent, source=SHOP) as process:
            await until(viewer, is_live=True)
            process.send(signal.SIGSTOP)
            answers: list[Any] = []

            async def ask() -> None:
                answers.append(await client.good("GET", "/v1/runs/done"))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked(0.05)
                process.process.kill()
        assert answers[0]["state"] == "succeeded"


async def test_another_namespace_is_read_and_the_reason_names_both(store: Path) -> None:
    with serving_process(store.parent, "--namespace", "other", source=SHOP) as process:
        await trio.to_thread.run_sync(process.announced)
        async with viewed(store) as (client, _):
            why = (await client.good("GET", "/v1/session"))["read_only"]
            assert "it serves the namespace 'other' of the store, not 'default'" in why
            assert len((await client.good("GET", "/v1/runs"))["runs"]) == 3


async def test_at_an_address_the_role_is_that_of_the_token(store: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("a-token-of-16-letters read reader\n")
    async with live(store) as rt:
        listeners = bind_tcp("127.0.0.1", 0)
        url = url_of("127.0.0.1", listeners)
        async with serving(HttpApi(Owner(rt), TokenGuard(TokenFile(tokens))), listeners):
            async with viewed(url, token="a-token-of-16-letters") as (client, _):
                session = await client.good("GET", "/v1/session")
                assert (session["name"], session["role"]) == ("reader", "read")
                assert session["read_only"] is None
                assert (await client.good("GET", "/v1/runs/done"))["result"] == "ANN"
                refused = await client.call("POST", "/v1/runs/waits/cancel")
                assert refused.status == 403
                assert "requires the role operate" in refused.json["detail"]
                assert "reader has the role read" in refused.json["detail"]
            with pytest.raises(PermissionError, match="the token is not valid"):
                async with viewed(url, token="another-token-of-16"):
                    pass
    with pytest.raises(NoOwner):
        async with viewed(url, token="a-token-of-16-letters"):
            pass


async def test_a_refusal_of_the_owner_of_a_stream_is_a_refusal(store: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("a-token-of-16-letters metrics prometheus\n")
    async with live(store) as rt:
        listeners = bind_tcp("127.0.0.1", 0)
        url = url_of("127.0.0.1", listeners)
        api = HttpApi(Owner(rt), TokenGuard(TokenFile(tokens)))
        async with serving(api, listeners):
            with pytest.raises(NotAllowed, match="requires the role read"):
                async with viewed(url, token="a-token-of-16-letters"):
                    pass


class Xor:
    """An encryption."""

    def wrap(self, data: bytes) -> bytes:
        return bytes(each ^ 0x55 for each in data)

    unwrap = wrap


async def test_encrypted_values_of_an_idle_store_are_shown_with_the_application_only(
    tmp_path: Path,
) -> None:
    path, hidden = tmp_path / "state", Xor()
    async with open_runtime(path, workflows=WORKFLOWS, transform=hidden) as rt:
        await (await rt.submit(greet, "ann", key="ann", run_id="done")).result()
    async with viewed(path) as (client, _):
        assert (await client.good("GET", "/v1/runs/done"))["result"] is None
        history = await client.good("GET", "/v1/runs/done/history")
        assert "cannot be decoded here" in history["events"][0]["value"]
    async with viewed(path, workflows=WORKFLOWS, transform=hidden) as (client, _):
        assert (await client.good("GET", "/v1/runs/done"))["result"] == "ANN"
        history = await client.good("GET", "/v1/runs/done/history")
        assert history["events"][0]["value"] == "ann"
        known = await client.good("GET", "/v1/workflows")
        assert {each["name"] for each in known["result"]} == {each.name for each in WORKFLOWS}


@workflow
async def sleeps(ctx: Context, _: None) -> None:
    await ctx.sleep(3600)


async def test_the_states_of_an_idle_store_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "state"
    async with open_runtime(path, workflows=[sleeps, pay], evict_after=0) as rt:
        await rt.submit(sleeps, key="a", run_id="a")
        await rt.submit(sleeps, key="b", run_id="b")
        await rt.pause("b")
        with trio.fail_after(30):
            while (await rt.status("a")).state != "waiting":  # type: ignore[union-attr]
                await trio.sleep(0.01)
        await rt.pause_all()
    async with viewed(path) as (client, _):
        overview = await client.good("GET", "/v1/overview")
        assert sum(overview["runs"].values()) == 2
        assert overview["runs"]["paused"] == 1
        assert overview["paused"]


def stars(value: Any) -> Any:
    """Hide all texts."""
    return "***" if isinstance(value, str) else value


async def test_the_page_shows_no_more_than_the_application_lets_it_live_or_idle(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state"

    async def check(client: Client) -> None:
        assert (await client.good("GET", "/v1/runs/done"))["result"] == "***"
        assert (await client.good("GET", "/v1/runs"))["runs"][0]["result"] == "***"
        assert (await client.good("GET", "/v1/runs/done/input"))["result"] == "***"
        history = (await client.good("GET", "/v1/runs/done/history"))["events"]
        assert {each["value"] for each in history} <= {"***", None}
        whole = await client.call("GET", "/v1/runs/done/export")
        assert b"ann" not in whole.body.lower().replace(b"cannot", b"")

    async with open_runtime(path, workflows=WORKFLOWS, redact=stars, control=True) as rt:
        await (await rt.submit(greet, "ann", key="k", run_id="done")).result()
        async with viewed(f"unix:{path}/control.sock") as (client, _):
            await check(client)
    async with viewed(path, redact=stars) as (client, _):
        await check(client)
