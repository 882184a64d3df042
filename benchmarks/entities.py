"""Calls of entities per second beside the record-only loop: one commit each, shared by all keys."""

from functools import partial
from struct import pack
from time import perf_counter

import trio

from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench
from benchmarks.record_only import Commits
from keyrun import Entity, entity, open_runtime
from keyrun.storage import LmdbStore, writer

HOT = 256
"""Callers of one key at the same time."""


@entity
class Account(Entity):
    """What everybody's first entity is."""

    async def deposit(self, amount: int) -> int:
        """The balance after it."""
        balance: int = self.state.get("balance", 0) + amount
        self.state["balance"] = balance
        return balance


@entity(effects=False)
class Purse(Account):
    """The same, with a promise to do nothing else."""


def record_only(keys: int, calls: int, *, requests: bool) -> float:
    """Records of a state, and of a request if there are any, per second with `keys` at a time."""

    async def client(commits: Commits, key: str) -> None:
        state = key.encode()
        for number in range(1, calls + 1):
            commits.put("runs", state, (pack(">Q", number),))
            if requests:
                fields = ("Account", f"r{number}", "deposit", bytes(32), 0.0, b"\x01", None)
                commits.put("ended", state + pack(">Q", number), fields)
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
            return keys * calls / seconds

    return trio.run(main)


def calls_per_second(
    keys: int, calls: int, *, requests: bool, cls: type[Account] = Account, callers: int = 1
) -> float:
    """Calls per second by so many callers of each key."""

    async def main() -> float:
        with folder() as path:
            async with open_runtime(LmdbStore(path), entities=[cls]) as rt:

                async def client(key: str, name: int) -> None:
                    account = rt.entity(cls, key)
                    for number in range(calls):
                        if requests:
                            account = rt.entity(cls, key, request_id=f"{name}-{number}")
                        await account.deposit(1)

                started = perf_counter()
                async with trio.open_nursery() as nursery:
                    for number in range(keys):
                        for caller in range(callers):
                            nursery.start_soon(client, f"key-{number}", caller)
                seconds = perf_counter() - started
                total = await rt.entity(cls, "key-0").deposit(0)
                assert total == calls * callers
                return keys * calls * callers / seconds

    return trio.run(main)


def run(bench: Bench) -> None:
    """Measure."""
    for keys in (1, 1000):
        calls = max(20, bench.size(40_000, 8_000) // max(keys, 20))
        for requests in (False, True):
            name = f"{keys} keys{', with request ids' if requests else ''}"
            bench.group(
                name,
                {
                    "record-only loop": partial(record_only, keys, calls, requests=requests),
                    "calls": partial(calls_per_second, keys, calls, requests=requests),
                },
                unit="calls/s",
                limit="record-only loop",
                bars={"calls": Bar(value=0.4)},
            )
    calls = bench.size(100, 20)
    hot = partial(calls_per_second, 1, calls, requests=False, callers=HOT)
    bench.group(
        f"{HOT} callers of one key",
        {
            "record-only loop": partial(record_only, HOT, calls, requests=False),
            "calls without effects": partial(hot, cls=Purse),
        },
        unit="calls/s",
        limit="record-only loop",
    )
