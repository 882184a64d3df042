"""The HTTP API: every operation of the table can be called, and errors are problems."""

from typing import Any
from urllib.parse import quote

import pytest
import trio
import trio.testing

from keyrun import (
    Context,
    Entity,
    TransientError,
    entity,
    errors,
    step,
    workflow,
)
from keyrun.control.http import HttpApi
from keyrun.control.operation import Operation
from keyrun.control.table import OPERATIONS
from keyrun.storage import MemoryStore
from tests.control.world import Client, Exchange, greet, served, wait_for_go

JSON = [("content-type", "application/json")]


async def test_a_run_is_submitted_and_its_result_is_awaited(autojump_clock: Any) -> None:
    async with served() as client:
        run = {"workflow": "greet", "input": "ann", "key": "k", "run_id": "run-1"}
        assert await client.good("POST", "/v1/runs", run) == {
            "run_id": "run-1",
            "key": "k",
            "newly_submitted": True,
            "workflow": "greet",
            "version": 1,
            "number": 1,
        }
        assert not (await client.good("POST", "/v1/runs", run))["newly_submitted"]
        status = await client.good("GET", "/v1/runs/run-1?wait=30")
        assert status["state"] == "succeeded"
        assert status["result"] == "ANN"
        assert status["ended_at"].endswith("Z")


async def test_a_long_poll_returns_when_the_time_is_over(autojump_clock: Any) -> None:
    async with served() as client:
        await client.rt.submit(wait_for_go, key="k", run_id="r")
        begun = trio.current_time()
        status = await client.good("GET", "/v1/runs/r?wait=20")
        assert status["state"] == "waiting"
        assert trio.current_time() - begun == pytest.approx(20)


async def test_a_long_poll_ends_when_the_client_closes_the_connection(autojump_clock: Any) -> None:
    async with served() as client:
        await client.rt.submit(wait_for_go, key="k", run_id="r")
        begun = trio.current_time()
        async with client.stream("/v1/runs/r?wait=60") as exchange:
            await trio.sleep(1)
            exchange.close()
        assert trio.current_time() - begun < 2


async def test_a_long_poll_returns_at_once_if_the_run_is_quarantined(autojump_clock: Any) -> None:
    store = MemoryStore()
    async with served(options={"store": store}) as client:
        await client.rt.submit(wait_for_go, key="k", run_id="r")
    async with served(options={"store": store, "workflows": [greet]}) as client:
        begun = trio.current_time()
        status = await client.good("GET", "/v1/runs/r?wait=60")
        assert (status["state"], status["quarantine_cause"]) == ("quarantined", "unregistered")
        answer = await client.call("GET", "/v1/runs/r/result?wait=60")
        assert (answer.status, answer.json["error"]) == (409, "RunQuarantined")
        assert answer.json["cause"] == "unregistered"
        assert trio.current_time() - begun < 1


@pytest.mark.parametrize("target", ["/v1/runs/r", "/v1/runs/r/result"])
async def test_a_long_poll_lasts_a_minute_at_most(target: str, autojump_clock: Any) -> None:
    async with served() as client:
        await client.rt.submit(wait_for_go, key="k", run_id="r")
        for wait in ("-1", "nan"):
            answer = await client.call("GET", f"{target}?wait={wait}")
            assert answer.status == 422
            assert answer.json["detail"].startswith("wait must be a number of seconds")
        begun = trio.current_time()
        await client.call("GET", f"{target}?wait=1e9")
        assert trio.current_time() - begun == pytest.approx(60)


async def test_an_answer_that_is_no_object_is_under_result(autojump_clock: Any) -> None:
    async with served() as client:
        await client.rt.submit(wait_for_go, key="k", run_id="r")
        assert await client.good("POST", "/v1/runs/r/cancel") == {"result": True}
        assert await client.good("GET", "/v1/runs/r/input") == {"result": None}
        assert await client.good("POST", "/v1/pause") == {"result": None}


