"""A listing: what a command prints of each thing that it finds, as it finds it."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from keyrun.cli import documents
from keyrun.cli.screen import say
from keyrun.cli.table import Column, Table

T = TypeVar("T")


class Listing(Generic[T]):
    """Rows of a table, or with `as_json` a line of JSON each."""

    def __init__(
        self,
        columns: list[Column],
        row: Callable[[T], Iterable[object]],
        document: Callable[[T], documents.Document],
        *,
        name: Callable[[T], str],
        as_json: bool,
    ) -> None:
        self._table = None if as_json else Table(columns)
        self._row = row
        self._document = document
        self.name = name
        """What to go on after."""
        self._count = 0
        self._last: T | None = None

    def take(self, item: T) -> None:
        """Print it."""
        self._count += 1
        self._last = item
        if self._table is None:
            print(documents.line(self._document(item)))
        else:
            self._table.add(self._row(item))

    def end(self, *, limit: int, nothing: str) -> None:
        """That was all; say so if it was nothing, or how to see more."""
        if self._table is None:
            return
        if self._last is None:
            say(nothing)
            return
        self._table.end()
        if self._count == limit:
            say(f"these are {limit}; go on with --after {self.name(self._last)}")
