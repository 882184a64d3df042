"""Looking into a store: open it for reading, ask, and let go.

A reader holds no lock, and each of its transactions is over before the next page is asked for, so
the process that writes is never held up.
"""

import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import trio

from keyrun import Reader, open_reader
from keyrun.cli.exits import USAGE, Refusal
from keyrun.cli.listing import Listing
from keyrun.cli.screen import say
from keyrun.cli.troubles import find_store
from keyrun.storage import MemoryStore

T = TypeVar("T")

PAGE = 1000


def look(store: Path, namespace: str, ask: Callable[[Reader], Awaitable[T]]) -> T:
    """What `ask` makes of the store."""
    find_store(store)
    check_namespace(namespace)

    async def main() -> T:
        async with open_reader(store, namespace=namespace) as reader:
            answer = await ask(reader)
            if reader.unreadable:
                several = "records were" if reader.unreadable > 1 else "record was"
                say(
                    f"{reader.unreadable} damaged {several} left out; run "
                    f"keyrun verify {shlex.quote(str(store))} to see which"
                )
            return answer

    return trio.run(main)


def check_namespace(namespace: str) -> None:
    """Refuse what cannot be the name of a namespace."""
    try:
        MemoryStore().namespace(namespace)
    except ValueError as error:
        raise Refusal(str(error), USAGE) from error


async def paged(
    fetch: Callable[[int, str | None], Awaitable[list[T]]],
    listing: Listing[T],
    *,
    limit: int,
    after: str | None,
    fits: Callable[[T], bool] | None = None,
) -> None:
    """List at most `limit` items, 0 for all. They are fetched page by page, so that no
    answer is ever large; `fits` leaves out some that the store cannot tell apart."""
    left = limit or float("inf")
    while left > 0:
        size = int(min(PAGE, left)) if fits is None else PAGE
        page = await fetch(size, after)
        for item in page:
            if left > 0 and (fits is None or fits(item)):
                listing.take(item)
                left -= 1
        if len(page) < size:
            return
        after = listing.name(page[-1])
