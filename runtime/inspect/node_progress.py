"""How far a run of a graph is: by its nodes, of which it is known how many there are."""

from collections.abc import Mapping

import attrs

from keyrun.runtime.graphs.view import NodeState, percent_over
from keyrun.runtime.inspect.progress import Progress
from keyrun.runtime.values import State


def in_nodes(far: Progress, counts: Mapping[NodeState, int]) -> Progress:
    """The progress of a run by its nodes, of which `counts` has the number in each state, unless
    the run reports its progress itself."""
    nodes = {str(state): count for state, count in counts.items()}
    if far.message is not None or far.state is State.SUCCEEDED or far.compensating:
        return attrs.evolve(far, nodes=nodes)
    percent, left = percent_over(counts, far.state), far.time_left
    if not far.state.terminal:
        left = None
        if percent and far.elapsed is not None:
            left = far.elapsed * (100 - percent) / percent
    return attrs.evolve(far, nodes=nodes, percent=percent, time_left=left)


def read_nodes(stored: Mapping[str, int] | None) -> dict[NodeState, int] | None:
    """The number of nodes in each state, from a summary."""
    if stored is None:
        return None
    return {state: stored.get(str(state), 0) for state in NodeState}
