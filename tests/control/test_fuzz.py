"""Fuzzing: requests that the description of the API allows, requests that it does not, and bytes.

A server in another thread gets them over TCP. No answer is a 5xx, every answer is as `openapi.json`
describes it, and nothing is left behind. `make soak` sends 10,000 requests.
"""

import json
import random
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from time import monotonic, sleep
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
import requests
import schemathesis
import trio
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from keyrun.control import operations
from keyrun.control.openapi import FILE
from tests.control.conformity import check_answer
from tests.control.sockets import Listening, listening, statuses
from tests.control.world import greet, wait_for_boss, wait_for_go
from tests.faults.soaking import amount, shown

T = TypeVar("T")

DESCRIBED, RANDOM, RAW = amount(200, 6000), amount(240, 3000), amount(60, 1000)
SEED = 20
LATE = 30.0


class Running:
    """A server in another thread."""

    def __init__(self, server: Listening, token: trio.lowlevel.TrioToken) -> None:
        self.server = server
        self._token = token
        self.url = f"http://127.0.0.1:{server.port}"
        self.session = requests.Session()
        self.session.trust_env = False

    def do(self, function: Callable[[], T]) -> T:
        """Call a function in the thread of the server."""
        return trio.from_thread.run_sync(function, trio_token=self._token)

    def check(self, method: str, target: str, **more: Any) -> int:
        """Send a request, check its answer, and return the status."""
        headers = {"Authorization": f"Bearer {self.server.token.decode()}"}
        headers.update(more.pop("headers", {}))
        request = requests.Request(method, self.url, headers=headers, **more).prepare()
        request.url = self.url + target
        # The call of an entity waits if an earlier request has paused its key.
        may_wait = target.startswith("/v1/entities/")
        try:
            answer = self.session.send(request, stream=True, timeout=0.5 if may_wait else LATE)
        except requests.exceptions.ReadTimeout:
            assert may_wait
            return 0
        with answer:
            if answer.headers.get("content-type", "").startswith("text/event-stream"):
                body = next(answer.iter_content(100_000), b"")
            else:
                body = answer.content
        sent = f"{method} {target} {request.body!r:.500} {dict(request.headers)}"
        assert answer.status_code < 500, f"{sent} -> {answer.status_code} {body!r:.500}"
        named = {name.lower(): value for name, value in answer.headers.items()}
        try:
            check_answer(method, target, answer.status_code, named, body)
        except (AssertionError, KeyError, ValueError) as error:
            raise AssertionError(f"{sent} -> {answer.status_code} {body!r:.1000}") from error
        return answer.status_code

    def end_all_runs(self) -> None:
        """Delete all schedules and cancel all runs."""
        token = {"Authorization": f"Bearer {self.server.token.decode()}"}
        listed = self.session.get(f"{self.url}/v1/schedules", headers=token).json()
        for each in listed["schedules"]:
            place = quote(each["schedule_id"], safe="")
            assert self.check("DELETE", f"/v1/schedules/{place}") == 200
        more = True
        while more:
            wanted = {"since": 0, "preview": False, "limit": 1000}
            done = self.session.post(f"{self.url}/v1/bulk/cancel", headers=token, json=wanted)
            assert done.json()["failed"] == 0
            more = done.json()["cursor"] is not None


@contextmanager
def running(folder: Path) -> Iterator[Running]:
    """Serve a runtime in another thread."""
    found: Queue[Any] = Queue()

    async def main() -> None:
        try:
            async with listening(folder) as server:
                rt = server.rt
                await rt.submit(wait_for_go, key="k", run_id="waits")
                await rt.submit(wait_for_boss, key="b", run_id="gated")
                await (await rt.submit(greet, "ann", key="e", run_id="ended")).result()
                stop = trio.Event()
                found.put((server, trio.lowlevel.current_trio_token(), stop))
                await stop.wait()
        except BaseException as error:
            found.put(error)
            raise

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    begun = found.get()
    assert not isinstance(begun, BaseException)
    server, token, stop = begun
    known = Running(server, token)
    try:
        yield known
    finally:
        known.session.close()
        known.do(stop.set)
        thread.join()
    assert found.empty(), "the server has failed"


