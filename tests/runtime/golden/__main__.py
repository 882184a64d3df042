"""`python -m tests.runtime.golden FILE` writes a store of today's Keyrun."""

import json
import sys
from pathlib import Path

import trio
from trio.testing import MockClock

from keyrun.runtime.steps import outcome
from keyrun.storage import MemoryStore
from tests.runtime.golden import dump, leave_behind

# Tracebacks name the files of whoever writes this.
setattr(outcome, "traceback_of", lambda error: "Traceback (most recent call last): ...")  # noqa: B010
store = MemoryStore()
trio.run(leave_behind, store, clock=MockClock(autojump_threshold=0))
Path(sys.argv[1]).write_text(json.dumps(dump(store), indent=1) + "\n")
