"""A listing: print each item as it is found, and then how to get the next page."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from keyrun.cli import documents
from keyrun.cli.screen import note, shell_word
from keyrun.cli.table import Column, Table

T = TypeVar("T")


class ListingPrinter(Generic[T]):
    """The rows of a table, or one line of JSON for each item.

    `noun` is one item and several items, such as "run" and "runs". `name` returns the id of an
    item, after which the next page starts.
    """

    def __init__(
        self,
        columns: list[Column],
        row: Callable[[T], Iterable[object]],
        document: Callable[[T], documents.Document],
        *,
        noun: tuple[str, str],
        name: Callable[[T], str],
        as_json: bool,
    ) -> None:
        self._table = None if as_json else Table(columns)
        self._row = row
        self._document = document
        self._noun = noun
        self.name = name
        self._count = 0
        self._last: T | None = None

    def add(self, item: T) -> None:
        """Print an item."""
        self._count += 1
        self._last = item
        if self._table is None:
            print(documents.line(self._document(item)))
        else:
            self._table.add(self._row(item))

    def end(self, *, limit: int | None = None, cursor: str | None = None) -> None:
        """Print the rest of the table, and how to get the next page if there may be one. `cursor`
        is the place of the next page in a listing that has one."""
        if self._table is None:
            return
        if self._last is None:
            note(f"No {self._noun[1]} found.")
            return
        self._table.end()
        shown = f"{self._count:,} {self._noun[self._count != 1]}"
        if cursor is not None:
            note(f"Showing {shown}. Next page: --cursor {cursor}")
        elif self._count == limit:
            last = shell_word(self.name(self._last))
            note(f"Showing {shown}. Next page: --after {last}")