def task_count() -> int:
    """Return the number of tasks of this loop."""
    left, count = [trio.lowlevel.current_root_task()], 0
    while left:
        task = left.pop()
        assert task is not None
        count += 1
        left += [each for nursery in task.child_nurseries for each in nursery.child_tasks]
    return count


def left_behind() -> tuple[int, int]:
    """Return the number of connections, and of tasks."""
    files = [each for each in Path("/proc/self/fd").iterdir() if _is_socket(each)]
    return len(files), task_count()


def is_gone(before: tuple[int, int], now: tuple[int, int]) -> bool:
    """Return whether no more is left than before."""
    return now[0] <= before[0] + 1 and now[1] <= before[1]


def _is_socket(path: Path) -> bool:
    try:
        return str(path.readlink()).startswith("socket:")
    except OSError:
        return False


KNOWN = {
    "run_id": ["waits", "gated", "ended", "nope", "a b", "..", "\0", "x" * 200, "ü"],
    "key": ["k", "b", "e", "nope", "a/b", "", "\0", "x" * 300],
    "name": ["go", "stop", ""],
    "gate": ["boss", "nope"],
    "group_id": ["g", "nope", "\0", "x" * 600],
    "schedule_id": ["s", "nope", "x" * 600],
    "entity": ["Account", "os"],
    "method": ["deposit", "__init__", "nope"],
    "action": ["cancel", "pause", "resume", "redrive", "forget", "release"],
    "workflow": ["greet", "wait_for_go", "wait_for_boss", "os.system", ""],
}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400),
    *(
        0.5,
        -0.0,
        1e308,
        -1e308,
        5e-324,
        "",
        "x",
        "1",
        "-1",
        "nan",
        "inf",
        "1e400",
        "\0",
        "\x1b[31m",
    ),
    *("ü", "\U0001f600", "2024-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
    *("PT1S", "x" * 5000, [], [[]], {}, {"a": 1}, {"$bytes": "eA=="}, {"$bytes": 1}),
    *({"$float": "nan"}, {"$int": "9" * 30}, {"$x": 1}, {"a": {"a": {"a": [None]}}}, [1] * 500),
]


class Chance:
    """Makes requests that are nearly right."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        document = json.loads(FILE.read_text())
        self._schemas = document["components"]["schemas"]
        self.routes = [
            (verb.upper(), path, found)
            for path, verbs in document["paths"].items()
            for verb, found in verbs.items()
        ]

    def value(self, name: str) -> Any:
        """Return a value of an argument."""
        pool = KNOWN.get(name)
        return self.random.choice(pool if pool and self.random.random() < 0.8 else VALUES)

    def request(self) -> tuple[str, str, dict[str, Any]]:
        """Return a method, a target, and what else to send."""
        choice = self.random
        method, path, described = choice.choice(self.routes)
        target = re.sub(
            r"\{(\w+)\}", lambda place: quote(str(self.value(place[1])) or "-", safe=""), path
        )
        query = [
            f"{quote(each['name'])}={quote(str(self.value(each['name'])))}"
            for each in described.get("parameters", ())
            if each["in"] == "query" and choice.random() < 0.4
        ]
        if choice.random() < 0.1:
            query.append(choice.choice(["x=1", "wait", "limit=1&limit=2", "%ff=%ff", "=", "a[]=1"]))
        if query:
            target += "?" + "&".join(query)
        more: dict[str, Any] = {"headers": self._headers()}
        body = described.get("requestBody")
        if body or choice.random() < 0.1:
            more["data"] = self._body(body)
            kinds = ["application/json"] * 8 + ["application/x-ndjson", "text/plain", ""]
            more["headers"]["Content-Type"] = choice.choice(kinds)
        if choice.random() < 0.1:
            method = choice.choice(
                ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "X"]
            )
        return method, target, more

    def _headers(self) -> dict[str, str]:
        choice = self.random
        odd = ["", "x", "a b", "x" * 500, "\xff", '"', "0-0", "00000000-1", "null", "a, b", "1e9"]
        names = ["Idempotency-Key", "Last-Event-ID", "Origin", "Sec-Fetch-Site", "Accept", "Range"]
        names += ["Cookie", "If-Match", "X-Forwarded-Host", "Accept-Encoding", "TE", "Host"]
        return {each: choice.choice(odd) for each in names if choice.random() < 0.1}

    def _body(self, described: Any) -> bytes:
        choice = self.random
        data: Any = {}
        if described:
            schema = described["content"]["application/json"]["schema"]
            for name in schema.get("properties", {}):
                if name in schema.get("required", ()) or choice.random() < 0.3:
                    data[name] = self.value(name)
        if choice.random() < 0.05:
            data = self.value("")
        text = bytearray(json.dumps(data, ensure_ascii=choice.random() < 0.5).encode())
        if choice.random() < 0.1 and text:
            text[choice.randrange(len(text))] = choice.randrange(256)
        return bytes(text)

    def raw(self, token: bytes) -> bytes:
        """Return bytes that are nearly a request."""
        choice = self.random
        method, path, _ = choice.choice(self.routes)
        body = b'{"key": "k"}'
        text = bytearray(
            b"%b %b HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
            % (method.encode(), path.encode(), token, len(body), body)
        )
        for _ in range(choice.randrange(1, 6)):
            at = choice.randrange(len(text))
            match choice.randrange(3):
                case 0:
                    text[at] = choice.randrange(256)
                case 1:
                    del text[at : at + choice.randrange(10)]
                case _:
                    text[at:at] = choice.choice(
                        [b"\r\n", b"\0", b":", b" ", b"\r\n\r\n", b"x" * 99]
                    )
        return bytes(text)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Return a server. Requests that wait do so for a short time."""
    monkeypatch.setattr(operations, "LONGEST_WAIT", 0.02)
    monkeypatch.setattr("keyrun.control.streams.PATIENCE", 0.02)
    with running(tmp_path) as found:
        yield found


