"""How far a run of a graph is: by its nodes, of which it is known how many there are."""

import attrs

from keyrun.runtime.graphs.view import ExecutionGraph
from keyrun.runtime.values import State
from keyrun.runtime.views.progress import Progress


def in_nodes(far: Progress, graph: ExecutionGraph) -> Progress:
    """The progress of a run, told by its nodes where it says nothing itself."""
    counts = {str(state): count for state, count in graph.counts().items()}
    if far.message is not None or far.state is State.SUCCEEDED:
        return attrs.evolve(far, nodes=counts)
    percent, left = graph.percent, far.time_left
    if not far.state.terminal:
        left = None
        if percent and far.elapsed is not None:
            left = far.elapsed * (100 - percent) / percent
    return attrs.evolve(far, nodes=counts, percent=percent, time_left=left)
