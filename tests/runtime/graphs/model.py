"""A model of graphs: what the documentation says, worked out the slow way.

It looks at every edge again after every end, and knows how long each node takes. Nothing in it is
shared with the frontier, so the two can only agree by meaning the same.
"""

from random import Random

import attrs

from keyrun import Priority

DELAY = 1.0
"""Seconds before a node is tried again."""


@attrs.frozen(kw_only=True)
class ModelNode:
    """A node that ends as `fates` say, turn by turn: "fails", or leaves by a port or by none."""

    id: str
    seconds: float
    failures: int
    """How often each turn fails before it is let through."""
    fates: tuple[str, ...]
    ports: tuple[str, ...]
    join: str
    priority: Priority

    def fate(self, turn: int) -> str:
        """How it ends in a turn."""
        return self.fates[(turn - 1) % len(self.fates)]


@attrs.frozen(kw_only=True)
class ModelEdge:
    """An edge; `least` is the turn of its source from which on its condition is true."""

    source: str
    target: str
    on: str
    port: str | None = None
    least: int | None = None
    back: bool = False
    most: int | None = None

    def fits(self, fate: str, turn: int) -> bool:
        """Whether it is taken."""
        if fate == "fails":
            return self.on != "complete" and self.port is None
        if self.on == "fail" or self.port not in (None, fate):
            return False
        return self.least is None or turn >= self.least


@attrs.frozen(kw_only=True)
class ModelGraph:
    """A whole graph."""

    nodes: list[ModelNode]
    edges: list[ModelEdge]
    fail_fast: bool
    most: int | None
    waves: bool


def random_graph(seed: int) -> ModelGraph:
    """Up to nine nodes with everything that edges can say, and up to two ways back."""
    random = Random(seed)
    count = random.randint(2, 9)
    nodes = [_random_node(random, f"n{at}") for at in range(count)]
    edges: dict[tuple[object, ...], ModelEdge] = {}
    for at in range(1, count):
        for source in set(random.choices(range(at), k=random.choice([0, 1, 1, 1, 2, 2, 3]))):
            _add(edges, _random_edge(random, nodes[source], f"n{at}"))
    after = _reach([node.id for node in nodes], list(edges.values()))
    for _ in range(random.choice([0, 1, 1, 2])):
        last = random.choice(nodes)
        first = random.choice([name for name, found in after.items() if last.id in found])
        edge = _random_edge(random, last, first)
        _add(edges, attrs.evolve(edge, back=True, most=random.choice([2, 3, 4])))
    random.shuffle(nodes)
    return ModelGraph(
        nodes=nodes,
        edges=random.sample(list(edges.values()), len(edges)),
        fail_fast=random.random() < 0.3,
        most=random.choice([None, None, 1, 2, 3]),
        waves=random.random() < 0.3,
    )


def _random_node(random: Random, name: str) -> ModelNode:
    ports = ("x", "y") if random.random() < 0.3 else ()
    ways = ["none", *ports, "fails"]
    return ModelNode(
        id=name,
        seconds=0.01 + random.random() * 10,
        failures=random.choice([0, 0, 0, 1, 2]),
        fates=tuple(random.choices(ways, [5, *([3] * len(ports)), 2], k=6)),
        ports=ports,
        join="any" if random.random() < 0.3 else "all",
        priority=random.choice([*Priority, *([Priority.NORMAL] * 4)]),
    )


def _random_edge(random: Random, source: ModelNode, target: str) -> ModelEdge:
    on = random.choices(["complete", "fail", "all"], [6, 2, 2])[0]
    named = bool(source.ports) and on != "fail" and random.random() < 0.6
    return ModelEdge(
        source=source.id,
        target=target,
        on=on,
        port=random.choice(source.ports) if named else None,
        least=random.choice([1, 2, 3]) if on == "complete" and random.random() < 0.4 else None,
    )


def _add(edges: dict[tuple[object, ...], ModelEdge], edge: ModelEdge) -> None:
    edges.setdefault((edge.source, edge.target, edge.on, edge.port, edge.least), edge)


def _reach(names: list[str], edges: list[ModelEdge]) -> dict[str, set[str]]:
    """What comes after each node, itself included."""
    found = {name: {name} for name in names}
    for _ in names:
        for edge in edges:
            for each in found.values():
                if edge.source in each:
                    each.add(edge.target)
    return found


