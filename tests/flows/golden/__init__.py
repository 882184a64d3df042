"""A store with runs at approval gates, written by Keyrun at commit 034a327, and their flows.

At that commit an edge without a port was taken by a rejection and a timeout as well.
`python -m tests.flows.golden FILE` writes such a store with the code that is installed. The file
that is here is never written again: its runs must finish with every later version.
"""

from typing import Any

import trio

from keyrun import Graph, current_step
from keyrun.flows import parse
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime

FLOWS = {
    # An edge without a port.
    "portless": """
        edges: [{from: start, to: gate}, {from: gate, to: ship}]
    """,
    # An edge for `approved` only, and a node that joins both sides.
    "approved": """
        edges:
          - {from: start, to: gate}
          - {from: gate, to: ship, port: approved}
          - {from: start, to: beside}
          - {from: beside, to: after}
          - {from: ship, to: after}
    """,
    # Every port is taken.
    "every": """
        edges:
          - {from: start, to: gate}
          - {from: gate, to: ship, port: approved}
          - {from: gate, to: beside, port: rejected}
          - {from: gate, to: after, port: timeout}
    """,
}
_NODES = """
name: {name}
nodes:
  start: {{kind: call, function: work, args: {{seconds: 1}}}}
  gate: {{kind: approval, timeout: 1000}}
  ship: {{kind: call, function: work, args: {{seconds: 250}}}}
  beside: {{kind: call, function: work, args: {{seconds: 200}}}}
  after: {{kind: call, function: work, args: {{seconds: 1}}}}
"""

done: list[str] = []


async def work(seconds: float) -> str:
    """Take this long, and record that it is done."""
    await trio.sleep(seconds)
    done.append(current_step().step)
    return current_step().step


def flows() -> dict[str, Graph]:
    """The graphs of the runs by name."""
    return {
        name: parse(_NODES.format(name=name) + _dedented(edges), functions=[work])
        for name, edges in FLOWS.items()
    }


def _dedented(text: str) -> str:
    return "\n".join(line.removeprefix("        ") for line in text.splitlines())


RUNS: dict[str, tuple[str, str]] = {
    "portless-waits": ("portless", ""),
    "portless-rejected": ("portless", "reject"),
    "approved-waits": ("approved", ""),
    "approved-rejected": ("approved", "reject"),
    "every-waits": ("every", ""),
    "every-approved": ("every", "approve"),
    "every-rejected": ("every", "reject"),
}
"""Runs by id: their flow, and the decision that was made before the store was left."""


async def leave_behind(store: MemoryStore) -> None:
    """Let every run wait at its gate, decide at some of the gates, and crash."""
    graphs = flows()
    options: dict[str, Any] = {"workflows": list(graphs.values()), "evict_after": 20}
    async with open_test_runtime(store, **options) as runtime:
        for run_id, (flow, _) in RUNS.items():
            await runtime.submit(graphs[flow], key=run_id, run_id=run_id)
        await trio.sleep(100)
        for run_id, (_, decision) in RUNS.items():
            if decision:
                decide = runtime.approve if decision == "approve" else runtime.reject
                await decide(run_id, "gate", by="Ann", comment="seen")
        await trio.sleep(10)
        store.crash()
