"""Stores that tell the world what they commit, and that fail when they are told to."""

from collections import Counter
from enum import StrEnum
from random import Random
from typing import Any, Self

from keyrun.storage import StoreError
from keyrun.storage.batch import Tables
from keyrun.storage.group import Group
from keyrun.testing import CrashingMemoryStore
from tests.faults.simulated.world import World


class Seam(StrEnum):
    """What can be asked of a store."""

    GET = "get"
    SCAN = "scan"
    PUT = "put"
    COMMIT = "commit"


class WitnessedStore(CrashingMemoryStore):
    """A store in memory whose commits the world sees. With `chance` each takes its own time, and
    some are applied first and answered later."""

    world: World

    def __init__(self, chance: Random | None = None) -> None:
        super().__init__()
        self._chance = chance

    async def _commit(self, tables: Tables) -> None:
        if self._chance is not None:
            self.latency = self._chance.choice((0.0, 0.0, 0.001, 0.02, 0.2))
            self.apply_first = self._chance.random() < 0.5
        await super()._commit(tables)

    def _apply(self, tables: Tables) -> None:
        self.world.committing(tables)
        super()._apply(tables)


class FailingStore(WitnessedStore):
    """Fails at the Nth call of a kind, once or from then on, until it is mended."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Seam] = Counter()
        self.failures = 0
        self._seam: Seam | None = None
        self._at = 0
        self._once = False
        self._error: type[StoreError] = StoreError

    def fail_at(
        self, seam: Seam, number: int, *, once: bool, error: type[StoreError] = StoreError
    ) -> None:
        """Fail at this call, counted from here on."""
        self.calls.clear()
        self._seam, self._at, self._once, self._error = seam, number, once, error

    def mend(self) -> None:
        """Work from here on."""
        self._seam = None

    def _called(self, seam: Seam) -> None:
        self.calls[seam] += 1
        if seam is self._seam:
            count = self.calls[seam]
            if count == self._at or (count > self._at and not self._once):
                self.failures += 1
                raise self._error(f"the disk gave up at {seam} number {count}")

    async def _get(self, table: str, key: bytes) -> bytes | None:
        self._called(Seam.GET)
        return await super()._get(table, key)

    async def _scan(self, *args: Any) -> list[tuple[bytes, bytes]]:
        self._called(Seam.SCAN)
        return await super()._scan(*args)

    async def _commit(self, tables: Tables) -> None:
        self._called(Seam.COMMIT)
        await super()._commit(tables)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        group_commit = self.group_commit
        open_group = type(group_commit).open_group

        def open_or_fail() -> Group:
            try:
                self._called(Seam.PUT)
            except StoreError as error:
                # Records are staged in memory. A store that cannot take one has failed, and what
                # was staged before it must not come without it.
                group_commit.fail(error)
            return open_group(group_commit)

        group_commit.open_group = open_or_fail  # type: ignore[method-assign]
        return self
