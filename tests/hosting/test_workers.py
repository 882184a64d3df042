"""Workers of one server on one store, under load, while the worker that owns it is killed."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import pytest

from tests.faults.soaking import amount, shown
from tests.hosting.worker_app import note
from tests.keyrun.pasting import slowness

ROOT = Path(__file__).parent.parent.parent
SERVERS = {
    "uvicorn": (
        "uvicorn tests.hosting.worker_app:app --workers 4 --fd {fd} --log-level warning "
        "--timeout-worker-healthcheck 10",
        amount(5, 100),
    ),
    "gunicorn": (
        "gunicorn tests.hosting.thread_worker_app:app --workers 3 --threads 12 --bind fd://{fd} "
        "--log-level warning",
        amount(1, 20),
    ),
}
"""The command of each server, and how many owners are killed."""
CUSTOMERS = 6
FOLLOWERS = 3
AT_MOST = 2.0
"""Seconds from the death of the owner to the answer of a call that began after it."""


class Killed(Exception):
    """The worker at the other end of a connection was killed."""


class Site:
    """The workers, and what all their clients know."""

    def __init__(self, store: Path, port: int) -> None:
        self.store = store
        self.port = port
        self.killed: set[int] = set()
        self.seen: set[int] = set()
        """The workers that have answered."""
        self.over = threading.Event()
        self.following = threading.Semaphore(0)
        """Released for each stream of events that has begun."""
        self.gap = threading.Event()
        """Set when a stream of events has marked a gap."""
        self.faults: list[str] = []

    @property
    def owner(self) -> int:
        """The process that owns the store, or 0 while there is none."""
        with suppress(FileNotFoundError, ValueError):
            return int((self.store / "owner.lock").read_text())
        return 0


class Browser:
    """A client that stays with one worker, and tells its death from any other error."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._connection: HTTPConnection | None = None
        self.pid = 0

    def open(self) -> HTTPConnection:
        """Return a connection to a worker that is known."""
        while self._connection is None:
            connection = HTTPConnection("127.0.0.1", self._site.port, timeout=90)
            try:
                connection.request("GET", "/pid")
                self.pid = int(connection.getresponse().read())
            except (OSError, HTTPException):
                connection.close()  # it was accepted by a worker that was killed
                sleep(0.01)
                continue
            self._site.seen.add(self.pid)
            self._connection = connection
        return self._connection

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def ask(self, method: str, path: str) -> str:
        """Send a request until it is answered. Only a worker that was killed may not answer."""
        while True:
            connection = self.open()
            try:
                connection.request(method, path)
                answer = connection.getresponse()
                text = answer.read().decode()
            except (OSError, HTTPException) as error:
                self.close()
                if self.pid not in self._site.killed:
                    self._site.faults.append(f"{method} {path} in {self.pid}: {error!r}")
                continue
            if answer.status != 200:
                self._site.faults.append(f"{method} {path} in {self.pid}: {answer.status} {text}")
            return text


def shop(site: Site, customer: int, acknowledged: list[int]) -> None:
    """Place orders one after the other, and wait for each second one."""
    browser, at = Browser(site), 0
    while not site.over.is_set():
        name = f"c{customer}-{at}"
        browser.ask("POST", f"/orders/c{customer}/{name}")
        acknowledged[customer] = at + 1
        if at % 2:
            assert browser.ask("GET", f"/orders/{name}") == f'"{name}"'
            note(f"{name} seen")
        browser.ask("POST", f"/deposits/a{customer}/{name}")
        at += 1
        if at % 20 == 0:
            browser.close()  # perhaps another worker
        sleep(0.01)
    for rest in range(at):
        assert browser.ask("GET", f"/orders/c{customer}-{rest}") == f'"c{customer}-{rest}"'
    balance = browser.ask("POST", f"/deposits/a{customer}/last")
    if int(balance) != at + 1:
        site.faults.append(f"{balance} deposits instead of {at + 1}")
    browser.close()


