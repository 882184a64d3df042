"""A small pool of connections to SQLite. Use the pool of your database driver instead."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiosqlite

SETUP = """
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS ledger (entry TEXT NOT NULL);
"""


class Pool:
    """Connections that tasks of one event loop share."""

    def __init__(self) -> None:
        self._free: asyncio.Queue[aiosqlite.Connection] = asyncio.Queue()

    def add(self, connection: aiosqlite.Connection) -> None:
        """Give the pool a connection."""
        self._free.put_nowait(connection)

    async def execute(self, statement: str, *values: object) -> None:
        """Run one statement in a transaction, on a connection that is free."""
        connection = await self._free.get()
        try:
            await connection.execute(statement, values)
            await connection.commit()
        finally:
            self.add(connection)


@asynccontextmanager
async def open_pool() -> AsyncIterator[Pool]:
    """Open four connections, and close them when the block is left."""
    async with AsyncExitStack() as stack:
        pool = Pool()
        for _ in range(4):
            connection = await stack.enter_async_context(aiosqlite.connect("shop.db"))
            await connection.executescript(SETUP)
            pool.add(connection)
        yield pool
