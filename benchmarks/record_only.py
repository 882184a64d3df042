"""The record-only loop: Trio and LMDB writing just the records that cannot be avoided.

A run with its place in line, a journal entry per step, a terminal record, each with its checksum,
group-committed; no features. What a durable runtime reaches is held against this.
"""

from struct import pack
from time import perf_counter
from typing import Any

import trio

from benchmarks.folders import folder
from keyrun.storage import writer
from keyrun.storage.record import seal


class Commits:
    """Group commit in its simplest form: whoever is first commits for all."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._tables = {
            name: environment.open_db(name.encode())
            for name in ("runs", "queue", "journal", "ended")
        }
        self._staged: list[tuple[str, bytes, bytes | None]] = []
        self._done = trio.Event()

    def put(self, table: str, key: bytes, fields: tuple[Any, ...] | None) -> None:
        """Stage a record, or the removal of one."""
        self._staged.append((table, key, None if fields is None else seal(table, key, fields)))

    async def durable(self) -> None:
        """Wait for the commit that holds what was staged."""
        await self._done.wait()

    async def run(self) -> None:
        """Commit whatever is staged, for ever."""
        while True:
            await trio.lowlevel.checkpoint()
            if not self._staged:
                continue
            staged, self._staged = self._staged, []
            done, self._done = self._done, trio.Event()
            with self._environment.begin(write=True) as transaction:
                for table, key, value in staged:
                    if value is None:
                        transaction.delete(key, db=self._tables[table])
                    else:
                        transaction.put(key, value, db=self._tables[table])
            done.set()


def record_only(keys: int, runs: int, steps: int = 3) -> float:
    """Durable steps per second with `keys` at a time."""
    numbers = iter(range(1, keys * runs + 1))

    async def client(commits: Commits, key: str) -> None:
        for _ in range(runs):
            number = next(numbers)
            record = pack(">Q", number)
            place = key.encode() + record
            commits.put("runs", record, (f"run-{number}", key, "workflow", 1, b"\xc0", {}, 0.0))
            commits.put("queue", place, (number,))
            await commits.durable()
            for step in range(1, steps + 1):
                entry = record + pack(">I", step)
                commits.put("journal", entry, (1, "step", 0.0, 0, 1, 0.0, b"\xc0"))
                if step < steps:
                    await commits.durable()
            commits.put("ended", record, ("succeeded", 1, 0.0, 0.0, b"\xc0"))
            commits.put("queue", place, None)
            await commits.durable()

    async def main() -> float:
        with folder() as path, writer.open_environment(str(path), map_size=1 << 32) as environment:
            async with trio.open_nursery() as nursery:
                commits = Commits(environment)
                nursery.start_soon(commits.run)
                started = perf_counter()
                async with trio.open_nursery() as clients:
                    for number in range(keys):
                        clients.start_soon(client, commits, f"key-{number}")
                seconds = perf_counter() - started
                nursery.cancel_scope.cancel()
            return keys * runs * steps / seconds

    return trio.run(main)
