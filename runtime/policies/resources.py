"""Resources: what steps reserve while they run, and the quotas that they share.

A step reserves its resources before it starts and gives them back when it ends. While a large
request waits, smaller ones may overtake it for `OVERTAKE_SECONDS` seconds.
"""

from collections.abc import Callable, Iterator, Mapping

import attrs
import trio

from keyrun.actors import checks
from keyrun.runtime.texts import check_text
from keyrun.runtime.values import Priority

OVERTAKE_SECONDS = 10.0
WARN_AFTER = 30.0


class Resources(Mapping[str, float]):
    """Name amounts that a step reserves while it runs, or that steps share:
    `Resources(cpu=2, memory_mb=512)`. You choose the names."""

    __slots__ = ("_amounts",)

    def __init__(self, **amounts: float) -> None:
        for name, amount in amounts.items():
            check_text(name, "the name of a resource")
            if not checks.is_number(amount) or not amount > 0:
                raise ValueError(f"{name} must be positive, got {amount!r}")
        self._amounts = amounts

    def __getitem__(self, name: str) -> float:
        return self._amounts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._amounts)

    def __len__(self) -> int:
        return len(self._amounts)

    def __hash__(self) -> int:
        return hash(frozenset(self._amounts.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Resources) and self._amounts == other._amounts

    def __repr__(self) -> str:
        return f"Resources({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def excess(self, quota: "Resources") -> Iterator[str]:
        """Yield a description of each amount that exceeds the quota."""
        for name, amount in self.items():
            if name in quota and amount > quota[name]:
                yield f"needs {name}={amount:g}, but the quota is {quota[name]:g}"


@attrs.define(eq=False)
class _Wait:
    need: Resources
    rank: tuple[int, int]
    since: float
    granted: trio.Event


class Quota:
    """The resources that steps share, and the requests that wait for them."""

    def __init__(self, total: Resources) -> None:
        self.total = total
        self.free = dict(total)
        self._waits: list[_Wait] = []
        self._number = 0

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait."""
        return len(self._waits)

    def ready(self, need: Resources) -> bool:
        """Return whether there is enough and no request waits."""
        return not self._waits and self._fits(need)

    def take_nowait(self, need: Resources) -> None:
        """Reserve resources that are free."""
        self._take(need)

    async def take(
        self, need: Resources, priority: Priority, warn: Callable[[float], None]
    ) -> None:
        """Wait until there is enough, and reserve it. `warn` is called with the seconds if that
        takes long."""
        self._number += 1
        wait = _Wait(need, (int(priority), self._number), trio.current_time(), trio.Event())
        self._waits.append(wait)
        self._waits.sort(key=lambda each: each.rank)
        self._grant()
        try:
            with trio.move_on_after(WARN_AFTER):
                await wait.granted.wait()
            if not wait.granted.is_set():
                warn(WARN_AFTER)
                await wait.granted.wait()
        except BaseException:
            if wait.granted.is_set():
                self.give(need)
            else:
                self._waits.remove(wait)
                self._grant()
            raise

    def give(self, need: Resources) -> None:
        """Give back resources that were reserved."""
        for name, amount in need.items():
            if name in self.free:
                self.free[name] += amount
        self._grant()

    def _grant(self) -> None:
        now = trio.current_time()
        for wait in list(self._waits):
            if self._fits(wait.need):
                self._take(wait.need)
                self._waits.remove(wait)
                wait.granted.set()
            elif now - wait.since >= OVERTAKE_SECONDS:
                return

    def _fits(self, need: Resources) -> bool:
        free = self.free
        # Amounts may be fractions, whose sums are not exact.
        return all(amount <= free[name] + 1e-9 for name, amount in need.items() if name in free)

    def _take(self, need: Resources) -> None:
        for name, amount in need.items():
            if name in self.free:
                self.free[name] -= amount
