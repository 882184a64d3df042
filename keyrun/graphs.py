"""Graphs, beyond `Graph`, `NodeInput` and `Port`, which are in `keyrun`.

`GraphBody` holds the nodes that `graph.map` runs for each item of a list. `durable` marks a node
function that contains workflow code. `rt.execution_graph` returns an `ExecutionGraph`: the nodes
and edges of one run, with their states.
"""

from keyrun.runtime.graphs.body import GraphBody
from keyrun.runtime.graphs.node import durable
from keyrun.runtime.graphs.view import EdgeView, ExecutionGraph, NodeState, NodeView

__all__ = [
    "EdgeView",
    "ExecutionGraph",
    "GraphBody",
    "NodeState",
    "NodeView",
    "durable",
]