def listen(site: Site) -> None:
    """Follow the events through a worker that is a client. The stream ends only with the
    worker."""
    browser = Browser(site)
    while not site.over.is_set():
        connection = browser.open()
        if browser.pid == site.owner:
            browser.close()
            sleep(0.05)
            continue
        with suppress(OSError, HTTPException):
            connection.request("GET", "/events")
            answer = connection.getresponse()
            while line := answer.readline():
                if line.startswith(b"open"):
                    site.following.release()
                if line.startswith(b"missed"):
                    site.gap.set()
                if site.over.is_set():
                    break
        if not site.over.is_set() and browser.pid not in site.killed:
            site.faults.append(f"the events of {browser.pid} ended")
        browser.close()


@contextmanager
def workers(folder: Path, command: str) -> Iterator[Site]:
    """Start a server with workers that share a store, and stop it at the end."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        port, fd = listener.getsockname()[1], listener.fileno()
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command.format(fd=fd).split()],
                cwd=ROOT,
                env={**os.environ, "STORE": str(folder / "store")},
                stdout=log,
                stderr=log,
                pass_fds=(fd,),
                start_new_session=True,
            )
        try:
            yield Site(folder / "store", port)
            process.terminate()
            assert process.wait(60) in (0, -signal.SIGTERM), (folder / "log").read_text()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def kill_owner(site: Site) -> float:
    """Kill the owner, and return the seconds until a call that begins after that is answered."""
    browser = Browser(site)
    while True:
        browser.open()
        dead = site.owner
        # The owner is one of the workers, and the browser is with another one.
        if dead in site.seen - site.killed - {browser.pid}:
            break
        browser.close()
        sleep(0.02)
    site.killed.add(dead)
    os.kill(dead, signal.SIGKILL)
    began = monotonic()
    name = f"k-{len(site.killed)}"
    browser.ask("POST", f"/orders/killer/{name}")
    took = monotonic() - began
    assert site.owner not in (0, dead)
    assert browser.ask("GET", f"/orders/{name}") == f'"{name}"'
    browser.close()
    return took


def check_ledger(lines: list[str]) -> None:
    """Check that no finished step was repeated, and that runs of a key kept their order."""
    ended: dict[str, int] = {}
    latest: dict[str, int] = defaultdict(int)
    for line in lines:
        name, what = line.split()
        if what == "seen":
            ended[name] = 3
            continue
        # The second step begins when the first one is durable, the next run when the second is.
        number = int(what)
        assert ended.get(name, 0) <= number, f"{line}: this step had ended"
        ended[name] = number
        key, _, at = name.partition("-")
        assert latest[key] <= int(at), f"{line}: a later run of the key has begun"
        latest[key] = int(at)


@pytest.mark.parametrize("server", SERVERS)
def test_no_call_fails_and_nothing_is_lost_when_the_owner_among_workers_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    command, kills = SERVERS[server]
    monkeypatch.setenv("LEDGER", str(tmp_path / "ledger"))
    took: list[float] = []
    acknowledged = [0] * CUSTOMERS
    with workers(tmp_path, command) as site:
        threads = [
            threading.Thread(target=shop, args=(site, each, acknowledged))
            for each in range(CUSTOMERS)
        ]
        threads += [threading.Thread(target=listen, args=(site,)) for _ in range(FOLLOWERS)]
        for each in threads:
            each.start()
        try:
            for _ in range(FOLLOWERS):
                assert site.following.acquire(timeout=60)
            for _ in shown(range(kills), "owners killed", kills):
                took.append(kill_owner(site))
                sleep(0.3)
            for _ in range(5):
                if site.gap.wait(6):
                    break
                # All streams were those of the owner, and were cut off with it.
                took.append(kill_owner(site))
            assert site.gap.is_set(), "no stream of events has marked the gap"
        finally:
            site.over.set()
            last = Browser(site)
            last.ask("POST", "/orders/killer/k-999999")  # its event wakes those who listen
            last.close()
            for each in threads:
                each.join(120)
        assert not any(each.is_alive() for each in threads)
    assert site.faults == []
    lines = (tmp_path / "ledger").read_text().splitlines()
    check_ledger(lines)
    print(
        f"{server}: {kills} kills, {sum(acknowledged)} orders; seconds of a take-over: "
        f"min {min(took):.2f}, median {median(took):.2f}, max {max(took):.2f}"
    )
    assert max(took) <= AT_MOST * slowness()
