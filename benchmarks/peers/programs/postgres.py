"""A PostgreSQL server of one's own in a folder, with its defaults: every commit is synced."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from benchmarks.peers.programs.ports import free_ports

PATIENCE = 30.0


def start(programs: str, folder: str) -> str:
    """Start the server whose programs are in `programs`, and give the address of a database."""
    data = Path(folder) / "postgres"
    if not data.exists():
        _run(programs, "initdb", "-D", str(data), "-U", "bench", "-A", "trust", "-E", "UTF8", "-N")
    (port,) = free_ports(1)
    options = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": "",
        "max_connections": "300",
    }
    settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    with (Path(folder) / "server.log").open("ab") as log:
        command = [*_unprivileged(), f"{programs}/postgres", "-D", str(data), *settings]
        server = subprocess.Popen(command, stdout=log, stderr=log)
    _answers(programs, port, server)
    return f"postgresql://bench@127.0.0.1:{port}/bench"


def _run(programs: str, name: str, *arguments: str) -> None:
    command = [*_unprivileged(), f"{programs}/{name}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} says: {done.stderr.strip()}")


def _unprivileged() -> list[str]:
    """PostgreSQL refuses to run as root, so root runs it as somebody else in a namespace."""
    if os.geteuid() != 0:
        return []
    if not shutil.which("unshare"):
        raise RuntimeError("PostgreSQL does not run as root, and there is no `unshare` to help")
    return ["unshare", "--user", "--map-user=1000", "--map-group=1000"]


def _answers(programs: str, port: int, server: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + PATIENCE
    asking = [f"{programs}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    while time.monotonic() < until and server.poll() is None:
        if subprocess.run(asking, check=False).returncode == 0:
            return
        time.sleep(0.02)
    raise RuntimeError("PostgreSQL did not start; server.log in its folder says why")
