"""Soaking: the same tests for longer. `make soak` sets KEYRUN_SOAK and shows their progress."""

import os
import sys
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

SOAK = bool(os.environ.get("KEYRUN_SOAK"))
EVERY = 5.0
"""Seconds between two lines."""


def amount(few: int, many: int) -> int:
    """How much: `few` in `make test`, `many` in `make soak`."""
    return many if SOAK else few


def shown(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """The items, with a line now and then that says how many are done."""
    begun = last = monotonic()
    done = 0
    for done, item in enumerate(items, 1):
        yield item
        if SOAK and monotonic() - last >= EVERY:
            last = monotonic()
            of = "" if total is None else f" of {total}"
            print(f"  {label}: {done}{of}, {last - begun:.0f} s", file=sys.stderr, flush=True)
    if SOAK:
        print(
            f"  {label}: {done}, done in {monotonic() - begun:.0f} s", file=sys.stderr, flush=True
        )
