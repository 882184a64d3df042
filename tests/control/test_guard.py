"""The guard: each rule, attacked."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio

import keyrun
from keyrun.control import batches
from keyrun.control.frames import MEDIA_TYPE as CHANNEL
from keyrun.control.guard import COOKIE, ApplicationGuard, Guard, Hosts, TokenGuard
from keyrun.control.roles import Role
from keyrun.control.table import OPERATIONS
from keyrun.control.tokens import BadTokenFile, TokenFile
from keyrun.groups import Member
from tests.control.sockets import listening
from tests.control.world import Client, Exchange, served, wait_for_go

SECRETS = {role: f"{role}-token-{'x' * 16}" for role in Role}
LOCAL = ("host", "localhost:8000")
JSON = ("content-type", "application/json")
SAME = ("sec-fetch-site", "same-origin")
ALICE = ("x-user", "alice")


def bearer(role: Role) -> tuple[str, str]:
    """Return the header with the token of a role."""
    return "authorization", f"Bearer {SECRETS[role]}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a token file with one token for each role."""
    path = tmp_path / "tokens"
    write(path, "\n".join(f"{secret} {role} of-{role}" for role, secret in SECRETS.items()))
    return path


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a token file."""
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)


@pytest.fixture
def guard(path: Path) -> TokenGuard:
    """Return the guard of a server on TCP."""
    return TokenGuard(TokenFile(path))


async def tcp(client: Client, method: str, target: str, *headers: tuple[str, str]) -> int:
    """Send a request through TCP, and return the status of the answer."""
    return (await client.call(method, target, headers=headers, state={})).status


async def log_in(client: Client, role: Role = Role.ADMIN) -> tuple[str, str]:
    """Return the header with the cookie for a token."""
    headers = [LOCAL, bearer(role)]
    answer = await client.call("POST", "/v1/session", headers=headers, state={})
    assert answer.status == 200
    set_cookie = answer.headers["set-cookie"]
    assert "; HttpOnly" in set_cookie
    assert "; SameSite=Strict" in set_cookie
    assert SECRETS[role] not in set_cookie
    return "cookie", f"other=1; {set_cookie.partition(';')[0]}"


def method_and_path(name: str) -> tuple[str, str]:
    """Return the method and a path of an operation."""
    operation = OPERATIONS[name]
    return operation.verb, "/v1" + operation.path.replace("{", "").replace("}", "")


async def test_a_peer_of_the_socket_needs_no_token_and_may_name_any_host(
    guard: TokenGuard, autojump_clock: Any
) -> None:
    async with served(guard=guard) as client:
        answer = await client.good("GET", "/v1/session", headers=[("host", "evil.example")])
        assert (answer["name"], answer["role"]) == ("uid 1000", "admin")


@pytest.mark.parametrize("name", [name for name, each in OPERATIONS.items() if each.path])
async def test_an_operation_is_refused_without_a_token_and_with_a_wrong_one(
    name: str, guard: TokenGuard, autojump_clock: Any
) -> None:
    async with served(guard=guard) as client:
        method, path = method_and_path(name)
        ok = [LOCAL, SAME, JSON]
        assert await tcp(client, method, path, *ok) == 401
        for wrong in ("Bearer nope", "Bearer", "Bearer ", "Basic YWRtaW46eA==", "bearer \xff"):
            assert await tcp(client, method, path, *ok, ("authorization", wrong)) == 401
        assert (
            await tcp(client, method, path, *ok, ("cookie", f"{COOKIE}_8000=of-admin.9.x.y")) == 401
        )


@pytest.mark.parametrize("name", [name for name, each in OPERATIONS.items() if each.path])
async def test_an_operation_is_refused_to_a_role_that_is_too_low(
    name: str, guard: TokenGuard, autojump_clock: Any
) -> None:
    async with served(guard=guard) as client:
        operation = OPERATIONS[name]
        method, path = method_and_path(name)
        for role in Role:
            if not role.may(operation.role):
                assert await tcp(client, method, path, bearer(role)) == 403


async def test_a_reader_writes_nothing(guard: TokenGuard, autojump_clock: Any) -> None:
    async with served(guard=guard) as client:
        await client.rt.submit(wait_for_go, key="k", run_id="r")
        for name in ("cancel", "pause", "resume", "redrive", "forget"):
            method, path = method_and_path(name)
            path = path.replace("run_id", "r")
            assert await tcp(client, method, path, bearer(Role.READ)) == 403, name
        assert await tcp(client, "GET", "/v1/runs/r", bearer(Role.READ)) == 200
        assert await tcp(client, "GET", "/v1/runs/r", bearer(Role.METRICS)) == 403
        assert await tcp(client, "POST", "/v1/runs/r/cancel", bearer(Role.SUBMIT)) == 403
        assert await tcp(client, "DELETE", "/v1/runs/r", bearer(Role.OPERATE)) == 403
        assert (await client.rt.status("r")).state == "waiting"


async def test_a_batch_needs_the_role_before_it_begins(
    guard: TokenGuard, autojump_clock: Any
) -> None:
    async with served(guard=guard) as client:
        lines = ("content-type", "application/x-ndjson")
        assert await tcp(client, "POST", "/v1/runs", bearer(Role.READ), lines) == 403


READS = ["/v1/counts", "/v1/runs/r", "/v1/events", "/v1/openapi.json", "/v1/session", "/nowhere"]


@pytest.mark.parametrize("target", READS)
@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io"])
async def test_a_name_that_points_at_this_machine_reads_nothing(
    target: str, host: str, guard: TokenGuard, autojump_clock: Any
) -> None:
    async with served(guard=guard) as client:
        cookie = await log_in(client)
        for headers in ([("host", host)], [("host", host), cookie]):
            assert await tcp(client, "GET", target, *headers) == 403
        assert await tcp(client, "POST", "/v1/pause", ("host", host), cookie, SAME, JSON) == 403
        assert await tcp(client, "DELETE", "/v1/session", ("host", host), cookie, SAME, JSON) == 403
        assert await tcp(client, "GET", "/v1/counts", ("host", host), bearer(Role.READ)) == 200


@pytest.mark.parametrize(
    "host", ["", "localhost:8000 evil", "localhost@evil.example", "localhost/x", "[::1]]", "a:b:c"]
)
async def test_a_host_that_is_no_host_is_refused(
    host: str, guard: TokenGuard, autojump_clock: Any
) -> None:
    async with served(guard=guard) as client:
        cookie = await log_in(client)
        assert await tcp(client, "GET", "/v1/counts", ("host", host), cookie) == 400
        twice = ("host", "localhost"), ("host", "evil.example")
        assert await tcp(client, "GET", "/v1/counts", *twice, cookie) == 400
        assert await tcp(client, "GET", "/v1/counts", *twice, bearer(Role.READ)) == 400


async def test_a_page_reads_and_writes_with_its_cookie(
    guard: TokenGuard, autojump_clock: Any
) -> None:
    async with served(guard=guard) as client:
        cookie = await log_in(client, Role.OPERATE)
        for host in ("localhost:8000", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000"):
            assert await tcp(client, "GET", "/v1/counts", ("host", host), cookie) == 200
        assert await tcp(client, "POST", "/v1/pause", LOCAL, cookie, SAME, JSON) == 200
        origin = ("origin", "http://localhost:8000")
        assert await tcp(client, "POST", "/v1/pause", LOCAL, cookie, origin, JSON) == 200
        assert await tcp(client, "DELETE", "/v1/outbox", LOCAL, cookie, SAME, JSON) == 403


async def test_pages_of_two_servers_on_one_host_have_sessions_of_their_own(
    guard: TokenGuard, autojump_clock: Any
) -> None:
    """Browsers send a cookie to all ports of its host."""
    async with served(guard=guard) as client:
        cookies = []
        for host in ("localhost:8000", "localhost:9000", "localhost"):
            headers = [("host", host), bearer(Role.ADMIN)]
            answer = await client.call("POST", "/v1/session", headers=headers, state={})
            cookies.append(answer.headers["set-cookie"].partition(";")[0])
        assert len({each.partition("=")[0] for each in cookies}) == 3
        both = ("cookie", "; ".join(cookies[:2]))
        assert await tcp(client, "DELETE", "/v1/session", LOCAL, both, SAME, JSON) == 200
        assert await tcp(client, "GET", "/v1/counts", LOCAL, both) == 401
        assert await tcp(client, "GET", "/v1/counts", ("host", "localhost:9000"), both) == 200
        assert await tcp(client, "GET", "/v1/counts", ("host", "localhost"), both) == 401


@pytest.mark.parametrize(
    "sent",
    [
        [],
        [("sec-fetch-site", "cross-site")],
        [("sec-fetch-site", "same-site")],
        [("sec-fetch-site", "none")],
        [("sec-fetch-site", "cross-site"), ("origin", "http://localhost:8000")],
        [("origin", "http://evil.example")],
        [("origin", "http://localhost:9000")],
        [("origin", "null")],
        [("origin", "localhost:8000")],
        [("origin", "ftp://localhost:8000")],
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_a_page_of_another_site_writes_nothing(
    sent: list[tuple[str, str]], method: str, guard: TokenGuard, autojump_clock: Any
) -> None:
    async with served(guard=guard) as client:
        cookie = await log_in(client)
        for target in ("/v1/pause", "/v1/schedules/s", "/v1/session"):
            if (method, target) != ("POST", "/v1/session"):
                assert await tcp(client, method, target, LOCAL, cookie, JSON, *sent) == 403


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
async def test_a_form_writes_nothing(kind: str, guard: TokenGuard, autojump_clock: Any) -> None:
    async with served(guard=guard) as client:
        cookie = await log_in(client)
        headers = LOCAL, cookie, SAME, ("content-type", kind)
        assert await tcp(client, "POST", "/v1/pause", *headers) == 415
        assert await tcp(client, "POST", "/v1/pause", LOCAL, cookie, SAME) == 415


async def test_a_session_ends(
    guard: TokenGuard, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(guard=guard) as client:
        cookie, other = await log_in(client), await log_in(client)
        assert cookie != other
        headers = [LOCAL, cookie, SAME, JSON]
        answer = await client.call("DELETE", "/v1/session", headers=headers, state={})
        assert answer.status == 200
        assert f"{COOKIE}_8000=;" in answer.headers["set-cookie"]
        assert await tcp(client, "GET", "/v1/counts", LOCAL, cookie) == 401
        assert await tcp(client, "GET", "/v1/counts", LOCAL, other) == 200
        monkeypatch.setattr("keyrun.control.tokens.SESSION_SECONDS", -2)
        ended = await log_in(client)
        assert await tcp(client, "GET", "/v1/counts", LOCAL, ended) == 401


async def test_a_session_begins_with_a_token_only(guard: TokenGuard, autojump_clock: Any) -> None:
    async with served(guard=guard) as client:
        cookie = await log_in(client)
        assert await tcp(client, "POST", "/v1/session", LOCAL, cookie, SAME, JSON) == 401
        wrong = ("authorization", "Bearer nope")
        assert await tcp(client, "POST", "/v1/session", LOCAL, wrong) == 401


async def test_a_changed_cookie_is_not_valid(guard: TokenGuard, autojump_clock: Any) -> None:
    async with served(guard=guard) as client:
        name, cookie = await log_in(client, Role.READ)
        for changed in (
            cookie.replace("of-read", "of-admin"),
            cookie[:-1] + ("0" if cookie[-1] != "0" else "1"),
            cookie.replace("of-read.", "of-read.9"),
            f"{COOKIE}_8000=",
            f"{COOKIE}_8000=ü",
        ):
            assert await tcp(client, "GET", "/v1/counts", LOCAL, (name, changed)) == 401
        assert await tcp(client, "GET", "/v1/counts", LOCAL, (name, cookie)) == 200


async def test_tokens_rotate_without_a_restart(
    path: Path, guard: TokenGuard, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TokenFile, "every", 0)
    async with served(guard=guard) as client:
        cookie = await log_in(client)
        write(path, f"{'n' * 20} admin of-admin")
        assert await tcp(client, "GET", "/v1/counts", LOCAL, cookie) == 401
        assert await tcp(client, "GET", "/v1/counts", bearer(Role.ADMIN)) == 401
        new = ("authorization", f"Bearer {'n' * 20}")
        assert await tcp(client, "GET", "/v1/counts", new) == 200
        path.chmod(0o644)
        assert await tcp(client, "GET", "/v1/counts", new) == 401
        path.chmod(0o600)
        assert await tcp(client, "GET", "/v1/counts", new) == 200
        path.unlink()
        assert await tcp(client, "GET", "/v1/counts", new) == 401


class Endless(Exchange):
    """A request whose client goes on sending."""

    async def receive(self) -> dict[str, Any]:
        return {**await super().receive(), "more_body": True}


LINE = b'{"workflow": "wait_for_go", "key": "b"}\n'
LASTING = {
    "events": ("GET", "/v1/events", b"", ""),
    "watch": ("GET", "/v1/runs/r/watch", b"", ""),
    "outcomes": ("GET", "/v1/groups/g/outcomes", b"", ""),
    "wait for a status": ("GET", "/v1/runs/r?wait=60", b"", ""),
    "wait for a result": ("GET", "/v1/runs/r/result?wait=60", b"", ""),
    "batch": ("POST", "/v1/runs", LINE, batches.MEDIA_TYPE),
    "channel": ("POST", "/v1/channel", b"", CHANNEL),
}
"""Requests that last: the method, the target, the first part of the body and its type."""


def replace_token(tokens: TokenFile, _: str) -> None:
    write(tokens.path, f"{'n' * 20} admin of-admin")


def break_file(tokens: TokenFile, _: str) -> None:
    tokens.path.chmod(0o644)


def lower_role(tokens: TokenFile, _: str) -> None:
    write(tokens.path, f"{SECRETS[Role.ADMIN]} metrics of-admin")


def end_session(tokens: TokenFile, cookie: str) -> None:
    tokens.end_session(cookie.partition(f"{COOKIE}_8000=")[2])


ENDS = [
    (name, end)
    for name in LASTING
    for end in (replace_token, break_file, lower_role, end_session)
    # A channel requires no role, because each of its calls does. It needs a token.
    if name != "channel" or end in (replace_token, break_file)
]


@pytest.mark.parametrize(("name", "end"), ENDS)
async def test_a_request_that_lasts_ends_when_its_caller_is_not_admitted_any_more(
    name: str,
    end: Callable[[TokenFile, str], None],
    path: Path,
    autojump_clock: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TokenFile, "every", 0)
    tokens = TokenFile(path)
    async with served(guard=TokenGuard(tokens)) as client:
        await client.rt.submit(wait_for_go, key="k", run_id="r")
        await client.rt.submit_group("g", [Member(wait_for_go, key="m")])
        cookie = await log_in(client)
        method, target, body, kind = LASTING[name]
        who = [LOCAL, SAME, cookie] if end is end_session else [bearer(Role.ADMIN)]
        headers = [*who, *([("content-type", kind)] if kind else [])]
        exchange = Endless(method, target, body, headers=headers, state={})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.api, exchange.scope, exchange.receive, exchange.send)
            await trio.sleep(10.5)  # not when a heartbeat is sent
            lasted = not exchange.over
            end(tokens, cookie[1])
            await trio.sleep(2)
            assert exchange.over
            assert lasted
        answer = exchange.answer
        refused = 403 if end is lower_role else 401
        if name.startswith("wait"):
            assert answer.status == refused
        elif name != "channel":
            assert answer.status == 200
            assert f'"status":{refused}'.encode() in answer.body
            exchange.check()


async def test_a_client_whose_role_is_lowered_may_do_only_what_the_new_role_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TokenGuard, "every", 0.01)
    monkeypatch.setattr(TokenFile, "every", 0)
    async with listening(tmp_path) as server:
        address, token = f"http://127.0.0.1:{server.port}", server.token.decode()
        async with keyrun.connect(address, token=token) as client:
            await client.submit(wait_for_go, key="k", run_id="r")
            write(tmp_path / "tokens", f"{token} read ann")
            with trio.fail_after(30), pytest.raises(PermissionError, match="the role operate"):
                while True:
                    await client.pause("r")
            status = await client.status("r")
            assert status is not None
            write(tmp_path / "tokens", f"{'n' * 20} admin ann")
            with trio.fail_after(30), pytest.raises(PermissionError, match="not valid"):
                while True:
                    await client.status("r")


async def test_a_stream_ends_when_the_application_has_logged_the_user_out(
    autojump_clock: Any,
) -> None:
    users = {"alice": "read"}

    async def authorize(request: Any) -> Any:
        user = request.headers["x-user"]
        return (user, users[user]) if user in users else None

    guard = ApplicationGuard(authorize, None, ["shop.example"])
    async with served(guard=guard) as client:
        headers = [("host", "shop.example"), ALICE]
        async with client.stream("/v1/events", headers=headers, state={}) as stream:
            await trio.sleep(62)  # not when a heartbeat is sent
            lasted = not stream.over
            del users["alice"]
            await trio.sleep(ApplicationGuard.every + 1)
            assert stream.over
            assert lasted
            assert b"log in to the application first" in b"".join(stream.parts)


@pytest.mark.parametrize(
    ("text", "mode", "complaint"),
    [
        (f"{'s' * 20} admin a", 0o640, "chmod 600"),
        (f"{'s' * 20} admin a", 0o604, "chmod 600"),
        (f"{'s' * 20} admin", 0o600, "got 2 words"),
        (f"{'s' * 20} root a", 0o600, "the role must be one of"),
        ("s3cret admin a", 0o600, "at least 16"),
        (f"{'s' * 20}\u00fc admin a", 0o600, "at least 16"),
        (f"{'s' * 20} admin a\n{'t' * 20} read a", 0o600, "a name of its own"),
        (f"{'s' * 20} admin a:b", 0o600, "a name of its own"),
    ],
)
def test_a_bad_token_file_is_refused_and_its_tokens_are_not_said(
    tmp_path: Path, text: str, mode: int, complaint: str
) -> None:
    path = tmp_path / "tokens"
    write(path, text, mode)
    with pytest.raises(BadTokenFile, match=complaint) as caught:
        TokenFile(path)
    assert "sss" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_new_token_file_is_only_for_its_owner(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = TokenFile.create(tmp_path / "tokens")
    finally:
        os.umask(before)
    assert made.path.stat().st_mode & 0o777 == 0o600
    secret, role, _ = made.path.read_text().splitlines()[-1].split()
    assert len(secret) >= 40
    assert role == "admin"
    assert secret not in repr(made._tokens)
    again = TokenFile.create(tmp_path / "tokens").caller(secret.encode())
    assert again is not None
    assert again.role is Role.ADMIN


@pytest.mark.parametrize("kind", ["pipe", "folder", "large", "dangling link"])
def test_a_token_file_that_is_no_file_of_lines_is_refused_at_once(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "tokens"
    if kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "folder":
        path.mkdir(0o700)
    elif kind == "large":
        write(path, f"# {'x' * (1 << 20)}")
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(BadTokenFile):
        TokenFile.create(path)
    assert not (tmp_path / "nowhere").exists()


def test_a_token_file_of_another_user_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if path.stat().st_uid == 0:
        assert TokenFile(path).trouble is None
    else:
        with pytest.raises(BadTokenFile, match="belongs to the user"):
            TokenFile(path)
    if os.getuid() == 0:
        os.chown(path, 4321, -1)
        with pytest.raises(BadTokenFile, match="belongs to the user 4321"):
            TokenFile(path)


async def test_a_refused_operation_is_logged_with_who_wanted_it(
    guard: TokenGuard, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(guard=guard) as client:
        await tcp(client, "POST", "/v1/pause", bearer(Role.READ))
        assert "refused pause_all to 'of-read': it has the role read" in caplog.text
        assert SECRETS[Role.READ] not in caplog.text


async def test_a_request_writes_no_lines_of_its_own_into_the_log(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    async with served() as client:
        client.api._performer.perform = fail
        path = "/v1/runs/a\r\nERROR forged \x1b[31m/input"
        exchange = Exchange("GET", path)
        exchange.scope["raw_path"] = quote(path).encode()
        await client.api(exchange.scope, exchange.receive, exchange.send)
        assert exchange.answer.status == 500
    (record,) = [each for each in caplog.records if each.exc_info]
    assert "forged" in record.getMessage()
    assert record.getMessage().isprintable()


def test_a_token_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadTokenFile, match="No such file"):
        TokenFile(tmp_path / "tokens")


async def test_no_token_is_logged_or_answered(
    guard: TokenGuard, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)

    async def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    async with served(guard=guard) as client:
        cookie = await log_in(client)
        client.api._performer.perform = fail
        said = []
        for headers in (
            [bearer(Role.ADMIN)],
            [LOCAL, cookie],
            [("authorization", "Bearer abcdefg")],
        ):
            answer = await client.call("GET", "/v1/counts", headers=headers, state={})
            assert answer.status in (401, 500)
            said.append(answer.body.decode())
    text = "".join(said) + caplog.text + str([vars(each) for each in caplog.records])
    assert "RuntimeError: broken" in text
    for secret in (SECRETS[Role.ADMIN], cookie[1].rpartition(".")[2], "abcdefg"):
        assert secret not in text


@pytest.mark.parametrize("target", ["/livez", "/readyz"])
async def test_a_probe_needs_no_token_and_no_host(
    target: str, guard: TokenGuard, autojump_clock: Any
) -> None:
    async with served(guard=guard) as client:
        answer = await client.call("GET", target, headers=[("host", "10.0.0.7:8080")], state={})
        assert answer.status in (200, 503)
        assert answer.body in (b"ok", b"recovering")
        assert await tcp(client, "POST", target, LOCAL, SAME, JSON) == 401


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/v1/counts", [bearer(Role.READ)]),
        ("/v1/counts", []),
        ("/livez", []),
        ("/nowhere", [LOCAL]),
        ("/v1/session", [bearer(Role.READ)]),
    ],
)
async def test_every_answer_has_the_headers_that_keep_browsers_strict(
    target: str, headers: list[tuple[str, str]], guard: TokenGuard, autojump_clock: Any
) -> None:
    async with served(guard=guard) as client:
        for method in ("GET", "POST", "OPTIONS", "DELETE"):
            answer = await client.call(method, target, headers=headers, state={})
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert not any(name.startswith("access-control") for name in answer.headers)


async def test_a_header_of_a_request_never_becomes_a_header_of_an_answer(
    guard: TokenGuard, autojump_clock: Any
) -> None:
    async with served(guard=guard) as client:
        evil = "r%0d%0aset-cookie:%20x=1"
        sent = [
            bearer(Role.ADMIN),
            ("idempotency-key", "a\r\nset-cookie: x=1"),
            ("last-event-id", "a\r\nset-cookie: x=1"),
            ("x-forwarded-host", "evil.example"),
        ]
        for target in (f"/v1/runs/{evil}", f"/v1/runs?key={evil}", f"/{evil}"):
            answer = await client.call("GET", target, headers=sent, state={})
            for name, value in answer.headers.items():
                assert "set-cookie" not in name + value
                assert "\r" not in name + value
                assert "\n" not in name + value
        evil = "/a\r\nset-cookie: x=1"
        answer = await client.call(
            "POST", "/v1/session", headers=[bearer(Role.ADMIN)], state={}, root_path=evil
        )
        assert "\r" not in answer.headers["set-cookie"]


async def test_too_many_headers_are_refused(guard: TokenGuard, autojump_clock: Any) -> None:
    async with served(guard=guard) as client:
        many = [(f"x-{number}", "y") for number in range(300)]
        assert await tcp(client, "GET", "/v1/counts", bearer(Role.READ), *many) == 431
        target = "/v1/runs?key=" + "k" * 20_000
        assert await tcp(client, "GET", target, bearer(Role.READ)) == 414


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../../etc/passwd",
        "/v1/runs/../../../../etc/passwd",
        "/v1/runs/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/v1/openapi.json/../owner.py",
        "/v1/%2e%2e/%2e%2e/etc/passwd",
        "/v1/openapi.json%00",
        "//etc/passwd",
    ],
)
async def test_a_path_leads_to_no_file(target: str, guard: TokenGuard, autojump_clock: Any) -> None:
    async with served(guard=guard) as client:
        assert await tcp(client, "GET", target, bearer(Role.ADMIN)) in (404, 405, 422)


def application(tokens: Path | None = None) -> Guard:
    """Return the guard of an application, which logs users in by a header."""

    def authorize(request: Any) -> Any:
        user = request.headers.get("x-user")
        return None if user is None else (user, request.headers.get("x-role", "operate"))

    file = None if tokens is None else TokenFile(tokens)
    return ApplicationGuard(authorize, file, ["shop.example"])


async def test_an_application_says_who_calls(path: Path, autojump_clock: Any) -> None:
    shop = ("host", "shop.example")
    async with served(guard=application()) as client:
        headers = [shop, ALICE]
        answer = await client.good("GET", "/v1/session", headers=headers, state={})
        assert answer == {
            "name": "alice",
            "role": "operate",
            "namespace": "default",
            "version": keyrun.__version__,
            "read_only": None,
        }
        assert await tcp(client, "GET", "/v1/counts", shop) == 401
        assert await tcp(client, "GET", "/v1/counts", LOCAL, ALICE) == 403
        assert await tcp(client, "POST", "/v1/pause", shop, ALICE, JSON) == 403
        assert await tcp(client, "POST", "/v1/pause", shop, ALICE, JSON, SAME) == 200
        token = ("authorization", "Bearer a.b.c")
        assert await tcp(client, "POST", "/v1/pause", shop, ALICE, token) == 200
        assert await tcp(client, "GET", "/v1/counts", LOCAL, ALICE, token) == 403
        assert await tcp(client, "POST", "/v1/session", shop, ALICE, token) == 405
        assert await tcp(client, "GET", "/v1/counts", shop, ALICE, ("x-role", "king")) == 500
    async with served(guard=application(path)) as client:
        assert await tcp(client, "GET", "/v1/counts", bearer(Role.READ)) == 200


def test_a_list_of_hosts_is_checked() -> None:
    with pytest.raises(TypeError, match="several strings"):
        Hosts("localhost")
    with pytest.raises(ValueError, match="not a host"):
        Hosts(["http://localhost"])
