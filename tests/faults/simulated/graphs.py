"""Graphs of simulated runs: a few shapes, the plans of whose nodes are made up for each run.

At most one node of a run fails for good, so that it is known which.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Literal

import cattrs

from keyrun import Graph
from tests.faults.simulated.acting import HANG, SOON, Act, act_node, undo
from tests.faults.simulated.pieces import FAILED, Paper, act_at_random

Input = dict[str, dict[str, Any]]


On = Literal["complete", "fail", "all"]


def _graph(
    name: str, nodes: str, edges: dict[str, On], *, joins_any: str = "", undone: bool = False
) -> Graph:
    graph = Graph(name)
    for node in nodes:
        graph.node(
            node,
            act_node,
            timeout=HANG,
            retry=SOON,
            join="any" if node in joins_any else "all",
            compensate=undo if undone else None,
        )
    for edge, on in edges.items():
        graph.edge(edge[0], edge[1], on=on)
    return graph


DIAMOND = _graph(
    "diamond", "abcd", {"ab": "complete", "ac": "complete", "bd": "complete", "cd": "complete"}
)
"""Two nodes side by side; all of them in the end."""
DETOUR = _graph(
    "detour",
    "abce",
    {"ab": "complete", "bc": "complete", "be": "fail", "ec": "complete"},
    joins_any="c",
)
"""Where the second node fails, another way leads to the last."""
SAGA = _graph("saga", "abc", {"ab": "complete", "bc": "complete"}, undone=True)
"""What was done is undone when it fails."""


def plans(nodes: str, doomed: str) -> Callable[[Random], Input]:
    """Inputs for a graph: at most one of the nodes in `doomed` fails for good."""

    def make(random: Random) -> Input:
        unlucky = random.choice(doomed) if random.random() < 0.4 else ""
        return {
            node: act_at_random(random, may_fail=True, doom=node == unlucky, keeps=False).plain()
            for node in nodes
        }

    return make


def in_turn(paper: Paper, given: Input) -> Any:
    """What a graph comes to that goes through all its nodes: the output of the last."""
    values = [paper.step(cattrs.structure(plan, Act)) for plan in given.values()]
    return values[-1]


def around(paper: Paper, given: Input) -> Any:
    """What the detour comes to."""
    acts = {node: cattrs.structure(plan, Act) for node, plan in given.items()}
    paper.step(acts["a"])
    if paper.step(acts["b"], handled=True) is FAILED:
        paper.step(acts["e"])
    return paper.step(acts["c"])
