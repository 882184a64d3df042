"""`python -m tests.flows.golden FILE` writes a store with runs at approval gates."""

import json
import sys
from pathlib import Path

import trio
from trio.testing import MockClock

from keyrun.storage import MemoryStore
from tests.flows.golden import leave_behind
from tests.runtime.golden import dump

store = MemoryStore()
trio.run(leave_behind, store, clock=MockClock(autojump_threshold=0))
Path(sys.argv[1]).write_text(json.dumps(dump(store), indent=1) + "\n")
