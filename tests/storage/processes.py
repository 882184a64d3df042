"""Other processes, for tests of what happens between processes."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter and give back what it printed."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@contextmanager
def running_python(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run `code` beside the test; it is killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that `process` prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(process: subprocess.Popen[str], text: str) -> None:
    """Give `process` a line to read."""
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()
