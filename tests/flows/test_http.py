"""The http node: what a real server sees, what is tried again and what is not."""

import gzip
from email.utils import formatdate
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, FailureKind, Retry, RunCancelled, workflow
from keyrun.flows.nodes.http import http
from keyrun.runtime.definitions.step import step
from keyrun.testing import open_test_runtime
from tests.flows.nodes import Given, failure_of, run_node
from tests.flows.server import Reply, Server, serving


async def test_the_server_sees_the_request_with_its_templates_filled_in(server: Server) -> None:
    node = http(
        server.url + "/orders/{{ input.id }}",
        method="post",
        params={"page": "{{ input.page }}", "fixed": "a b"},
        headers={"X-Customer": "{{ outputs.customer.name }}"},
        json={"total": "{{ output.total }}", "note": "order {{ input.id }}", "list": [1, None]},
    )
    server.replies = [Reply(status=201, body={"done": True}, headers={"X-Mark": "7"})]
    answer = await run_node(
        node,
        {"id": 7, "page": 2},
        output={"total": 12.5},
        outputs={"customer": {"name": "Ann"}},
    )
    assert answer["status"] == 201
    assert answer["body"] == {"done": True}
    assert answer["headers"]["x-mark"] == "7"
    (request,) = server.requests
    assert (request.method, request.target) == ("POST", "/orders/7?page=2&fixed=a+b")
    assert request.headers["x-customer"] == "Ann"
    assert request.headers["content-type"] == "application/json"
    assert request.json == {"total": 12.5, "note": "order 7", "list": [1, None]}


async def test_params_come_to_those_that_the_url_has(server: Server) -> None:
    await run_node(http(server.url + "/?a=1&b=2", params={"b": 3, "c": ["x", "y"]}))
    await run_node(http(server.url + "/?a=1", params={}))
    assert [each.target for each in server.requests] == ["/?a=1&b=3&c=x&c=y", "/?a=1"]


@pytest.mark.parametrize(
    ("body", "kind", "sent"),
    [
        ({"form": {"a": "{{ input }}", "b": ["1", "2"]}}, "urlencoded", b"a=x%26y&b=1&b=2"),
        ({"body": "plain {{ input }}"}, None, b"plain x&y"),
        ({"json": "{{ input }}"}, "application/json", b'"x&y"'),
    ],
)
async def test_a_body_is_json_a_form_or_text(
    server: Server, body: dict[str, Any], kind: str | None, sent: bytes
) -> None:
    await run_node(http(server.url, method="PUT", **body), "x&y")
    (request,) = server.requests
    assert request.body == sent
    assert (kind is None) == ("content-type" not in request.headers)
    assert (kind or "") in request.headers.get("content-type", "")


async def test_every_attempt_carries_the_same_idempotency_key(server: Server) -> None:
    server.replies = [Reply(status=500), Reply(status=503), Reply()]
    await run_node(http(server.url, method="POST"))
    keys = {request.headers["idempotency-key"] for request in server.requests}
    assert len(server.requests) == 3
    (key,) = keys
    assert len(key) == 32


async def test_the_name_of_the_idempotency_header_can_be_chosen(server: Server) -> None:
    await run_node(http(server.url, idempotency_header="X-Once"))
    await run_node(http(server.url, idempotency_header=None))
    first, second = server.requests
    assert "x-once" in first.headers
    assert not {"x-once", "idempotency-key"} & second.headers.keys()


@pytest.mark.parametrize("status", [500, 502, 503, 504, 599, 408, 425, 429])
async def test_these_statuses_are_transient(server: Server, status: int) -> None:
    server.replies = [Reply(status=status), Reply(body="fine")]
    answer = await run_node(http(server.url))
    assert answer["body"] == "fine"
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422, 451])
async def test_other_4xx_are_permanent(server: Server, status: int) -> None:
    server.replies = [Reply(status=status, body="because\nof this")]
    address = server.url.replace("//", "//ann:secret@")
    failure = await failure_of(http(address + "/path?secret=1"))
    assert failure.kind is FailureKind.PERMANENT_ERROR
    assert f"GET {server.url}/path answered {status}" in failure.reason
    assert "because of this" in failure.reason
    assert "secret" not in failure.reason
    assert len(server.requests) == 1


async def test_a_status_can_be_accepted_as_an_answer(server: Server) -> None:
    server.replies = [Reply(status=404, body={"why": "gone"})]
    answer = await run_node(http(server.url, accept=[404]))
    assert (answer["status"], answer["body"]) == (404, {"why": "gone"})


