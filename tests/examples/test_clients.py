"""The clients for JavaScript and the shell work against a real server, also if it is killed."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.examples.servers import EXAMPLES

FOLDER = EXAMPLES / "clients"
LIMIT = 60
ADDRESS = re.compile(r"Serving orders:app at (http://127\.0\.0\.1:(\d+)) ")


class Shop:
    """The application of the clients, served by a process."""

    def __init__(self, store: Path, port: int = 0) -> None:
        self.store = store
        program = "from keyrun.cli import main; main()"
        command = ["serve", "orders:app", f"--store={store}", f"--http=127.0.0.1:{port}"]
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", program, *command, "--log-level=error"],
            cwd=FOLDER,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        found = ADDRESS.match(self._process.stdout.readline())
        assert found is not None
        self.address, self.port = found[1], int(found[2])

    @property
    def environment(self) -> dict[str, str]:
        """The environment of clients on TCP."""
        lines = (self.store / "tokens").read_text().splitlines()
        (token,) = (line.split()[0] for line in lines if not line.startswith("#"))
        return {**os.environ, "KEYRUN_ADDRESS": self.address, "KEYRUN_TOKEN": token}

    def kill(self) -> None:
        """End the process at once."""
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=LIMIT)


@contextmanager
def serving(store: Path, port: int = 0) -> Iterator[Shop]:
    shop = Shop(store, port)
    try:
        yield shop
    finally:
        with suppress(ProcessLookupError):
            shop.kill()


@pytest.fixture
def node() -> str:
    """Return the path of Node."""
    found = shutil.which("node")
    if found is None:
        assert os.environ.get("CI") != "true", "install Node: the JavaScript example needs it"
        pytest.skip("Node is not installed")
    return found


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=FOLDER,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def output(process: subprocess.Popen[str]) -> list[str]:
    with process:
        try:
            text, _ = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    assert process.returncode == 0, text
    return text.splitlines()


REJECTED = (
    "ValueError 422 input.price: 'much' is not the text of a Decimal: it is not a decimal number"
)
RECEIPTS = [
    "js-tea { number: 1, receipt: '2.50 for tea' }",
    "js-ink { number: 9007199254740993n, receipt: '1.20 for ink' }",
    "js-desk { number: 3, receipt: '250 for desk' }",
]


def test_javascript_submits_decides_waits_and_watches(node: str, tmp_path: Path) -> None:
    with serving(tmp_path / "state") as shop:
        rejected, *receipts, seen = output(start([node, "order.mjs"], shop.environment))
    assert rejected == REJECTED
    assert receipts == RECEIPTS
    assert sorted(re.findall(r"'(\S+)'", seen)) == ["js-desk", "js-ink", "js-tea"]


def test_javascript_continues_when_the_server_is_killed_and_started_again(
    node: str, tmp_path: Path
) -> None:
    with serving(tmp_path / "state") as shop:
        client = start([node, "order.mjs"], shop.environment)
        assert client.stdout is not None
        assert client.stdout.readline().strip() == REJECTED
        shop.kill()
        with serving(tmp_path / "state", shop.port):
            *receipts, seen = output(client)
    assert receipts == RECEIPTS
    assert "missed" in seen


@pytest.mark.parametrize("over", ["socket", "tcp"])
def test_a_shell_script_submits_and_waits(over: str, tmp_path: Path) -> None:
    with serving(tmp_path / "state") as shop:
        environment = shop.environment
        if over == "socket":
            environment = {**os.environ, "KEYRUN_SOCKET": str(tmp_path / "state" / "control.sock")}
        command = ["sh", "order.sh", "order-1", "ann"]
        order = '{"number": 1, "item": "tea", "price": "2.50"}'
        for _ in range(2):  # a repeat is the same run
            (receipt,) = output(start([*command, order], environment))
            assert receipt == '{"result":{"number":1,"receipt":"2.50 for tea"}}'
        wrong = start([*command, order.replace("2.50", "3")], environment)
        with wrong:
            said, _ = wrong.communicate(timeout=LIMIT)
        assert wrong.returncode == 1
        assert "409" in said
        assert "InputMismatch" in said
