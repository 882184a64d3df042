"""Tracing: what a process does to its files, recorded from outside by a library of our own.

`iotrace.c` is preloaded into a child process and into whatever that starts. What it writes down is
read here as events, in the order in which they happened.
"""

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

import attrs

_SOURCE = Path(__file__).with_name("iotrace.c")
_HEADER = struct.Struct("<IIQII")


class Kind(IntEnum):
    """What was done; the numbers are those of the C side."""

    WRITE = 1
    TRUNCATE = 2
    SYNC = 3
    CREATE = 4
    RENAME = 5
    UNLINK = 6
    MAPPED = 7
    MKDIR = 8


@attrs.frozen(kw_only=True)
class Event:
    """One call. `path` is relative to the folder that is watched. A `synced` write is durable when
    it returns. The data of a rename is the name that the file has after it."""

    kind: Kind
    path: str
    offset: int = 0
    data: bytes = b""
    synced: bool = False


def build(folder: Path) -> Path:
    """Compile the library. A machine where that cannot be done proves nothing, and says so."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not sys.platform.startswith("linux") or compiler is None:
        raise RuntimeError(
            "the power loss model needs Linux and a C compiler to record what LMDB writes; install "
            "gcc or clang (Debian: apt install gcc libc6-dev), or set CC"
        )
    library = folder / "iotrace.so"
    command = [*compiler.split(), "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
    done = subprocess.run([*command, "-ldl"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{compiler} cannot build {_SOURCE.name}:\n{done.stderr}")
    return library


def record(library: Path, folder: Path, module: str, *arguments: object) -> list[Event]:
    """Run `python -m module folder arguments` and give back what it did below `folder`."""
    log = folder.with_suffix(".log")
    traced = {"LD_PRELOAD": str(library), "KEYRUN_IO_LOG": str(log), "KEYRUN_IO_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", module, str(folder), *map(str, arguments)],
        env=os.environ | traced,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        raise RuntimeError(f"{module} failed:\n{done.stderr}")
    return list(_events(log.read_bytes()))


def _events(log: bytes) -> Iterator[Event]:
    at = 0
    while at < len(log):
        kind, flags, offset, path_length, data_length = _HEADER.unpack_from(log, at)
        middle = at + _HEADER.size + path_length
        path = log[at + _HEADER.size : middle].decode()
        at = middle + data_length
        yield Event(
            kind=Kind(kind), path=path, offset=offset, data=log[middle:at], synced=bool(flags)
        )