async def test_a_redirect_is_followed_only_when_that_was_asked_for(server: Server) -> None:
    def answer(request: Any) -> Reply:
        if request.target == "/old":
            return Reply(status=302, headers={"location": "/new"})
        return Reply(body=request.target)

    server.answer = answer
    failure = await failure_of(http(server.url + "/old"))
    assert "follow_redirects" in failure.reason
    found = await run_node(http(server.url + "/old", follow_redirects=True))
    assert found["body"] == "/new"


async def test_a_connection_that_is_refused_is_transient() -> None:
    async with serving() as gone:
        pass
    failure = await failure_of(http(gone.url))
    assert failure.kind is FailureKind.STEP_FAILED
    assert failure.attempt == 3


async def test_a_connection_that_is_cut_is_transient(server: Server) -> None:
    server.replies = [Reply(drop=True), Reply(body="fine")]
    assert (await run_node(http(server.url)))["body"] == "fine"


async def test_a_server_that_does_not_answer_runs_into_the_timeout_of_the_step(
    server: Server,
) -> None:
    server.replies = [Reply(hang=True)]
    failure = await failure_of(http(server.url), timeout=0.05, retry=Retry.none())
    assert failure.kind is FailureKind.STEP_TIMEOUT
    assert "0.05 s" in failure.reason


async def delays(reply: Reply, retry: Retry, clock: MockClock) -> tuple[float, float]:
    """Of a run whose server says `reply` first: the delay in its history, and the real one."""
    async with serving() as server:
        server.replies = [reply, Reply()]
        node = step(http(server.url)).options(name="node", retry=retry)

        @workflow(name="polite")
        async def polite(ctx: Context) -> None:
            await ctx.step(node, Given())

        async with open_test_runtime(workflows=[polite]) as runtime:
            run = await runtime.submit(polite, key="k")
            while not (told := [e.delay for e in await runtime.history(run.run_id) if e.delay]):
                await trio.sleep(0.01)
            # Otherwise it would be spent from one look at the clock to the next.
            clock.jump(max(told[0] - 10, 0))
            await run.result()
        return told[0], server.times[1] - server.times[0]


PROMPT = Retry.fixed(max_attempts=2, delay=1, jitter=0)


@pytest.mark.parametrize(
    ("status", "said", "least"),
    [
        (429, "120", 120),
        (503, "90", 90),
        (429, "0", 1),
        (429, "soon", 1),
        (429, "-5", 1),
        (429, formatdate(0, usegmt=True), 1),
        (500, "99999999999", 86_400),
    ],
)
def test_the_next_attempt_waits_for_as_long_as_the_server_says_and_no_less_than_the_policy(
    status: int, said: str, least: float
) -> None:
    # Virtual time jumps once nothing has moved for a moment, for the network is real.
    clock = MockClock(autojump_threshold=0.1)
    reply = Reply(status=status, headers={"retry-after": said})
    told, waited = trio.run(delays, reply, PROMPT, clock, clock=clock)
    assert told == least
    assert waited == pytest.approx(least, abs=0.5)


def test_the_time_to_wait_may_be_given_as_a_date() -> None:
    from time import time

    reply = Reply(status=503, headers={"retry-after": formatdate(time() + 300, usegmt=True)})
    clock = MockClock(autojump_threshold=0.1)
    told, _ = trio.run(delays, reply, PROMPT, clock, clock=clock)
    assert 200 < told <= 300


async def test_what_is_no_text_and_no_json_stays_bytes(server: Server) -> None:
    server.replies = [Reply(body=b"\x00\xff", headers={"content-type": "image/png"})]
    assert (await run_node(http(server.url)))["body"] == b"\x00\xff"


async def test_text_is_decoded_as_the_server_says(server: Server) -> None:
    kind = "text/plain; charset=iso-8859-1"
    server.replies = [Reply(body="é".encode("latin-1"), headers={"content-type": kind})]
    assert (await run_node(http(server.url)))["body"] == "é"


async def test_json_that_is_none_is_an_error_and_tried_again(server: Server) -> None:
    broken = Reply(body=b"{", headers={"content-type": "application/json"})
    server.replies = [broken, Reply(body=[1])]
    assert (await run_node(http(server.url)))["body"] == [1]


async def test_an_answer_that_is_too_large_is_refused_with_its_size(server: Server) -> None:
    server.replies = [Reply(body="x" * 2000)]
    failure = await failure_of(http(server.url, max_output=1000))
    assert failure.kind is FailureKind.PERMANENT_ERROR
    assert "2,000 bytes" in failure.reason
    assert "1,000" in failure.reason


