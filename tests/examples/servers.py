"""Servers of the examples as real processes, and customers that order from them."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import httpx

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
GUNICORN = ("-m", "gunicorn", "--bind", "fd://{fd}")


@attrs.frozen
class Shop:
    """An example with a server: how to start it, and how to read the entries of its steps."""

    name: str
    command: Sequence[str]
    entries: Callable[[Path], list[str]]
    prepare: Sequence[str] = ()

    @property
    def folder(self) -> Path:
        """The folder of the example."""
        return EXAMPLES / self.name

    @property
    def readme(self) -> str:
        """The page of the example."""
        return (self.folder / "README.md").read_text()


def _from_table(table: str) -> Callable[[Path], list[str]]:
    def entries(directory: Path) -> list[str]:
        if not (directory / "shop.db").exists():
            return []
        database = sqlite3.connect(directory / "shop.db", timeout=30)
        try:
            rows = database.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
        except sqlite3.OperationalError:
            return []  # the server has not made the table yet
        finally:
            database.close()
        return [row[-1] for row in rows]

    return entries


def _from_file(directory: Path) -> list[str]:
    ledger = directory / "ledger.txt"
    return ledger.read_text().splitlines() if ledger.exists() else []


FASTAPI = Shop("fastapi_shop", ("-m", "uvicorn", "main:app", "--fd", "{fd}"), _from_table("ledger"))
DJANGO = Shop(
    "django_shop",
    (*GUNICORN, "webshop.wsgi"),
    _from_table("webshop_entry"),
    prepare=("manage.py", "migrate", "--run-syncdb"),
)
FLASK = Shop("flask_shop", (*GUNICORN, "app:app"), _from_file)
SHOPS = (FASTAPI, DJANGO, FLASK)


class Server:
    """A server that listens on a socket of the test. The socket stays open while the server is
    down, so that clients wait until it is up again."""

    def __init__(self, shop: Shop, directory: Path, listener: socket.socket) -> None:
        self._shop = shop
        self._directory = directory
        self._listener = listener
        self._process: subprocess.Popen[str] | None = None
        host, port = listener.getsockname()
        self.address = f"http://{host}:{port}"
        self.closed = False

    def start(self, *options: str) -> None:
        """Start the server in a process group of its own."""
        fd = self._listener.fileno()
        command = [part.format(fd=fd) for part in (*self._shop.command, *options)]
        self._process = subprocess.Popen(
            [sys.executable, *command],
            cwd=self._directory,
            env=_environment(self._directory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=(fd,),
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill all processes of the server with SIGKILL, and wait until none of them runs."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=120)  # ends when no process has the pipe any more
        self._process = None

    def reload(self) -> None:
        """Let gunicorn replace its worker."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def stop(self) -> str:
        """Ask the server to end, and return what it wrote."""
        assert self._process is not None
        self._process.terminate()
        output, _ = self._process.communicate(timeout=180)
        # uvicorn repeats the signal for itself when it has shut down.
        assert self._process.returncode in (0, -signal.SIGTERM), output
        self._process = None
        return output

    def close(self) -> None:
        """Kill what still runs. Clients do not repeat their requests any more."""
        self.closed = True
        if self._process is not None:
            self.kill()
        self._listener.close()


def copy_example(shop: Shop, directory: Path) -> None:
    """Copy the files of an example, without the files that a run of it left behind."""
    for path in shop.folder.glob("**/*.*"):
        if path.suffix in (".py", ".md"):
            copy = directory / path.relative_to(shop.folder)
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(path, copy)


def _environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return {**kept, "HOME": str(home), "PYTHONPATH": ""}


@contextmanager
def serving(shop: Shop, directory: Path, *options: str) -> Iterator[Server]:
    """Start the server of an example. It keeps its files in `directory`."""
    copy_example(shop, directory)
    if shop.prepare:
        subprocess.run(
            [sys.executable, *shop.prepare],
            cwd=directory,
            env=_environment(directory),
            check=True,
            capture_output=True,
        )
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        server = Server(shop, directory, listener)
        server.start(*options)
        try:
            yield server
        finally:
            server.close()


class Client:
    """A client that repeats a request until the server has answered it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._http = httpx.Client(base_url=server.address, timeout=120, trust_env=False)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def order(self, order: dict[str, str]) -> None:
        """Place an order."""
        self._insist("POST", "/orders", order)

    def pay(self, order_id: str) -> None:
        """Call the webhook of the payment service."""
        self._insist("POST", f"/orders/{order_id}/paid")

    def result(self, order_id: str) -> str:
        """Wait for an order to ship."""
        text = self._insist("GET", f"/orders/{order_id}").text
        return str(json.loads(text)) if text.startswith('"') else text

    def _insist(self, method: str, path: str, body: object = None) -> httpx.Response:
        while True:
            try:
                response = self._http.request(method, path, json=body)
            except httpx.TransportError:
                if self._server.closed:
                    raise
                time.sleep(0.02)  # the server was killed
            else:
                assert response.is_success, response.text
                return response
