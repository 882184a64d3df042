"""A process that starts a program, says so and waits: what becomes of it when this is killed?"""

import sys
import time

from benchmarks.peers.child import Child
from benchmarks.peers.programs.order import Order

if __name__ == "__main__":
    with Child(sys.executable, "tests.peers.leaver", Order.parse(sys.argv[1]), timeout=60) as child:
        print(child.answer(), flush=True)
        time.sleep(600)