async def test_the_history_of_a_run_is_read_in_pages(autojump_clock: Any) -> None:
    async with served() as client:
        run = {"workflow": "greet", "input": "ann", "key": "k", "run_id": "r"}
        await client.good("POST", "/v1/runs", run)
        await client.good("GET", "/v1/runs/r?wait=5")
        whole = await client.good("GET", "/v1/runs/r/history")
        assert whole["cursor"] is None
        assert {"submitted": "ann", "step_completed": "ANN"}.items() <= {
            each["event"]: each["value"] for each in whole["events"]
        }.items()
        assert {each["who"] for each in whole["events"]} == {None, "uid 1000"}
        events: list[Any] = []
        target = "/v1/runs/r/history?limit=1"
        page = await client.good("GET", target)
        while page["cursor"] is not None:
            events += page["events"]
            page = await client.good("GET", f"{target}&cursor={page['cursor']}")
        assert events + page["events"] == whole["events"]


async def test_an_entity_is_called(autojump_clock: Any) -> None:
    async with served() as client:
        path = "/v1/entities/Account/ann/deposit"
        assert await client.good("POST", path, {"args": [5]}) == {"result": 5}
        assert await client.good("POST", path, {"kwargs": {"amount": 2}}) == {"result": 7}


@entity(name="Bad")
class Bad(Entity):
    async def go(self, kind: str) -> None:
        raise {"temporary": TransientError, "other": OSError}[kind]("no luck")


@pytest.mark.parametrize(
    ("data", "status", "error", "says"),
    [
        ({"args": ["other"]}, 409, "CallFailed", "Bad.go of the key 'k' raised OSError: no luck"),
        ({"args": ["temporary"]}, 503, "TransientError", "no luck"),
        ({}, 422, "ValueError", "missing a required argument: 'kind'"),
        ({"args": ["a", "b"]}, 422, "ValueError", "too many positional arguments"),
        ({"args": ["a"], "kwargs": {"kind": "b"}}, 422, "ValueError", "multiple values"),
        ({"kwargs": {"kinds": "b"}}, 422, "ValueError", "missing a required argument"),
    ],
)
async def test_an_error_of_an_entity_is_a_problem(
    data: Any, status: int, error: str, says: str, autojump_clock: Any
) -> None:
    async with served(options={"entities": [Bad]}) as client:
        answer = await client.call("POST", "/v1/entities/Bad/k/go", data)
        assert (answer.status, answer.json["error"]) == (status, error)
        assert says in answer.json["detail"]


UNUSUAL = [
    "a/b",
    "%",
    "%2f",
    "?",
    "#",
    "+",
    "a b",
    "ü\U0001f600",
    "x" * 255,
    ".",
    "..",
    "\\",
    "a\nb",
]


@pytest.mark.parametrize("key", UNUSUAL, ids=ascii)
async def test_any_key_can_be_part_of_a_path_and_of_a_query(key: str, autojump_clock: Any) -> None:
    async with served() as client:
        part = "".join(f"%{byte:02X}" for byte in key.encode())
        await client.good(
            "POST", "/v1/runs", {"workflow": "wait_for_go", "key": key, "run_id": "r"}
        )
        assert (await client.good("GET", f"/v1/keys/{part}"))["status"]["key"] == key
        assert (await client.good("GET", f"/v1/keys/{part}/explain"))["key"] == key
        assert await client.good("POST", f"/v1/keys/{part}/pause") == {"result": None}
        assert (await client.good("GET", f"/v1/keys?key={part}"))["keys"][0]["key"] == key
        (entry,) = (await client.good("GET", f"/v1/audit?key={part}&operation=pause_key"))[
            "entries"
        ]
        assert entry["key"] == key


async def test_a_key_that_is_too_long_is_not_valid(autojump_clock: Any) -> None:
    async with served() as client:
        answer = await client.call("GET", f"/v1/keys/{'x' * 256}/explain")
        assert (answer.status, answer.json["error"]) == (422, "InvalidKey")


async def test_a_gate_that_is_waited_at_again_has_a_number(autojump_clock: Any) -> None:
    @workflow
    async def twice(ctx: Context) -> None:
        await ctx.approval("a b")
        await ctx.approval("a b")

    async with served(options={"workflows": [twice]}) as client:
        await client.good("POST", "/v1/runs", {"workflow": "twice", "key": "k", "run_id": "r"})
        decided = []
        for _ in range(2):
            await trio.testing.wait_all_tasks_blocked()
            (gate,) = (await client.good("GET", "/v1/approvals"))["approvals"]
            part = quote(gate["gate"], safe="")
            await client.good("POST", f"/v1/runs/r/gates/{part}/approve", {"by": "ann"})
            decided.append(gate["gate"])
        assert (await client.good("GET", "/v1/runs/r?wait=5"))["state"] == "succeeded"
        assert decided == ["a b", "a b#2"]


