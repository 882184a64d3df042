"""Reading a store: open it, ask, and close it.

A reader holds no lock, and each of its transactions ends before the next page is read. So a
reader never delays the process that writes.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import trio

from keyrun import Reader, open_reader
from keyrun.cli.addresses import StoreAddress, quoted
from keyrun.cli.errors import check_store
from keyrun.cli.exit_codes import USAGE, CommandError
from keyrun.cli.listing import ListingPrinter
from keyrun.cli.screen import note
from keyrun.errors import KeyrunError
from keyrun.storage import MemoryStore
from keyrun.storage.opening import is_url

T = TypeVar("T")

PAGE = 1000
"""Items that one transaction reads."""


def read_store(store: StoreAddress, namespace: str, ask: Callable[[Reader], Awaitable[T]]) -> T:
    """Return what `ask` returns for a reader of the store, or for a client of the process that has
    the store open."""
    check_namespace(namespace)
    if isinstance(store, str):
        return _read_remote(store, namespace, ask)
    path: Path = store
    check_store(path)

    async def main() -> T:
        async with open_reader(path, namespace=namespace) as reader:
            answer = await ask(reader)
            if reader.unreadable:
                records = "records were" if reader.unreadable > 1 else "record was"
                note(
                    f"{reader.unreadable} damaged {records} left out. To list the damage: "
                    f"keyrun verify {quoted(path)}"
                )
            return answer

    return trio.run(main)


def _read_remote(address: str, namespace: str, ask: Callable[[Reader], Awaitable[T]]) -> T:
    from keyrun.cli.operating import connected, reading

    async def main() -> T:
        opened = reading if is_url(address) else connected
        async with opened(address, namespace) as reader:
            return await ask(reader)

    return trio.run(main)


def check_namespace(namespace: str) -> None:
    """Raise `CommandError` if this cannot be the name of a namespace."""
    try:
        MemoryStore().namespace(namespace)
    except ValueError as error:
        raise CommandError(str(error), USAGE) from error


async def list_pages(
    fetch: Callable[[int, str | None], Awaitable[list[T]]],
    listing: ListingPrinter[T],
    *,
    limit: int,
    after: str | None,
    matches: Callable[[T], bool] | None = None,
) -> None:
    """Add at most `limit` items to a listing; with 0, all.

    Items are fetched in pages, so that no transaction is long. `matches` is a filter that the
    store does not have.
    """
    left = limit or float("inf")
    while left > 0:
        size = int(min(PAGE, left)) if matches is None else PAGE
        page = await fetch(size, after)
        for item in page:
            if left > 0 and (matches is None or matches(item)):
                listing.add(item)
                left -= 1
        if len(page) < size:
            return
        after = listing.name(page[-1])


async def list_from_cursor(
    fetch: Callable[[int, str | None], Awaitable[tuple[Sequence[T], str | None]]],
    printer: ListingPrinter[T],
    *,
    limit: int,
    cursor: str | None,
) -> str | None:
    """Add at most `limit` items to a listing; with 0, all. `fetch` returns a page and the cursor of
    the next page. Return the cursor of the items that are left."""
    left = limit or float("inf")
    while left > 0:
        try:
            page, cursor = await fetch(int(min(PAGE, left)), cursor)
        except KeyrunError:
            raise
        except ValueError as error:
            raise CommandError(str(error), USAGE) from error
        for item in page:
            printer.add(item)
        left -= len(page)
        if cursor is None:
            break
    return cursor
