"""Graphs: workflows that are written as nodes and edges.

A `Graph` is a workflow like any other, and its nodes are steps: retries, timeouts, order, cancel,
pause, recovery and history hold unchanged.
"""

from keyrun.runtime.graphs.errors import ConditionError, InvalidGraph, OutputTooLarge
from keyrun.runtime.graphs.graph import Graph
from keyrun.runtime.graphs.node import Port, durable
from keyrun.runtime.graphs.node_input import NodeInput

__all__ = [
    "ConditionError",
    "Graph",
    "InvalidGraph",
    "NodeInput",
    "OutputTooLarge",
    "Port",
    "durable",
]