PAGED = [each for each in OPERATIONS.values() if each.verb == "GET" and "cursor" in each.parameters]


@pytest.mark.parametrize(
    "operation", [each for each in PAGED if each.path], ids=lambda each: each.name
)
async def test_a_cursor_that_is_damaged_or_of_another_listing_is_not_valid(
    operation: Operation, autojump_clock: Any
) -> None:
    async with served() as client:
        for number in range(3):
            await client.rt.submit(wait_for_go, key=f"k{number}", run_id=f"r{number}")
        own = (await client.good("GET", "/v1/runs?limit=1"))["cursor"]
        other = (await client.good("GET", "/v1/keys?limit=1"))["cursor"]
        runs = "run" in operation.name or operation.name == "find_dead_letters"
        path = "/v1" + operation.path.format(run_id="r0", key="k0")
        for cursor in ("x", "AAAA", "", own[:-1], own + "A", other if runs else own, "ü", "%00"):
            answer = await client.call("GET", f"{path}?cursor={quote(cursor, safe='%')}")
            if (cursor, operation.name) == (other, "find_keys"):
                continue
            assert answer.status == 422, (cursor, answer.body)
            assert "cursor" in answer.json["detail"]
        for limit in ("0", "-1", "x", "1.5", ""):
            answer = await client.call("GET", f"{path}?limit={limit}")
            assert answer.status == 422, limit
            assert answer.json["detail"].startswith("limit must be ")


@pytest.mark.parametrize(
    ("since", "found"),
    [
        ("2023-11-14T22:13:20Z", 1),
        ("2023-11-14T22:13:20.000001Z", 0),
        ("2023-11-14T23:13:20%2B01:00", 1),
        ("2023-11-14T23:13:20+01:00", 1),
        ("2023-11-14T23:13:21+01:00", 0),
        ("1700000000", 1),
        ("1700000000.5", 0),
    ],
)
async def test_a_time_is_in_rfc_3339_or_in_seconds(
    since: str, found: int, autojump_clock: Any
) -> None:
    async with served() as client:
        await client.rt.submit(wait_for_go, key="k", run_id="r")
        (run,) = (await client.good("GET", "/v1/runs"))["runs"]
        assert run["submitted_at"] == "2023-11-14T22:13:20.000000Z"
        assert len((await client.good("GET", f"/v1/runs?since={since}"))["runs"]) == found


@pytest.mark.parametrize("since", ["2023-11-14", "2023-11-14T22:13:20", "nan", "now", "1e400", ""])
async def test_a_time_without_a_zone_is_not_valid(since: str, autojump_clock: Any) -> None:
    async with served() as client:
        answer = await client.call("GET", f"/v1/runs?since={since}")
        assert answer.status == 422
        assert answer.json["detail"].startswith("since must be a time with a time zone")


async def test_a_key_with_a_slash_is_one_segment(autojump_clock: Any) -> None:
    async with served() as client:
        await client.rt.submit(wait_for_go, key="a/b ü", run_id="r")
        found = await client.good("GET", "/v1/keys/a%2Fb%20%C3%BC/explain")
        assert found["key"] == "a/b ü"
        assert (await client.call("GET", "/v1/keys/a/b/explain")).status == 404


async def test_paths_are_below_the_path_that_the_application_is_mounted_at(
    autojump_clock: Any,
) -> None:
    async with served() as client:
        answer = await client.call("GET", "/a%20b/keyrun/v1/counts", root_path="/a b/keyrun")
        assert answer.status == 200
        assert (await client.call("GET", "/v1/counts", root_path="/keyrun")).status == 200


async def test_an_unknown_path_is_not_found(autojump_clock: Any) -> None:
    async with served() as client:
        for path in (
            "/v1",
            "/v2/runs",
            "/v1/runs/",
            "/v1/runs/r/",
            "/v1//runs",
            "/v1/runs/..",
        ):
            answer = await client.call("GET", path)
            assert answer.status in (404, 422), path
            assert answer.headers["content-type"] == "application/problem+json"


