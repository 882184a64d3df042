"""The environment of a peer: a folder of its own with pinned packages, made when it is missing.

Packages come through the ordinary clients, pip and npm, from wherever these are set up to look. A
peer that can't be installed, or whose server is not there, is `Missing` with the reason.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import attrs

from benchmarks.peers.peer import Peer

REQUIREMENTS = Path(__file__).parent / "requirements"
RESTATE_SERVER = "@restatedev/restate-server@1.7.12"
PATIENCE = 600.0
STAMP = "installed"


class Missing(Exception):
    """A peer cannot be measured here. The text says why."""


@attrs.frozen(kw_only=True)
class Environment:
    """What a peer runs in: its interpreter, and the program of its server if it has one."""

    python: str
    server: str = ""
    versions: dict[str, str] = attrs.field(factory=dict)


def cache_folder() -> Path:
    """Where environments are kept between runs: `KEYRUN_PEERS`, or the user's cache."""
    if chosen := os.environ.get("KEYRUN_PEERS"):
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "keyrun-peers"


def prepare(peer: Peer, cache: Path) -> Environment:
    """Find or make the environment of `peer`, or raise `Missing`."""
    # The server comes first: a peer without it needs no packages.
    server = ""
    versions: dict[str, str] = {}
    if peer.server is not None:
        server, versions = SERVERS[peer.server](cache)
    if peer.requirements is None:
        python = sys.executable
    else:
        python = _virtual_environment(cache / peer.requirements, peer.requirements)
    if peer.package:
        versions[peer.package] = _version(python, peer.package)
    return Environment(python=python, server=server, versions=versions)


def _virtual_environment(folder: Path, name: str) -> str:
    wanted = REQUIREMENTS / f"{name}.txt"
    python = folder / "bin" / "python"

    def install() -> None:
        _client(sys.executable, "-m", "venv", str(folder))
        pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _client(*pip, "-r", str(wanted))

    _once(folder, f"{sys.version}\n{wanted.read_text()}", install)
    return str(python)


def _once(folder: Path, wanted: str, install: Callable[[], None]) -> None:
    """Install into `folder` unless what is there is what is wanted."""
    stamp = folder / STAMP
    digest = sha256(wanted.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    install()
    stamp.write_text(digest)


def _client(*command: str) -> None:
    try:
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise Missing(f"there is no {command[0]} here") from None
    except subprocess.TimeoutExpired:
        name = Path(command[0]).name
        raise Missing(f"{name} did not install it within {PATIENCE:.0f} seconds") from None
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if "error" in line.lower()]
        raise Missing(f"it cannot be installed: {(said or ['no reason given'])[-1]}") from None


def _restate(cache: Path) -> tuple[str, dict[str, str]]:
    folder = cache / "restate-server"

    def install() -> None:
        folder.mkdir()
        # Install scripts of packages may report to somebody; the server needs none.
        quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier")
        _client("npm", "install", "--prefix", str(folder), *quiet, RESTATE_SERVER)

    _once(folder, RESTATE_SERVER, install)
    found = sorted(folder.glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))
    if not found:
        raise Missing("its server has no program for this kind of machine")
    return str(found[0]), {"restate-server": RESTATE_SERVER.rpartition("@")[2]}


def _postgres(_: Path) -> tuple[str, dict[str, str]]:
    places = [Path(program).resolve().parent for program in [shutil.which("postgres")] if program]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if all((place / name).exists() for name in ("initdb", "postgres", "pg_isready")):
            return str(place), {"postgresql": _says(str(place / "postgres"), "--version")}
    raise Missing("PostgreSQL is not installed")


def _redis(_: Path) -> tuple[str, dict[str, str]]:
    for name in ("redis-server", "valkey-server"):
        if program := shutil.which(name):
            return program, {name: _says(program, "--version")}
    raise Missing("Redis is not installed")


def _says(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [word.removeprefix("v=") for word in done.stdout.split() if word[-1:].isdigit()]
    return found[0] if found else done.stdout.strip()


def _version(python: str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


SERVERS: dict[str, Callable[[Path], tuple[str, dict[str, str]]]] = {
    "restate": _restate,
    "postgres": _postgres,
    "redis": _redis,
}
