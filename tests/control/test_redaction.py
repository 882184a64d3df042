"""The option `redact` decides what log lines, spans, the audit log and the API show."""

import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

import keyrun
from keyrun import (
    App,
    Compensation,
    Context,
    Entity,
    Fail,
    Graph,
    NodeInput,
    PermanentError,
    Retry,
    RunFailed,
    RunOutcome,
    Runtime,
    Turn,
    current_step,
    entity,
    machine,
    step,
    workflow,
)
from keyrun.control.guard import TokenGuard
from keyrun.control.http import HttpApi
from keyrun.control.table import OPERATIONS
from keyrun.control.viewer import viewing
from keyrun.graphs import durable
from keyrun.hosting.served import served
from keyrun.logging import JsonFormatter
from keyrun.runtime.redaction import HIDDEN, Redact
from keyrun.schedules import Every
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime, replay
from keyrun.web import Control
from tests.control.world import Client, client_of
from tests.tracing.spans import Spans

SECRET = "4111-1111-1111-1111"
"""What nothing may show."""
ONCE = Retry.none()
STARS = "****"


def mask(value: Any) -> Any:
    """Replace the secret wherever it is in a text or a payload."""
    if isinstance(value, str):
        return value.replace(SECRET, STARS)
    if isinstance(value, dict):
        return {key: mask(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [mask(each) for each in value]
    return value


def hide(value: Any) -> Any:
    """Hide everything."""
    return "[hidden]" if isinstance(value, str) else None


def fail_with_it(value: Any) -> Any:
    """A function with a bug, whose error has the value."""
    raise ValueError(f"cannot redact {value!r}")


def return_what_is_no_payload(value: Any) -> Any:
    """A function whose values cannot be shown."""
    return value if isinstance(value, int) else object()


@step(retry=Retry.fixed(max_attempts=2, delay=1, jitter=0))
async def charge(card: str) -> str:
    current_step().report(10, f"charging {card}")
    current_step().memo["card"] = card
    await trio.sleep(0.01)
    try:
        raise KeyError(card)
    except KeyError as error:
        raise ConnectionError(f"the bank refused {card}") from error


@step
async def store_card(card: str) -> dict[str, Any]:
    return {"card": card, "seen": [card]}


async def undo(given: Compensation) -> None:
    raise PermanentError(f"cannot forget {given.output}")


@step(compensate=undo, retry=ONCE)
async def undoable(card: str) -> str:
    return card


@step(retry=ONCE)
async def exits(card: str) -> None:
    raise SystemExit(card)


@step(asyncio=True, retry=ONCE)
async def leaves_a_callback(card: str) -> None:
    import asyncio

    def breaks() -> None:
        raise ValueError(card)

    asyncio.get_running_loop().call_soon(breaks)
    await asyncio.sleep(0.01)


@workflow
async def pays(ctx: Context, card: str) -> str:
    ctx.report(50, f"card {card}")
    await ctx.step(store_card, card)
    await ctx.step(charge, card)
    return card


@workflow
async def returns(ctx: Context, card: str) -> str:
    await ctx.step(store_card, card)
    await ctx.step(leaves_a_callback, card)
    return card


@workflow
async def declines(ctx: Context, card: str) -> None:
    ctx.fail(f"the card {card} is blocked")


@workflow
async def stops(ctx: Context, card: str) -> None:
    ctx.cancel(f"nobody wants {card}")


@workflow
async def raises(ctx: Context, card: str) -> None:
    raise RuntimeError(f"no such card: {card}")


@workflow
async def compensates(ctx: Context, card: str) -> None:
    await ctx.step(undoable, card)
    await ctx.step(exits, card)


@workflow
async def asks(ctx: Context, card: str) -> Any:
    return await ctx.wait_signal("more")


@workflow
async def parent(ctx: Context, card: str) -> None:
    await ctx.child(raises, card)


@workflow
async def waits(ctx: Context, card: str) -> None:
    ctx.report(1, f"waits with {card}")
    await ctx.approval("boss")


@machine()
async def turns(turn: Turn) -> Fail:
    return Fail(f"the machine refuses {turn.payload}")


@durable
async def broken_node(ctx: Context, given: NodeInput) -> None:
    raise LookupError(f"the node lost {given.run_input}")


graph = Graph("graph")
graph.node("lookup", broken_node)


@entity
class Wallet(Entity):
    async def put(self, card: str) -> str:
        self.state["card"] = card
        return card

    async def refuse(self, card: str) -> None:
        raise ValueError(f"the wallet refuses {card}")


WORKFLOWS: list[Any] = [
    *(pays, returns, declines, stops, raises, compensates, asks, parent, waits, turns, graph)
]


async def hook(outcome: RunOutcome) -> None:
    raise OSError(f"nobody takes {outcome.result or SECRET}")


class Logged:
    """Every log line, as text and as JSON."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.handlers = [logging.StreamHandler(self._stream) for _ in range(2)]
        self.handlers[1].setFormatter(JsonFormatter())

    @property
    def text(self) -> str:
        return self._stream.getvalue()


@pytest.fixture
def logged() -> Iterator[Logged]:
    found, root = Logged(), logging.getLogger()
    before = root.level
    root.setLevel(logging.DEBUG)
    for each in found.handlers:
        root.addHandler(each)
    yield found
    for each in found.handlers:
        root.removeHandler(each)
    root.setLevel(before)


def of_spans(spans: Spans) -> str:
    """Everything that the spans of Keyrun say."""
    return "\n".join(each.to_json() for each in spans.all)


async def of_api(rt: Runtime) -> dict[str, str]:
    """The answers of all operations that read, about all runs, keys, groups and schedules."""
    client = client_of(rt)
    ids = {
        "run_id": [each.run_id for each in await rt.runs(limit=1000)],
        "key": [each.key for each in await rt.keys(limit=1000)] + ["wallet"],
        "group_id": ["group"],
    }
    found = {}
    for operation in OPERATIONS.values():
        if operation.verb != "GET" or not operation.path or operation.name == "events":
            continue
        name = next((each for each in ids if f"{{{each}}}" in operation.path), None)
        for given in [""] if name is None else ids[name]:
            path = "/v1" + operation.path.replace(f"{{{name}}}", given)
            assert "{" not in path, path
            if operation.streams:
                with trio.move_on_after(1):
                    async with client.stream(path) as exchange:
                        await exchange.until(b"event: end")
                found[path] = b"".join(exchange.parts).decode()
            else:
                found[path] = (await client.call("GET", path)).body.decode()
    return found


@asynccontextmanager
async def world(
    redact: Redact | None, spans: Spans, store: MemoryStore | None = None
) -> AsyncIterator[tuple[Runtime, list[str]]]:
    """A runtime in which the secret came to every place that it can come to, and what the streams
    of events and the writes have answered."""
    async with open_test_runtime(
        store,
        workflows=WORKFLOWS,
        entities=[Wallet],
        on_terminal=hook,
        redact=redact,
        tracing=spans.tracing,
        drain_timeout=0,
    ) as rt:
        client, answers = client_of(rt), list[str]()

        async def write(path: str, body: Any, **headers: str) -> None:
            answer = await client.call("POST", path, body, headers=[*headers.items()])
            answers.append(answer.body.decode())

        async with client.stream("/v1/events") as events:
            for each in WORKFLOWS:
                await write(
                    "/v1/runs",
                    {"workflow": each.name, "input": SECRET, "key": each.name, "run_id": each.name},
                )
            member = {"workflow": "returns", "input": SECRET, "key": "m", "member_id": "m"}
            await write("/v1/groups/group", {"members": [member]})
            await rt.schedule("daily", returns, SECRET, key="s", when=Every(3600))
            await trio.sleep(1)
            await write("/v1/runs/asks/signals/more", {"payload": {"card": SECRET}})
            for method in ("put", "refuse", "put", "refuse"):
                call = {"args": [SECRET], "request_id": method}
                await write(f"/v1/entities/Wallet/wallet/{method}", call)
            await write("/v1/entities/Wallet/wallet/put", {"args": [SECRET]})
            await trio.sleep(30)
            answers.append(b"".join(events.parts).decode())
        yield rt, answers


@pytest.mark.parametrize("redact", [mask, hide, fail_with_it, return_what_is_no_payload])
async def test_a_secret_is_in_no_log_line_no_span_no_audit_entry_and_no_answer(
    redact: Redact, logged: Logged, autojump_clock: Any
) -> None:
    spans = Spans()
    async with world(redact, spans) as (rt, answers):
        found = await of_api(rt)
        audit = await rt.audit(limit=1000)
        assert len(found) > 100
        assert not [each for each in answers if SECRET in each]
        assert not [path for path, text in found.items() if SECRET in text]
        assert SECRET not in repr(audit)
        assert len(audit.entries) > 12
        # The program itself has its values.
        assert await rt.run("returns").result() == SECRET
        assert await rt.entity(Wallet, "wallet").put(SECRET) == SECRET
    assert SECRET not in logged.text
    assert SECRET not in of_spans(spans)
    if redact is mask:
        assert "the bank refused ****" in logged.text
        assert "the bank refused ****" in of_spans(spans)
        assert "the bank refused ****" in found["/v1/dead-letters"]
        assert json.loads(found["/v1/runs/returns/result"]) == {"result": STARS}
        assert "the card **** is blocked" in found["/v1/runs/declines"]
    if redact in (fail_with_it, return_what_is_no_payload):
        assert HIDDEN in found["/v1/runs/returns/result"]
        assert logged.text.count("the function redact failed") == len(logged.handlers)


async def test_without_the_option_the_secret_is_in_all_of_them(
    logged: Logged, autojump_clock: Any
) -> None:
    """This shows that the test above looks at the right places."""
    spans = Spans()
    async with world(None, spans) as (rt, answers):
        found = await of_api(rt)
        audit = await rt.audit(limit=1000)
    showing = {path for path, text in found.items() if SECRET in text}
    assert showing >= {
        "/v1/runs/returns",
        "/v1/runs/returns/result",
        "/v1/runs/returns/history",
        "/v1/runs/returns/input",
        "/v1/runs/waits/progress",
        "/v1/runs/waits/watch",
        "/v1/runs/declines",
        "/v1/runs/graph/graph",
        "/v1/keys/wallet",
        "/v1/groups/group/outcomes",
        "/v1/dead-letters",
        "/v1/runs",
    }
    for words in (
        *("the bank refused", "the card", "nobody wants", "no such card", "cannot forget"),
        *("the machine refuses", "the node lost", "nobody takes"),
    ):
        assert f"{words} {SECRET}" in logged.text or words in ("no such card", "cannot forget")
    assert f"ValueError: {SECRET}" in logged.text  # of a callback of asyncio
    assert SECRET in of_spans(spans)
    assert f"the wallet refuses {SECRET}" in repr(audit)
    events = next(each for each in answers if "event: " in each)
    assert f"the bank refused {SECRET}" in events
    assert f"charging {SECRET}" in events


async def test_the_answer_of_an_entity_is_not_in_the_audit_log(autojump_clock: Any) -> None:
    async with open_test_runtime(entities=[Wallet]) as rt:
        client = client_of(rt)
        call = {"args": [SECRET], "request_id": "once"}
        for _ in range(2):
            answer = await client.good("POST", "/v1/entities/Wallet/wallet/put", call)
            assert answer == {"result": SECRET}
        assert SECRET not in repr((await rt.audit()).entries)


async def test_an_internal_error_is_logged_redacted(logged: Logged, autojump_clock: Any) -> None:
    class Broken(Exception):
        """An error of Keyrun's own code that has the error of the user as its context."""

    async with open_test_runtime(workflows=[returns], redact=mask, max_restarts=1) as rt:
        queues: Any = rt._partition.queues

        def fails(*_: Any, **__: Any) -> Any:
            try:
                raise ValueError(f"of the user: {SECRET}")
            except ValueError:
                raise Broken(f"of Keyrun: {SECRET}") from None

        queues.drop = fails
        await rt.submit(returns, SECRET, key="k", run_id="r")
        await trio.sleep(60)
        found = await client_of(rt).good("GET", "/v1/keys/k")
        del queues.drop
    assert "of Keyrun: ****" in logged.text
    assert SECRET not in logged.text
    assert SECRET not in json.dumps(found)


async def test_a_replay_takes_the_function_of_the_runtime(autojump_clock: Any) -> None:
    async with open_test_runtime(workflows=WORKFLOWS, redact=mask) as rt:
        for each in (declines, stops, raises):
            run = await rt.submit(each, SECRET, key="k", run_id=each.name)
            with suppress(Exception):
                await run.result()
            history = await rt.history(each.name)
            await replay(history, each, redact=mask)
            assert SECRET not in json.dumps(str(await rt.status(each.name)))


async def test_the_store_has_the_text_of_an_error_as_it_was_redacted(autojump_clock: Any) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[pays], redact=mask) as rt:
        run = await rt.submit(pays, SECRET, key="k", run_id="r")
        with pytest.raises(RunFailed) as caught:
            await run.result()
    assert SECRET not in str(caught.value)
    async with open_test_runtime(store, workflows=[pays]) as rt:
        status = await rt.status("r")
        assert status is not None
        assert status.failure is not None
        assert "the bank refused ****" in status.failure.reason
        assert "ConnectionError: the bank refused ****" in (status.failure.traceback or "")
        assert SECRET not in (status.failure.traceback or "")


@pytest.mark.parametrize("is_live", [True, False])
async def test_the_page_of_a_store_shows_redacted_values(tmp_path: Path, is_live: bool) -> None:
    options: dict[str, Any] = {"workflows": [returns], "redact": mask}
    async with AsyncExitStack() as stack:
        rt = await stack.enter_async_context(keyrun.open_runtime(tmp_path, control=True, **options))
        await (await rt.submit(returns, SECRET, key="k", run_id="r")).result()
        if not is_live:
            await stack.aclose()
        # The process of the page knows the function of an idle store only by the application.
        redact = None if is_live else mask
        address = f"unix:{tmp_path}/control.sock" if is_live else tmp_path
        async with viewing(address, namespace="default", redact=redact) as viewer:
            assert viewer.is_live is is_live
            client = Client(HttpApi(viewer, TokenGuard()))
            for path in ("/v1/runs/r", "/v1/runs/r/history", "/v1/runs/r/input", "/v1/runs"):
                answer = (await client.call("GET", path)).body.decode()
                assert STARS in answer
                assert SECRET not in answer


@pytest.mark.parametrize("over", ["socket", "http"])
async def test_a_python_client_gets_values_over_the_socket_and_redacted_ones_over_http(
    over: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    options: dict[str, Any] = {"workflows": [returns], "entities": [Wallet], "redact": mask}
    control = Control(http="127.0.0.1:0")
    async with served(store, App(**options), control) as server:
        rt = server.runtime
        run = await rt.submit(returns, {"card": SECRET}["card"], key="k", run_id="r")
        await run.result()
        if over == "socket":
            connecting = keyrun.connect(store, workflows=[returns])
        else:
            assert server.url is not None
            token = (store / "tokens").read_text().partition(" admin ")[0].rpartition("\n")[2]
            connecting = keyrun.connect(server.url, token=token, workflows=[returns])
        async with connecting as client:
            wanted = SECRET if over == "socket" else STARS
            assert await client.run("r").result() == wanted
            status = await client.status("r")
            assert status is not None
            assert status.result == wanted
            assert await client.entity(Wallet, "wallet").put(SECRET) == wanted
            history = await client.history("r")
            stored = repr([each.stored for each in history])
            assert (SECRET in stored) == (over == "socket")
            assert (history.records is None) == (over == "http")
