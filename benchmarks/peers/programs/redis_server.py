"""A Redis server of one's own in a folder, with its log appended and synced at every write."""

import socket
import subprocess
import time
from pathlib import Path

from benchmarks.peers.programs.ports import free_ports

PATIENCE = 30.0


def start(program: str, folder: str) -> int:
    """Start it, and give its port."""
    (port,) = free_ports(1)
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": folder,
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "loglevel": "warning",
    }
    settings = [part for name, value in options.items() for part in (f"--{name}", value)]
    with (Path(folder) / "server.log").open("ab") as log:
        server = subprocess.Popen([program, *settings], stdout=log, stderr=log)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0 and _loaded(probe):
                return port
        time.sleep(0.02)
    raise RuntimeError("Redis did not start; server.log in its folder says why")


def _loaded(probe: socket.socket) -> bool:
    """Whether it has read its log: until then it answers with an error."""
    probe.settimeout(1)
    probe.sendall(b"PING\r\n")
    return probe.recv(64).startswith(b"+PONG")
