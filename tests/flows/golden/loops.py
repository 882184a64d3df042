"""A store with runs of loops, branches and switches, written by Keyrun at commit 65870c1, and their
flow.

At that commit each node that passes on the output that it received stored this output again.
`python -m tests.flows.golden.loops FILE` writes such a store with the code that is installed. The
file that is here is never written again: its runs must finish with every later version.
"""

import json
import sys
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from keyrun import Graph, NodeInput
from keyrun.flows import parse
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime
from tests.runtime.golden import dump

FLOW = """
name: turns
nodes:
  large: {kind: branch, when: input.most > 1}
  turns:
    kind: loop
    start: {at: 0, seen: []}
    while: output.at < input.most
    body:
      nodes:
        add: {kind: call, function: add}
        size:
          kind: switch
          cases: [{port: odd, when: output.at % 2 == 1}]
        pause: {kind: wait, seconds: 50}
        again: {kind: branch, when: output.at > 0}
      edges:
        - {from: add, to: size}
        - {from: size, to: again, port: odd}
        - {from: size, to: pause, port: default}
  checked:
    kind: loop
    while: output.at < input.most + 1
    body:
      nodes:
        more: {kind: call, function: add}
        rest: {kind: wait, seconds: 50}
      edges: [{from: more, to: rest}]
  last: {kind: call, function: same}
edges:
  - {from: large, to: turns, port: then}
  - {from: turns, to: checked}
  - {from: checked, to: last}
"""
LEFT_AT = {"early": 20, "between": 70, "late": 130, "over": 1000}
"""Runs by id: how many seconds after their start the store was left."""
MOST = 5
RESULT = {"at": 6, "seen": [0, 1, 2, 3, 4, 5]}
done: list[int] = []


async def add(given: NodeInput) -> Any:
    """Count one more."""
    at = given.output["at"]
    done.append(at)
    return {"at": at + 1, "seen": [*given.output["seen"], at]}


async def same(given: NodeInput) -> Any:
    """Return the output that was received."""
    return given.output


def flow() -> Graph:
    """The graph of the runs."""
    return parse(FLOW, functions=[add, same])


async def leave_behind(store: MemoryStore) -> None:
    """Start the runs at different times, and crash."""
    async with open_test_runtime(store, workflows=[flow()], evict_after=10) as runtime:
        longest = max(LEFT_AT.values())
        for run_id, left in sorted(LEFT_AT.items(), key=lambda each: -each[1]):
            await trio.sleep_until(longest - left)
            await runtime.submit(flow(), {"most": MOST}, key=run_id, run_id=run_id)
        await trio.sleep_until(longest)
        store.crash()


if __name__ == "__main__":
    left = MemoryStore()
    trio.run(leave_behind, left, clock=MockClock(autojump_threshold=0))
    Path(sys.argv[1]).write_text(json.dumps(dump(left), indent=1) + "\n")
