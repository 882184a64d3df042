"""`keyrun serve` in a process of its own, and requests to it."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KEYRUN = Path(sys.executable).parent / "keyrun"
PATIENCE = 30.0


class _ToSocket(http.client.HTTPConnection):
    """A connection to a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


class Serving:
    """A process that serves an application."""

    def __init__(self, process: "subprocess.Popen[str]", store: Path, url: str) -> None:
        self.process = process
        self.store = store
        self.url = url
        self.errors: list[str] = []
        """The lines of stderr."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def announced(self) -> str:
        """The line that says where the API is."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "".join(self.errors)
        return self.take(line)

    def take(self, line: str) -> str:
        """Take the address from the line that says it."""
        found = re.search(r"http://\S+", line)
        self.url = found[0] if found else ""
        return line

    @property
    def token(self) -> str:
        return (self.store / "tokens").read_text().splitlines()[-1].split()[0]

    def get(self, path: str, *, over_socket: bool = False, **headers: str) -> tuple[int, str]:
        """The status and the body of a request without a token."""
        return self._request("GET", path, None, headers, over_socket=over_socket)

    def call(self, method: str, path: str, data: Any = None) -> Any:
        """The JSON of a request with a token."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        status, body = self._request(method, path, data, headers)
        assert status == 200, body
        return json.loads(body)

    def _request(
        self, method: str, path: str, data: Any, headers: Any, *, over_socket: bool = False
    ) -> tuple[int, str]:
        place = self.url.removeprefix("http://")
        connection = (
            _ToSocket(self.store / "control.sock")
            if over_socket
            else http.client.HTTPConnection(place, timeout=PATIENCE)
        )
        try:
            body = None if data is None else json.dumps(data)
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def until(self, path: str, expected: tuple[int, str]) -> None:
        """Wait until a probe answers what is expected."""
        found: object = None
        for _ in patience():
            try:
                found = self.get(path)
            except (OSError, http.client.HTTPException) as error:
                found = error  # nobody listens yet, or the drain has cut the request off
            if found == expected:
                return
        raise AssertionError(f"{path}: {found}\n{''.join(self.errors)}")

    def until_logged(self, text: str) -> str:
        """Wait until a line of stderr has a text, and return that line."""
        for _ in patience():
            for line in list(self.errors):
                if text in line:
                    return line
        raise AssertionError(f"no line has {text!r}:\n{''.join(self.errors)}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join()
        return code


def patience() -> Iterator[None]:
    """Yield every few milliseconds, for a while."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        yield
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def serving(
    folder: Path,
    *words: str,
    source: str | None = None,
    umask: int = 0o022,
    command: Path = KEYRUN,
    **given: Any,
) -> Iterator[Serving]:
    """Run `keyrun serve shop:app` in a folder. The process is killed at the end."""
    if source is not None:
        (folder / "shop.py").write_text(source)
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **given}
    with subprocess.Popen(
        [str(command), "serve", "shop:app", "--store", "state", *words],
        cwd=folder,
        text=True,
        umask=umask,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        **options,
    ) as process:
        try:
            yield Serving(process, folder / "state", "")
        finally:
            process.kill()
