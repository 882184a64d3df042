"""Short turns are asked for without a change of priority."""

import subprocess
import sys

CODE = """
import os
from benchmarks.peers.turns import shorten

def priority():
    return os.getpriority(os.PRIO_PROCESS, 0)

os.nice(3)
before = priority()
print(type(shorten()).__name__, before >= 3, priority() == before)
"""


def test_whether_or_not_they_are_given_the_priority_stays() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["bool", "True", "True"]