def test_no_request_is_answered_with_an_error_of_the_server(server: Running) -> None:
    for _ in range(3):
        server.check("GET", "/v1/counts")
    before = server.do(left_behind)
    schema = schemathesis.openapi.from_dict(json.loads(FILE.read_text()))
    chance = Chance(SEED)
    operations_found: Any = schema.get_all_operations()
    every = [found.ok() for found in operations_found]

    @seed(SEED)
    @settings(
        max_examples=DESCRIBED,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(
        st.one_of(
            [each.as_strategy(generation_mode=mode) for each in every for mode in GenerationMode]
        )
    )
    def described(case: Any) -> None:
        given = case.as_transport_kwargs(base_url=server.url)
        headers = {
            name: value
            for name, value in given.pop("headers", {}).items()
            if name.lower() != "authorization"
        }
        whole = requests.Request(given.pop("method"), given.pop("url"), **given).prepare()
        target = str(whole.path_url)
        if whole.body is not None:
            headers.setdefault("Content-Type", whole.headers.get("Content-Type", ""))
        server.check(str(whole.method), target, headers=headers, data=whole.body)

    described()
    statuses_seen = set()
    for _ in shown(range(RANDOM), "random requests", RANDOM):
        method, target, more = chance.request()
        try:
            statuses_seen.add(server.check(method, target, **more))
        except (requests.exceptions.InvalidHeader, UnicodeError):
            continue  # the client refuses to send it
    assert {200, 404, 405, 422} <= statuses_seen
    for _ in shown(range(RAW), "broken requests", RAW):
        with socket.create_connection(("127.0.0.1", server.server.port), timeout=LATE) as client:
            client.sendall(chance.raw(server.server.token))
            client.settimeout(0.02)
            try:
                received = client.recv(100_000)
            except OSError:
                continue
            assert all(each < 500 or each == 501 for each in statuses(received)), received
    server.session.close()
    server.check("POST", "/v1/resume")
    assert server.check("GET", "/v1/counts") == 200
    server.end_all_runs()
    server.session.close()
    until = monotonic() + LATE
    # The client of this test has one connection again.
    while not is_gone(before, now := server.do(left_behind)) and monotonic() < until:
        sleep(0.05)
    assert is_gone(before, now), (before, now)
