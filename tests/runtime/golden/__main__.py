"""`python -m tests.runtime.golden format|locations FILE` writes a store of today's Keyrun."""

import json
import sys
from pathlib import Path

import trio
from trio.testing import MockClock

from keyrun.storage import MemoryStore
from tests.runtime.golden import dump, leave_behind, locations

kind, path = sys.argv[1], Path(sys.argv[2])
# Tracebacks name files of the machine that writes the store.
for name, module in list(sys.modules.items()):
    if name.startswith("keyrun.") and hasattr(module, "traceback_of"):
        setattr(module, "traceback_of", lambda error: "Traceback (most recent call last): ...")  # noqa: B010
clock = MockClock(autojump_threshold=0)
if kind == "locations":
    buggy = locations.BuggyStore()
    before = trio.run(locations.leave_behind, buggy, clock=clock)
    locations.write(path, buggy, before)
else:
    store = MemoryStore()
    trio.run(leave_behind, store, clock=clock)
    path.write_text(json.dumps(dump(store), indent=1) + "\n")