async def test_another_method_is_answered_with_those_that_the_path_takes(
    autojump_clock: Any,
) -> None:
    async with served() as client:
        answer = await client.call("PATCH", "/v1/runs/r")
        assert answer.status == 405
        assert answer.headers["allow"] == "DELETE, GET, OPTIONS, HEAD"
        answer = await client.call("OPTIONS", "/v1/runs/r")
        assert (answer.status, answer.body) == (204, b"")
        answer = await client.call("HEAD", "/v1/counts")
        assert (answer.status, answer.body) == (200, b"")
        assert int(answer.headers["content-length"]) > 10


@pytest.mark.parametrize(
    ("method", "target", "data", "status", "error"),
    [
        ("GET", "/v1/runs/nope", None, 404, "UnknownRun"),
        ("GET", "/v1/runs/nope/explain", None, 404, "UnknownRun"),
        ("GET", "/v1/runs/nope/watch", None, 404, "UnknownRun"),
        ("GET", "/v1/groups/nope/outcomes", None, 404, "UnknownGroup"),
        ("POST", "/v1/runs", {"workflow": "nope", "key": "k"}, 404, "UnknownWorkflow"),
        ("POST", "/v1/runs", {"workflow": "greet"}, 422, "ValueError"),
        ("POST", "/v1/runs", {"workflow": "wait_for_go", "key": ""}, 422, "InvalidKey"),
        ("POST", "/v1/runs", {"workflow": "greet", "key": "k", "x": 1}, 422, "ValueError"),
        ("POST", "/v1/runs", ["greet"], 422, "ValueError"),
        ("POST", "/v1/runs?key=k", {"workflow": "greet"}, 422, "ValueError"),
        ("POST", "/v1/runs/r/cancel", {"run_id": "s"}, 422, "ValueError"),
        ("GET", "/v1/runs/ended?wait=soon", None, 422, "ValueError"),
        ("GET", "/v1/runs/ended?run_id=other", None, 422, "ValueError"),
        ("GET", "/v1/runs/ended?nothing=1", None, 422, "ValueError"),
        ("GET", "/v1/runs/ended?wait", None, 400, "BrokenQuery"),
        ("POST", "/v1/runs/ended/signals/go", {}, 409, "RunEnded"),
        ("POST", "/v1/runs/ended/gates/boss/approve", {"by": "ann"}, 409, "RunEnded"),
        ("POST", "/v1/runs/waits/gates/boss/approve", {"by": "ann"}, 409, "GateNotWaiting"),
        ("GET", "/v1/keys/%FF/explain", None, 400, "BadPath"),
    ],
)
async def test_an_error_is_a_problem(
    method: str, target: str, data: Any, status: int, error: str, autojump_clock: Any
) -> None:
    async with served() as client:
        await (await client.rt.submit(greet, "ann", key="k", run_id="ended")).result()
        await client.rt.submit(wait_for_go, key="k", run_id="waits")
        answer = await client.call(method, target, data)
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json
        assert (answer.status, problem["status"], problem["error"]) == (status, status, error)
        assert problem["type"] == f"urn:keyrun:{error}"
        assert problem["detail"]


async def test_an_input_that_does_not_fit_names_its_place(autojump_clock: Any) -> None:
    async with served() as client:
        answer = await client.call(
            "POST", "/v1/runs", {"workflow": "greet", "input": 5, "key": "k"}
        )
        assert answer.status == 422
        assert answer.json["detail"].startswith("input: ")


async def test_another_input_under_the_same_id_is_a_conflict(autojump_clock: Any) -> None:
    async with served() as client:
        run = {"workflow": "greet", "input": "ann", "key": "k", "run_id": "r"}
        await client.good("POST", "/v1/runs", run)
        answer = await client.call("POST", "/v1/runs", run | {"input": "bob"})
        assert (answer.status, answer.json["error"]) == (409, "InputMismatch")
        assert answer.json["run_id"] == "r"


async def test_a_full_queue_says_when_to_come_again(autojump_clock: Any) -> None:
    async with served(options={"max_pending": 1}) as client:
        await client.rt.pause_all()
        run = {"workflow": "greet", "input": "ann", "key": "k", "nowait": True}
        await client.good("POST", "/v1/runs", run)
        answer = await client.call("POST", "/v1/runs", run)
        assert (answer.status, answer.json["error"]) == (429, "Backpressure")
        assert answer.headers["retry-after"] == "1"


