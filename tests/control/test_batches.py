"""Batches: one run per line, one answer per line."""

import json
from typing import Any

import trio

from keyrun.control import batches
from tests.control.world import Client, Exchange, served

LINES = [("content-type", "application/x-ndjson")]


def lines_of(runs: list[Any]) -> bytes:
    return b"".join(json.dumps(run).encode() + b"\n" for run in runs)


async def submit(client: Client, body: bytes, **more: Any) -> list[Any]:
    """Submit the lines of a body, and return the answers."""
    headers = [*LINES, *more.pop("headers", ())]
    answer = await client.call("POST", "/v1/runs", body=body, headers=headers, **more)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.body.splitlines()]


async def test_each_line_is_a_run(autojump_clock: Any) -> None:
    async with served() as client:
        runs = [
            {"workflow": "greet", "input": "ann", "key": f"k{number}", "run_id": f"r{number}"}
            for number in range(100)
        ]
        commits = client.rt.statistics().commits.commits
        answers = await submit(client, lines_of(runs))
        assert [each["run_id"] for each in answers] == [each["run_id"] for each in runs]
        assert all(each["newly_submitted"] for each in answers)
        assert client.rt.statistics().commits.commits - commits < 10
        again = await submit(client, lines_of(runs)[:-1])
        assert not any(each["newly_submitted"] for each in again)
        assert [each["number"] for each in again] == [each["number"] for each in answers]


async def test_a_line_that_cannot_be_submitted_has_its_problem(autojump_clock: Any) -> None:
    async with served() as client:
        good = {"workflow": "greet", "input": "ann", "key": "k"}
        body = lines_of([good, {"workflow": "nope", "key": "k"}, good | {"x": 1}, [], good])
        answers = await submit(client, b"{broken\n\n  \r\n" + body)
        assert [each.get("status", 200) for each in answers] == [400, 200, 404, 422, 422, 200]
        assert answers[0]["error"] == "BrokenJson"
        assert answers[2]["error"] == "UnknownWorkflow"
        assert "run has no field 'x'" in answers[3]["detail"]


async def test_lines_may_arrive_in_any_parts(autojump_clock: Any) -> None:
    async with served() as client:
        body = lines_of([{"workflow": "greet", "input": "ü", "key": f"k{n}"} for n in range(20)])
        parts = [body[at : at + 7] for at in range(0, len(body), 7)]
        exchange = Exchange("POST", "/v1/runs", parts, headers=LINES)
        await client.api(exchange.scope, exchange.receive, exchange.send)
        answers = [json.loads(line) for line in exchange.answer.body.splitlines()]
        assert [each["key"] for each in answers] == [f"k{n}" for n in range(20)]


async def test_a_client_that_disconnects_has_submitted_the_lines_that_it_sent(
    autojump_clock: Any,
) -> None:
    async with served() as client:
        line = lines_of([{"workflow": "greet", "input": "ann", "key": "k"}])
        exchange = Exchange("POST", "/v1/runs", [line * 3, line[:20], b""], headers=LINES)
        receive = exchange.receive

        async def cut() -> dict[str, Any]:
            if len(exchange._parts) == 1:
                await exchange.until(b"\n")
                return {"type": "http.disconnect"}
            return await receive()

        await client.api(exchange.scope, cut, exchange.send)
        answers = [json.loads(each) for each in exchange.answer.body.splitlines()]
        assert [each.get("error") for each in answers] == [None, None, None, "Disconnected"]
        assert len(await client.rt.runs()) == 3


async def test_a_client_that_pauses_within_a_batch_is_not_waited_for(autojump_clock: Any) -> None:
    async with served(body_seconds=5) as client:
        line = lines_of([{"workflow": "greet", "input": "ann", "key": "k"}])
        exchange = Exchange("POST", "/v1/runs", [line, line], headers=LINES)
        receive = exchange.receive

        async def slowly() -> dict[str, Any]:
            if len(exchange._parts) == 1:
                await trio.sleep(9)
            return await receive()

        await client.api(exchange.scope, slowly, exchange.send)
        answers = [json.loads(each) for each in exchange.answer.body.splitlines()]
        assert [each.get("status", 200) for each in answers] == [200, 408]


