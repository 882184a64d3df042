"""`keyrun open`: a page that shows a store until Ctrl-C."""

import http.client
import json
import os
import pty
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from keyrun import open_runtime
from keyrun.control.page_address import page_address
from tests.keyrun.cli import invoke
from tests.keyrun.operated import gated
from tests.keyrun.serving import KEYRUN, patience, serving
from tests.keyrun.test_cli_serve import HTTP, SHOP, run_of


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a run, which no process has open."""

    async def make() -> None:
        async with open_runtime(tmp_path / "state", workflows=[gated]) as rt:
            await rt.submit(gated, key="ann", run_id="order-7")

    trio.run(make)
    return tmp_path / "state"


class Opened:
    """A process of `keyrun open`, and requests to it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        self.line = process.stdout.readline()
        found = re.search(r"(http://\S+)/#token=(\S+)", self.line)
        assert found is not None, self.line
        self.url, self.token = found[1], found[2]

    def ask(self, method: str, path: str, token: str | None) -> tuple[int, Any]:
        """Send a request, and return the status and the answer."""
        place = urlsplit(self.url).netloc
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection = http.client.HTTPConnection(place, timeout=30)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            is_json = "json" in (answer.getheader("content-type") or "")
            return answer.status, json.loads(body) if is_json else body.decode()
        finally:
            connection.close()

    def read_only(self) -> str | None:
        """Return why nothing can be changed."""
        status, answer = self.ask("GET", "/v1/session", self.token)
        assert status == 200
        why: str | None = answer["read_only"]
        return why


