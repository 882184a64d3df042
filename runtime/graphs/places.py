"""Places: holds nodes back while too many wait for what comes after them.

A node that leads to one with `max_waiting` begins only when there is a place there for what it may
bring. It has all the places that it needs, or none, so that nodes cannot wait for each other.
"""

from keyrun.runtime.graphs.activation import Activation
from keyrun.runtime.graphs.frontier import Frontier
from keyrun.runtime.policies.turnstile import Turnstile
from keyrun.runtime.run import Run


class Places:
    """Those that one run has."""

    def __init__(self, run: Run, frontier: Frontier) -> None:
        self._run = run
        self._frontier = frontier
        self._taken: dict[str, Turnstile] = {}

    def reserve(self, activation: Activation) -> bool:
        """Take the places that a node needs before it begins. False if there is one missing."""
        taken: list[str] = []
        for name in activation.station.crowded:
            if name in self._taken:
                continue
            turnstile = self._turnstile(name)
            if not turnstile.reserve((self._run.number, name)):
                for each in taken:
                    self._vacate(each)
                return False
            self._taken[name] = turnstile
            taken.append(name)
        return True

    async def wait(self, activation: Activation) -> None:
        """Return when it has the places that it needs."""
        while not self.reserve(activation):
            for name in activation.station.crowded:
                await self._turnstile(name).wait_for_place()

    def _turnstile(self, name: str) -> Turnstile:
        step = self._frontier.plan.stations[name].step
        assert step is not None
        return self._run.engine.turnstiles.of(step)

    def review(self) -> None:
        """Give up what nobody will come for: the node ended, and nothing leads to it any more."""
        for name in list(self._taken):
            station = self._frontier.plan.stations[name]
            before = (link.edge.source for link in station.incoming)
            if not self._frontier.under_way(name) and not any(
                map(self._frontier.under_way, before)
            ):
                self._vacate(name)

    def clear(self) -> None:
        """Give up all of them."""
        for name in list(self._taken):
            self._vacate(name)

    def _vacate(self, name: str) -> None:
        self._taken.pop(name).vacate((self._run.number, name))