async def test_a_batch_is_read_as_it_comes_and_may_be_larger_than_any_body(
    autojump_clock: Any,
) -> None:
    async with served(max_body=1000, options={"max_pending": 10**6}) as client:
        await client.rt.pause_all()
        run = {"workflow": "greet", "input": "x" * 500, "key": "k"}
        part = lines_of([run] * 20)
        exchange = Exchange("POST", "/v1/runs", [part] * 50, headers=LINES)
        await client.api(exchange.scope, exchange.receive, exchange.send)
        answers = exchange.answer.body.splitlines()
        assert len(answers) == 1000
        assert len(exchange.parts) > 25, "the answers came at the end"


async def test_answers_come_while_the_client_still_sends(autojump_clock: Any) -> None:
    async with served() as client:
        line = lines_of([{"workflow": "greet", "input": "ann", "key": "k"}])
        exchange = Exchange("POST", "/v1/runs", [line, line], headers=LINES)
        paused = trio.Event()
        receive = exchange.receive

        async def slowly() -> dict[str, Any]:
            if len(exchange._parts) == 1:
                await paused.wait()
            return await receive()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.api, exchange.scope, slowly, exchange.send)
            await exchange.until(b"\n")
            assert not exchange.over
            paused.set()
        assert len(exchange.answer.body.splitlines()) == 2


async def test_the_idempotency_key_names_the_runs(autojump_clock: Any) -> None:
    async with served() as client:
        run = {"workflow": "greet", "input": "ann", "key": "k"}
        body = lines_of([run, run | {"run_id": "own"}, run])
        for new in (True, False):
            answers = await submit(client, body, headers=[("idempotency-key", "batch-7")])
            assert [each["run_id"] for each in answers] == ["batch-7-0", "own", "batch-7-2"]
            assert [each["newly_submitted"] for each in answers] == [new] * 3


async def test_runs_of_a_batch_that_find_no_room_do_not_wait_one_after_the_other(
    autojump_clock: Any,
) -> None:
    async with served(options={"max_pending": 2, "backpressure_timeout": 10}) as client:
        await client.rt.pause_all()
        run = {"workflow": "greet", "input": "ann", "key": "k"}
        begun = trio.current_time()
        answers = await submit(client, lines_of([run] * 6))
        assert [each.get("status", 200) for each in answers] == [200, 200, 429, 429, 429, 429]
        assert trio.current_time() - begun < 11


async def test_runs_of_one_key_keep_the_order_of_the_lines(autojump_clock: Any) -> None:
    async with served(options={"max_pending": 3}) as client:
        run = {"workflow": "greet", "input": "ann", "key": "k"}
        answers = await submit(client, lines_of([run] * 30))
        numbers = [each["number"] for each in answers]
        assert numbers == sorted(numbers)


async def test_a_line_that_is_too_long_ends_the_batch(autojump_clock: Any) -> None:
    async with served(max_body=1000) as client:
        run = {"workflow": "greet", "input": "ann", "key": "k"}
        many = await submit(client, lines_of([run] * 100))
        assert len(many) == 100
        answers = await submit(client, lines_of([run]) + b"x" * 2000)
        assert [each.get("status", 200) for each in answers][-1] == 413


async def test_a_client_that_does_not_read_stops_the_batch(
    autojump_clock: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(batches, "MOST_UNREAD", 500)
    async with served() as client:
        line = lines_of([{"workflow": "greet", "input": "ann", "key": "k"}])
        exchange = Exchange("POST", "/v1/runs", [line] * 1000, headers=LINES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.api, exchange.scope, exchange.receive, exchange.send)
            await exchange.until(b"\n")
            exchange.stop_reading()
            await trio.sleep(20)
            assert len(exchange._parts) > 900
            exchange._may_send.set()
        assert len(exchange.answer.body.splitlines()) == 1000


async def test_a_batch_is_also_an_operation_with_one_body(autojump_clock: Any) -> None:
    async with served() as client:
        runs = [{"workflow": "greet", "input": "ann", "key": "k"}, {"workflow": "x", "key": "k"}]
        answers = (await client.good("POST", "/v1/batches", {"runs": runs}))["result"]
        assert answers[0]["newly_submitted"]
        assert (answers[1]["status"], answers[1]["error"]) == (404, "UnknownWorkflow")


async def test_a_text_is_no_list_of_texts(autojump_clock: Any) -> None:
    async with served() as client:
        run = {"workflow": "greet", "input": "ann", "key": "k"}
        answers = await submit(client, lines_of([run | {"tags": "ab"}, run | {"headers": "x"}]))
        assert [each["status"] for each in answers] == [422, 422]
        assert answers[0]["detail"].startswith("run.tags: ")
