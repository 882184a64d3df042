"""A child: the program of a peer while it runs, with everything that it started.

It is killed whole: in its namespaces where there are any, and otherwise as a group of processes and
as the family of it.
"""

import json
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from select import select
from time import monotonic, sleep
from types import TracebackType
from typing import Any

from benchmarks.peers.isolation import prefix
from benchmarks.peers.programs.gauge import alive, family
from benchmarks.peers.programs.order import Order

ROOT = Path(__file__).parent.parent.parent
QUIET = {
    "DO_NOT_TRACK": "1",
    "RESTATE_DISABLE_TELEMETRY": "true",
    "LANGSMITH_TRACING": "false",
}
# The packages of peers were compiled when they were installed, as those of any user are. What is
# run from the sources has to be allowed the same, or each start of it compiles all of them.
UNWANTED = ("PYTHONDONTWRITEBYTECODE",)
LAST_WORDS = 300
PATIENCE = 10.0
"""Seconds for the system to end what was killed."""


class Failed(Exception):
    """A program ended without an answer, or took too long. The text says how."""


def variables() -> dict[str, str]:
    """The variables that a program of a peer gets."""
    return {name: value for name, value in os.environ.items() if name not in UNWANTED} | QUIET


class Child:
    """Started at once; leaving the block kills it."""

    def __init__(self, python: str, module: str, order: Order, *, timeout: float) -> None:
        self._until = monotonic() + timeout
        self._timeout = timeout
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill
        self._process = subprocess.Popen(
            [*prefix(), python, "-m", module, order.dump()],
            cwd=ROOT,
            env=variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )

    def answer(self) -> dict[str, Any]:
        """The next line of what it tells."""
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            left = self._until - monotonic()
            if left <= 0 or not select([self._process.stdout], [], [], left)[0]:
                raise Failed(f"took longer than {self._timeout:.0f} seconds")
            part = os.read(self._process.stdout.fileno(), 65_536)
            if not part:
                raise Failed(self._last_words())
            line += part
        found: dict[str, Any] = json.loads(line)
        return found

    def kill(self) -> None:
        """End it and all that it started, at once."""
        household = family(self._process.pid)
        for pid in household:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        until = monotonic() + PATIENCE
        while any(map(alive, household)) and monotonic() < until:
            sleep(0.01)
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        # Of a traceback that is the error; what kind it was helps nobody who reads a table.
        return said[-1].removeprefix("RuntimeError: ")[:LAST_WORDS] if said else "ended silently"

    def __enter__(self) -> "Child":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
