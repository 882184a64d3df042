"""A program that leaves a process behind, in a session of its own, which holds a lock."""

import subprocess
import sys
from pathlib import Path

from benchmarks.peers.programs.order import Order
from benchmarks.peers.programs.stage import Facts, perform, stay, tell

HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def leave(order: Order) -> None:
    """Start the process, and go on when it has the lock."""
    held = str(Path(order.folder) / "held")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, held], stdout=subprocess.PIPE, start_new_session=True
    )
    assert holder.stdout is not None
    holder.stdout.readline()


def linger(order: Order) -> Facts:
    """Wait to be killed."""
    leave(order)
    tell(ready=True)
    stay()


def fail(order: Order) -> Facts:
    """Fall over."""
    leave(order)
    raise RuntimeError("fell over")


def finish(order: Order) -> Facts:
    """Answer and end."""
    leave(order)
    return {"runs": 1}


if __name__ == "__main__":
    perform({"linger": linger, "fail": fail, "finish": finish})
