"""Isolation: namespaces in which a peer sees only its own processes and the loopback.

What a peer starts ends with its namespace, whatever became of it, and nothing of it reaches beyond
the machine. Where that is not allowed, peers run without, bound to 127.0.0.1 all the same.
"""

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

LOOPBACK = Path(__file__).parent / "programs" / "loopback.py"


@cache
def prefix() -> tuple[str, ...]:
    """What to put before a command to isolate it, or nothing."""
    unshare = shutil.which("unshare")
    if unshare is None or not sys.platform.startswith("linux"):
        return ()
    spaces = ("--user", "--map-root-user", "--net", "--pid", "--mount-proc", "--kill-child")
    command = (unshare, *spaces, sys.executable, str(LOOPBACK))
    try:
        done = subprocess.run(
            [*command, sys.executable, "-c", ""], capture_output=True, timeout=20, check=False
        )
    except subprocess.TimeoutExpired:
        return ()
    return command if done.returncode == 0 else ()