async def test_a_runtime_that_drains_keeps_runs_for_the_next_open_and_takes_no_calls(
    autojump_clock: Any,
) -> None:
    @step(timeout=None, shield=True)
    async def stubborn() -> None:
        await trio.sleep(5)

    @workflow
    async def slow(ctx: Context) -> None:
        await ctx.step(stubborn)

    async def ask(client: Client) -> None:
        await trio.sleep(2)
        submitted = await client.good("POST", "/v1/runs", {"workflow": "slow", "key": "k"})
        assert submitted["newly_submitted"]
        called = await client.call("POST", "/v1/entities/Bad/k2/go", {"args": ["other"]})
        assert (called.status, called.json["error"]) == (503, "StoreClosed")
        assert called.headers["retry-after"] == "1"
        ready = await client.call("GET", "/readyz")
        assert (ready.status, ready.body) == (503, b"draining")

    options = {"workflows": [slow], "entities": [Bad], "drain_timeout": 10}
    async with trio.open_nursery() as nursery, served(options=options) as client:
        await client.good("POST", "/v1/runs", {"workflow": "slow", "key": "k", "run_id": "r"})
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, client)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.NoOwner, 503),
        (errors.StoreReadOnly, 421),
        (errors.StoreLocked, 421),
        (errors.StoreFull, 507),
    ],
)
async def test_an_error_of_the_store_says_whether_to_come_again(
    error: type[Exception], status: int, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise error("it has another owner")

    async with served() as client:
        monkeypatch.setattr(client.api._performer, "perform", fail)
        answer = await client.call("POST", "/v1/pause")
    assert (answer.status, answer.json["error"]) == (status, error.__name__)
    assert answer.json["detail"] == "it has another owner"


async def test_a_closed_runtime_says_when_to_come_again(autojump_clock: Any) -> None:
    async with served() as client:
        await trio.testing.wait_all_tasks_blocked()
        await client.good("POST", "/v1/pause")
        assert (await client.call("GET", "/readyz")).body == b"ok"
    answer = await client.call("POST", "/v1/runs", {"workflow": "greet", "input": "a", "key": "k"})
    assert (answer.status, answer.json["error"]) == (503, "StoreClosed")
    assert answer.headers["retry-after"] == "1"
    with trio.fail_after(60):
        assert (await client.call("GET", "/v1/events")).status == 503
    assert (await client.call("GET", "/readyz")).status == 503
    assert (await client.call("GET", "/livez")).body == b"ok"


async def test_a_paused_runtime_accepts_runs_and_is_ready(autojump_clock: Any) -> None:
    async with served() as client:
        await client.good("POST", "/v1/pause")
        await trio.testing.wait_all_tasks_blocked()
        assert (await client.call("GET", "/readyz")).body == b"ok"
        client.rt._partition.state.draining = True
        assert (await client.call("GET", "/readyz")).body == b"draining"


async def test_a_condition_of_the_application_makes_it_not_ready(autojump_clock: Any) -> None:
    words = [None, "warming"]
    async with served(conditions=(lambda: words[0], lambda: words[1])) as client:
        await trio.testing.wait_all_tasks_blocked()
        answer = await client.call("GET", "/readyz", state={})
        assert (answer.status, answer.body) == (503, b"warming")


async def test_an_error_of_the_server_tells_no_secrets_and_is_logged(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError("the password is tiger")

    async with served() as client:
        monkeypatch.setattr(client.api._performer, "perform", fail)
        answer = await client.call("GET", "/v1/counts")
    assert answer.status == 500
    assert b"tiger" not in answer.body
    assert "RuntimeError" in answer.json["detail"]
    assert "tiger" in caplog.text


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"a": ', "line 1 column 7"),
        (b'{"input": {"b": [1, {"x": 1, "x": 2}]}}', "input.b[1]: the key 'x' occurs twice"),
        (b'{"input": [NaN]}', "input[0]: NaN is no JSON"),
        (b'{"input": ' + b"[" * 100_000, "nests too deep"),
        (b'{"input": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"input": "\xff"}', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
    ],
)
async def test_what_is_not_json_is_rejected_with_its_place(
    body: bytes, place: str, autojump_clock: Any
) -> None:
    async with served() as client:
        answer = await client.call("POST", "/v1/runs", body=body, headers=JSON)
        assert answer.status == 400
        assert place in answer.json["detail"]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"input": {"b": [1e999]}}', "input.b[0]: the number is too large"),
        (b'{"input": "\\ud800"}', "input: '\\ud800' has half of a surrogate pair"),
        (b'{"\\udfff": 1}', "the body: the key '\\udfff' has half of a surrogate pair"),
    ],
)
async def test_json_that_python_cannot_hold_is_rejected_with_its_place(
    body: bytes, detail: str, autojump_clock: Any
) -> None:
    async with served() as client:
        answer = await client.call("POST", "/v1/runs", body=body, headers=JSON)
        assert (answer.status, answer.json["detail"]) == (422, detail)


