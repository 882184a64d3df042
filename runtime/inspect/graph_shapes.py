"""Graph shapes: know the nodes and edges of graphs, from the code or from the store.

A runtime keeps the shapes of its graphs in the store, so that a reader in another process, which
does not have their code, can show their runs.
"""

from typing import TYPE_CHECKING

from keyrun.runtime.definitions.workflow import Registry
from keyrun.runtime.graphs import stored_graph
from keyrun.runtime.graphs.graph import Graph
from keyrun.runtime.graphs.journal_trace import JournalTrace
from keyrun.runtime.graphs.stored_graph import GraphShape
from keyrun.runtime.records.tables import Ledger, sealed
from keyrun.storage.payload import PayloadCodec

if TYPE_CHECKING:
    from keyrun.runtime.records.submission import Submission


async def keep_plans(ledger: Ledger, registry: Registry) -> None:
    """Store the shapes of graphs that are not stored, or have changed."""
    for graph in registry:
        if isinstance(graph, Graph):
            key = ledger.plan(graph.name, graph.version)
            record = sealed("plans", key, *stored_graph.fields(graph))
            if await ledger.store.get("plans", key) != record:
                ledger.store.open_group().put("plans", key, record)


class StoredGraphs:
    """Knows the shapes of graphs, from the code or from the store."""

    def __init__(self, ledger: Ledger, codec: PayloadCodec, registry: Registry) -> None:
        self._ledger = ledger
        self._codec = codec
        self._registry = registry
        self._shapes: dict[tuple[str, int], tuple[object, GraphShape]] = {}

    async def tracing(self, submission: "Submission") -> JournalTrace | None:
        """Return a tracing of a run, which finds the state of each node. None if the run is not a
        run of a graph, or the shape of its graph is not known."""
        found = await self._shape(submission.workflow, submission.version)
        return None if found is None else JournalTrace(found, self._codec, submission.input)

    async def _shape(self, workflow: str, version: int) -> GraphShape | None:
        known = self._registry.find(workflow, version)
        if known is not None:
            return stored_graph.of(known) if isinstance(known, Graph) else None
        stored = await self._ledger.get("plans", self._ledger.plan(workflow, version))
        if stored is None:
            return None
        cached = self._shapes.get((workflow, version))
        if cached is None or cached[0] != stored:
            cached = self._shapes[workflow, version] = (stored, stored_graph.read(stored))
        return cached[1]