async def test_an_answer_that_unpacks_to_too_much_is_refused(server: Server) -> None:
    packed = gzip.compress(b"x" * 10_000_000)
    head = {"content-type": "text/plain", "content-encoding": "gzip"}
    server.replies = [Reply(body=packed, headers=head)]
    failure = await failure_of(http(server.url))
    assert "the response has more than 1,048,576 bytes" in failure.reason
    assert "1,048,576" in failure.reason


async def test_a_secret_comes_from_the_environment_and_only_where_it_is_asked_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    headers = {"Authorization": "Bearer {{ env.TOKEN }}"}
    await run_node(http(server.url, headers=headers, env=["TOKEN"]))
    assert server.requests[0].headers["authorization"] == "Bearer s3cret"
    failure = await failure_of(http(server.url, headers=headers))
    assert "there is no 'TOKEN' in the mapping" in failure.reason
    monkeypatch.delenv("TOKEN")
    failure = await failure_of(http(server.url, headers=headers, env=["TOKEN"]))
    assert "the environment variable TOKEN is not set" in failure.reason


@pytest.mark.parametrize(
    "sent",
    [
        {"url": "/a/{{ env.TOKEN }}"},
        {"url": "/a", "params": {"token": "{{ env.TOKEN }}"}},
        {"url": "/a", "headers": {"X": "{{ env.TOKEN }}\n"}},
    ],
    ids=["path", "query", "header"],
)
async def test_a_secret_is_in_no_error(
    sent: dict[str, Any], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret/+")
    server.answer = lambda request: Reply(status=404, body={"no": [request.target, "s3cret/+"]})
    url = server.url + sent.pop("url")
    failure = await failure_of(http(url, env=["TOKEN"], **sent))
    assert "$TOKEN" in failure.reason
    assert "s3cret" not in failure.reason
    assert "s3cret" not in (failure.traceback or "")


async def test_a_header_that_cannot_be_sent_is_named_and_permanent(server: Server) -> None:
    failure = await failure_of(http(server.url, headers={"X-Name": "Zoë"}))
    assert failure.kind is FailureKind.PERMANENT_ERROR
    assert "the header 'X-Name' must be ASCII" in failure.reason


async def test_truth_and_nothing_are_the_same_in_params_and_forms(server: Server) -> None:
    given = {"a": [True, 1], "b": None, "c": "x"}
    await run_node(http(server.url, method="POST", params=given, form=given))
    (request,) = server.requests
    assert request.target.partition("?")[2] == request.body.decode() == "a=true&a=1&b=&c=x"
    failure = await failure_of(http(server.url, params={"deep": {"x": 1}}))
    assert "params.deep requires text, got a mapping" in failure.reason


async def test_cookies_of_one_request_are_nothing_to_the_next(server: Server) -> None:
    server.replies = [Reply(headers={"set-cookie": "who=ann; Path=/"})]
    await run_node(http(server.url))
    await run_node(http(server.url))
    assert "cookie" not in server.requests[1].headers


async def test_connections_are_used_again(server: Server) -> None:
    for _ in range(5):
        await run_node(http(server.url))
    assert (len(server.requests), server.connections) == (5, 1)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///etc/passwd", "missing an 'http://' or 'https://' protocol"),
        ("nothing", "missing an 'http://' or 'https://' protocol"),
        ("http://", "missing an 'http://' or 'https://' protocol"),
        ("http://127.0.0.1:1/\n", "URL"),
        ("{{ input }}", "http.url requires text, got a mapping"),
    ],
)
async def test_a_url_that_is_none_is_permanent(url: str, message: str) -> None:
    failure = await failure_of(http(url), {})
    assert failure.kind is FailureKind.PERMANENT_ERROR
    assert message in failure.reason


async def test_a_header_cannot_be_smuggled_in(server: Server) -> None:
    node = http(server.url, headers={"X-Name": "{{ input }}"})
    failure = await failure_of(node, "a\r\nX-Evil: 1")
    assert failure.kind is FailureKind.PERMANENT_ERROR
    assert server.requests == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "FETCH"}, "method must be one of GET, HEAD"),
        ({"json": 1, "body": "x"}, "a request has one body"),
        ({"accept": [99]}, "accept requires statuses from 200 to 599, got 99"),
    ],
)
def test_a_node_that_cannot_be_is_refused_when_it_is_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        http("http://127.0.0.1", **options)


async def test_a_cancelled_run_leaves_no_request_behind(server: Server) -> None:
    server.replies = [Reply(hang=True)]

    @workflow(name="patient")
    async def patient(ctx: Context) -> Any:
        return await ctx.step(http(server.url), Given())

    async with open_test_runtime(workflows=[patient]) as runtime:
        run = await runtime.submit(patient, key="k")
        while not server.requests:
            await trio.sleep(0.001)
        assert await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