async def test_a_body_that_is_not_json_needs_another_path(autojump_clock: Any) -> None:
    async with served() as client:
        for kind in ([], [("content-type", "application/x-www-form-urlencoded")]):
            answer = await client.call("POST", "/v1/runs", body=b"{}", headers=kind)
            assert (answer.status, answer.json["error"]) == (415, "WrongContentType")


async def test_a_body_that_is_too_large_is_not_read(autojump_clock: Any) -> None:
    async with served(max_body=1000) as client:
        run = {"workflow": "greet", "input": "x" * 2000, "key": "k"}
        assert (await client.call("POST", "/v1/runs", run)).status == 413
        headers = [*JSON, ("content-length", "1001")]
        assert (await client.call("POST", "/v1/runs", body=b"{", headers=headers)).status == 413
        exchange = Exchange("POST", "/v1/runs", [b"x" * 600] * 100, headers=JSON)
        await client.api(exchange.scope, exchange.receive, exchange.send)
        assert exchange.answer.status == 413
        assert len(exchange._parts) > 90, "the rest of the body was read"


async def test_a_slow_body_is_not_waited_for(autojump_clock: Any) -> None:
    class Slow(Exchange):
        async def receive(self) -> dict[str, Any]:
            await trio.sleep(20)
            return {"type": "http.request", "body": b" ", "more_body": True}

    async with served() as client:
        begun = trio.current_time()
        exchange = Slow("POST", "/v1/runs", headers=JSON)
        await client.api(exchange.scope, exchange.receive, exchange.send)
        assert exchange.answer.status == 408
        assert trio.current_time() - begun < 31


async def test_the_idempotency_key_is_the_run_id(autojump_clock: Any) -> None:
    async with served() as client:
        run = {"workflow": "greet", "input": "ann", "key": "k"}
        for key in ("order-7", '"order-7"'):
            headers = [("idempotency-key", key)]
            assert (await client.good("POST", "/v1/runs", run, headers=headers))["run_id"] == (
                "order-7"
            )
        given = run | {"run_id": "r"}
        answer = await client.good("POST", "/v1/runs", given, headers=headers)
        assert answer["run_id"] == "r"
        headers = [("idempotency-key", "a b")]
        answer = await client.call("POST", "/v1/runs", run, headers=headers)
        assert (answer.status, answer.json["error"]) == (422, "InvalidRunId")


@pytest.mark.parametrize("name", ["Idempotency-Key", "Keyrun-Operation-Id"])
async def test_other_writes_have_an_operation_id(
    name: str, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    async def perform(_: Any, __: Any, ___: Any, operation_id: str | None) -> None:
        given.append(operation_id)

    async with served() as client:
        monkeypatch.setattr(client.api._performer, "perform", perform)
        await client.good("POST", "/v1/pause", headers=[(name, "7")])
    assert given == ["7"]


async def test_the_lifespan_of_a_server_is_answered() -> None:
    answers: list[str] = []
    asked = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> Any:
        return {"type": next(asked)}

    async def send(message: Any) -> None:
        answers.append(message["type"])

    api: Any = HttpApi(None, None)  # type: ignore[arg-type]
    await api({"type": "lifespan"}, receive, send)
    assert answers == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    await api({"type": "websocket"}, receive, send)
    assert answers[2:] == ["websocket.close"]


async def test_every_operation_has_a_route(autojump_clock: Any) -> None:
    async with served() as client:
        for operation in OPERATIONS.values():
            if not operation.path:
                continue
            path = "/v1" + operation.path.replace("{", "").replace("}", "")
            answer = await client.call("PROPFIND", path)
            assert answer.status == 405
            assert operation.verb in answer.headers["allow"]
