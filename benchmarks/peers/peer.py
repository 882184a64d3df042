"""A peer: what it is, what it needs, and what has to be known to read its figures."""

from collections.abc import Mapping

import attrs

from benchmarks.peers.work import Task


@attrs.frozen(kw_only=True)
class Peer:
    """One that is measured. `requirements` names a file of pinned packages for an environment of
    its own; without, it runs in the environment of Keyrun."""

    name: str
    title: str
    program: str
    package: str
    """The distribution whose version is told."""
    requirements: str | None = None
    server: str | None = None
    """What it needs beside Python: "restate", "postgres" or "redis"."""
    durability: str
    lacks: Mapping[str, str] = attrs.field(factory=dict)
    """The tasks that it has no way to do, with the reason."""
    unlike: Mapping[str, str] = attrs.field(factory=dict)
    """The tasks whose figures are shown and not compared, with the reason."""
    remarks: tuple[str, ...] = ()
    sizes: Mapping[str, Mapping[str, int]] = attrs.field(factory=dict)
    """Smaller sizes for tasks that would take it too long: rates are what is compared."""

    @property
    def module(self) -> str:
        """What its interpreter runs."""
        return f"benchmarks.peers.programs.{self.program}"

    def task(self, task: Task) -> Task:
        """The task in the size that is this peer's, which is never above the given one."""
        sizes = self.sizes.get(task.name, {})
        return attrs.evolve(
            task, **{name: min(size, getattr(task, name)) for name, size in sizes.items()}
        )