@contextmanager
def opened(folder: Path, *words: str) -> Iterator[Opened]:
    """Run `keyrun open` in a folder. The process is killed at the end."""
    with subprocess.Popen(
        [str(KEYRUN), "open", *words],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            yield Opened(process)
        finally:
            process.kill()


def test_an_idle_store_is_shown_and_not_changed_until_ctrl_c(store: Path) -> None:
    with opened(store.parent, "state") as page:
        assert page.line == (
            f"Open {page.url}/#token={page.token} to see state (read-only, because no process has "
            "it open). Ctrl-C ends it.\n"
        )
        assert urlsplit(page.url).hostname == "127.0.0.1"
        status, text = page.ask("GET", "/", None)
        assert status == 200
        assert "<main" in text
        assert page.ask("GET", "/v1/runs", None)[0] == 401
        assert page.ask("GET", "/v1/runs", "x" * 43)[0] == 401
        status, found = page.ask("GET", "/v1/runs", page.token)
        assert [each["run_id"] for each in found["runs"]] == ["order-7"]
        status, problem = page.ask("POST", "/v1/runs/order-7/cancel", page.token)
        assert (status, problem["error"]) == (421, "StoreReadOnly")
        assert page.read_only() in problem["detail"]
        page.process.send_signal(signal.SIGINT)
        assert page.process.wait(30) == 0
        assert page.process.stderr is not None
        assert page.process.stderr.read() == ""


def test_a_store_that_a_process_serves_is_changed_there_and_the_page_follows(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, *HTTP, source=SHOP) as server:
        server.announced()
        with opened(tmp_path, "state") as page:
            assert page.line.endswith("to see state (live). Ctrl-C ends it.\n")
            assert page.read_only() is None
            server.call("POST", "/v1/runs", {**run_of("x"), "delay": 3600})
            assert page.ask("POST", "/v1/runs/r/cancel", page.token) == (200, {"result": True})
            server.send(signal.SIGTERM)
            assert server.ended() == 0
            for _ in patience():
                if page.read_only() is not None:
                    break
            _, run = page.ask("GET", "/v1/runs/r", page.token)
            assert run["state"] == "cancelled"
            page.process.terminate()
            assert page.process.wait(30) == 0
            assert page.process.stderr is not None
            said = page.process.stderr.read()
            assert said == "No process answers for state any more. The page only reads it.\n"


def test_the_process_at_an_address_is_shown_with_the_role_of_the_token(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("a-token-of-16-letters read reader\n")
    (tmp_path / "given").write_text("a-token-of-16-letters\n")
    with serving(tmp_path, *HTTP, "--token-file", "tokens", source=SHOP) as server:
        server.announced()
        with opened(tmp_path, server.url, "--token-file", "given") as page:
            _, session = page.ask("GET", "/v1/session", page.token)
            assert (session["name"], session["role"]) == ("reader", "read")
            assert page.ask("POST", "/v1/pause", page.token)[0] == 403
        refused = invoke("open", server.url, env={"KEYRUN_TOKEN": "another-token-of-16"})
        assert refused.exit_code == 4
        assert "the token is not valid" in refused.stderr


def test_what_cannot_be_shown_is_an_error(store: Path, tmp_path: Path) -> None:
    missing = invoke("open", tmp_path / "nothing")
    assert (missing.exit_code, "does not exist" in missing.stderr) == (4, True)
    database = invoke("open", "postgresql://localhost/shop")
    assert (database.exit_code, "not a database" in database.stderr) == (2, True)
    address = invoke("open", store, "--http", "nonsense")
    assert (address.exit_code, "HOST:PORT" in address.stderr) == (2, True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        in_use = invoke("open", store, "--http", f"127.0.0.1:{port}")
    assert (in_use.exit_code, f"cannot listen on 127.0.0.1:{port}" in in_use.stderr) == (1, True)
    nobody = invoke("open", f"http://127.0.0.1:{port}")
    assert (nobody.exit_code, "no process answered" in nobody.stderr) == (4, True)


def test_on_a_terminal_serve_prints_the_address_of_the_page_with_a_token(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    with serving(tmp_path, *HTTP, source=SHOP, stdout=slave):
        os.close(slave)
        text = ""
        while text.count("\n") < 2:
            text += os.read(master, 65536).decode()
    os.close(master)
    first, second = text.splitlines()
    url = re.search(r"http://\S+", first)
    assert url is not None
    token = (tmp_path / "state/tokens").read_text().splitlines()[-1].split()[0]
    assert second == f"Open {url[0]}/#token={token}"


def test_what_serve_prints_elsewhere_has_no_token(tmp_path: Path) -> None:
    for words in ((), ("--json-logs",)):
        with serving(tmp_path, *HTTP, *words, source=SHOP) as server:
            if words:
                server.take(json.loads(server.until_logged("serving"))["message"])
            else:
                server.announced()
            server.until("/readyz", (200, "ok"))
            token = server.token
            server.send(signal.SIGTERM)
            assert server.ended() == 0
            assert server.process.stdout is not None
            assert token not in server.process.stdout.read() + "".join(server.errors)


@pytest.mark.parametrize(
    ("url", "allowed", "expected"),
    [
        ("http://127.0.0.1:8470", (), "http://127.0.0.1:8470/#token=a%2Fb"),
        ("http://[::1]:8470", (), "http://[::1]:8470/#token=a%2Fb"),
        ("http://0.0.0.0:8470", (), "http://localhost:8470/#token=a%2Fb"),
        ("http://[::]:8470", ("*", "shop.org"), "http://shop.org:8470/#token=a%2Fb"),
        ("http://0.0.0.0:8470", ("shop.org:99",), "http://shop.org:8470/#token=a%2Fb"),
        ("http://0.0.0.0:8470", ("[fd00::1]",), "http://[fd00::1]:8470/#token=a%2Fb"),
    ],
)
def test_the_address_of_the_page_can_be_opened(
    url: str, allowed: tuple[str, ...], expected: str
) -> None:
    assert page_address(url, "a/b", allowed) == expected


def test_the_address_to_listen_on_is_an_allowed_host(tmp_path: Path) -> None:
    with serving(tmp_path, "--http", "127.0.0.2:0", source=SHOP) as server:
        server.announced()
        assert server.get("/")[0] == 200
        assert server.get("/", Host="127.0.0.3")[0] == 403
