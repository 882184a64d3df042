"""Pages: read a table of any size a few records at a time.

`async for page in ledger.pages(...)` runs other tasks between two pages. `next()` never suspends
for longer than the read itself, so it may be called inside a view of the store. A page that is
shorter than asked for is the last one.
"""

from trio.lowlevel import checkpoint

from keyrun.storage import Store

Rows = list[tuple[bytes, bytes]]


class Pages:
    """The records of a table whose keys start with `prefix`, from `start` on and before `stop`."""

    __slots__ = ("_prefix", "_read", "_start", "_stop", "_store", "_table", "more", "size")

    def __init__(
        self,
        store: Store,
        table: str,
        *,
        size: int,
        prefix: bytes = b"",
        start: bytes = b"",
        stop: bytes | None = None,
    ) -> None:
        self._store = store
        self._table = table
        self._prefix = prefix
        self._start = start
        self._stop = stop
        self._read = False
        self.size = size
        """Records in the next page. It may be changed between two pages."""
        self.more = True
        """False once the last page was read."""

    async def next(self) -> Rows:
        """Return the next page. It is empty at the end."""
        if not self.more:
            return []
        rows = await self._store.scan(
            self._table, prefix=self._prefix, start=self._start, stop=self._stop, limit=self.size
        )
        if len(rows) < self.size:
            self.more = False
        else:
            self._start = rows[-1][0] + b"\0"
        return rows

    def __aiter__(self) -> "Pages":
        return self

    async def __anext__(self) -> Rows:
        if self._read and self.more:
            await checkpoint()
        self._read = True
        rows = await self.next()
        if not rows:
            raise StopAsyncIteration
        return rows