class Course:
    """How a run of a graph goes: `story` has when each node begins, `failed` what failed with
    nobody to take care of it, `outputs` the latest turn in which each node completed."""

    def __init__(self, graph: ModelGraph) -> None:
        self._edges = graph.edges
        self._graph = graph
        self._nodes = {node.id: node for node in graph.nodes}
        self._order = {node.id: at for at, node in enumerate(graph.nodes)}
        forward = [edge for edge in graph.edges if not edge.back]
        self._after = _reach(list(self._nodes), forward)
        self._levels = dict.fromkeys(self._nodes, 0)
        for _ in self._nodes:
            for edge in forward:
                level = self._levels[edge.source] + 1
                self._levels[edge.target] = max(self._levels[edge.target], level)
        self._now = 0.0
        self._active: dict[str, float] = {}
        self._ready: list[str] = []
        self._entered: set[str] = set()
        self._ended: dict[str, bool] = {}
        """Those that have ended or were skipped in this turn; True if a failure was the reason."""
        self._ways: dict[ModelEdge, str] = {}
        self._fresh: set[ModelEdge] = set()
        self._returns: list[ModelEdge] = []
        self._over: set[ModelEdge] = set()
        self._rounds: dict[ModelEdge, int] = {}
        self.turns: dict[str, int] = {}
        self.story: list[tuple[float, str]] = []
        self.failed: list[str] = []
        self.outputs: dict[str, int] = {}
        self.too_many = False
        self._run()
        self.over = self._now
        """When the last node ended."""

    def ident(self, name: str) -> str:
        """What its latest turn is called."""
        return name if self.turns[name] == 1 else f"{name}#{self.turns[name]}"

    def _run(self) -> None:
        for name in self._nodes:
            if not self._incoming(name):
                self._enter(name)
        self._begin()
        while self._active:
            name = min(self._active, key=lambda each: self._active[each])
            self._now = self._active.pop(name)
            self._end(name)
            self._spread()
            self._turn()
            if self.too_many or (self._graph.fail_fast and self.failed):
                return
            self._begin()

    def _incoming(self, name: str) -> list[ModelEdge]:
        return [edge for edge in self._edges if edge.target == name and not edge.back]

    def _enter(self, name: str) -> None:
        self.turns[name] = self.turns.get(name, 0) + 1
        self._entered.add(name)
        self._ready.append(name)

    def _begin(self) -> None:
        levels, waves = self._levels, self._graph.waves
        self._ready.sort(
            key=lambda each: (waves * levels[each], self._nodes[each].priority, self._order[each])
        )
        while self._ready and (self._graph.most is None or len(self._active) < self._graph.most):
            name = self._ready[0]
            if waves and any(levels[each] < levels[name] for each in self._active):
                return
            self._ready.remove(name)
            node = self._nodes[name]
            self._active[name] = self._now + node.failures * DELAY + node.seconds
            self.story.append((self._now, self.ident(name)))

    def _end(self, name: str) -> None:
        turn = self.turns[name]
        fate = self._nodes[name].fate(turn)
        leaving = [edge for edge in self._edges if edge.source == name]
        taken = [edge for edge in leaving if edge.fits(fate, turn)]
        if fate != "fails":
            self.outputs[name] = turn
        elif not taken:
            self.failed.append(self.ident(name))
        self._ended[name] = fate == "fails" and not taken
        for edge in leaving:
            if edge.back and edge in taken:
                self._returns.append(edge)
            elif edge.back:
                self._over.add(edge)
            elif edge in taken:
                self._ways[edge] = "taken"
                if edge.target not in self._entered:
                    self._fresh.add(edge)

    def _body(self, back: ModelEdge) -> set[str]:
        between = self._after[back.target]
        return {name for name in between if back.source in self._after[name]}

    def _look(self, edge: ModelEdge) -> str:
        """What became of an edge. One that leads out of a loop may be taken in a later turn."""
        if edge in self._ways or edge.source not in self._ended:
            return self._ways.get(edge, "open")
        for back in self._edges:
            if back.back and back not in self._over:
                body = self._body(back)
                if edge.source in body and edge.target not in body:
                    return "open"
        self._ways[edge] = "broken" if self._ended[edge.source] else "dead"
        return self._ways[edge]

    def _spread(self) -> None:
        """Enter or skip all that can be, until nothing changes."""
        before = -1
        while before != len(self._entered):
            before = len(self._entered)
            for node in self._graph.nodes:
                for edge in self._edges:
                    if not edge.back:
                        self._look(edge)
                incoming = self._incoming(node.id)
                if incoming and node.id not in self._entered:
                    self._consider(node, incoming)

    def _consider(self, node: ModelNode, incoming: list[ModelEdge]) -> None:
        ways = [self._look(edge) for edge in incoming]
        whole = "open" not in ways and "broken" not in ways
        if self._fresh.intersection(incoming) and (whole or node.join == "any"):
            self._fresh.difference_update(incoming)
            self._enter(node.id)
        elif "open" not in ways:
            self._entered.add(node.id)
            self._ended[node.id] = "broken" in ways
            self._over.update(edge for edge in self._edges if edge.back and edge.source == node.id)

    def _turn(self) -> None:
        for back in list(self._returns):
            region = self._after[back.target]
            if region.intersection(each.partition("#")[0] for each in self.failed):
                continue
            if region.intersection(self._active) or region.intersection(self._ready):
                continue
            self._returns.remove(back)
            self._rounds[back] = self._rounds.get(back, 0) + 1
            if back.most is not None and self._rounds[back] >= back.most:
                self.too_many = True
                return
            self._entered -= region
            for name in region:
                self._ended.pop(name, None)
            for edge in self._edges:
                if edge.source in region:
                    self._ways.pop(edge, None)
                    self._fresh.discard(edge)
                    self._over.discard(edge)
                if edge.back and self._is_inside(edge, back):
                    self._rounds.pop(edge, None)
            self._enter(back.target)

    def _is_inside(self, inner: ModelEdge, outer: ModelEdge) -> bool:
        one, other = self._after[inner.target], self._after[outer.target]
        return one < other or (one == other and self._body(inner) < self._body(outer))
