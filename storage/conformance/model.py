"""The model: the plain dict that every store must be equal to, and what it is driven with."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from keyrun.storage.batch import Batch, Tables
from keyrun.storage.store import Store

T = TypeVar("T")
Rows = dict[tuple[str, bytes], bytes]

TABLES = ("red", "green")
EXAMPLES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.differing_executors]
)

# Few keys, so that they meet; among them those that tempt a store to get the order wrong.
KEYS = st.sampled_from(
    [b"a", b"ab", b"b", b"b\0", b"b\xff", b"\0", b"\xff", b"\xff\xff", b"c" * 99]
)
VALUES = st.one_of(st.binary(max_size=8), st.sampled_from([b"", b"x" * 5000]))
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(TABLES), KEYS, st.one_of(st.none(), VALUES)), max_size=6
)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("stage"), OPERATIONS),
        st.tuples(st.just("commit"), OPERATIONS),
        st.tuples(st.sampled_from(["durable", "linger", "crash", "reopen"]), st.just([])),
    ),
    max_size=25,
)


class Place(ABC):
    """Where one store lives, through closing, crashing and opening again."""

    @abstractmethod
    def store(self) -> Store:
        """A store, not yet entered, on the records of this place."""


def run(test: Callable[[], Awaitable[T]]) -> T:
    """Run `test` on virtual time."""
    return trio.run(test, clock=MockClock(autojump_threshold=0))


def batch(*operations: tuple[str, bytes, bytes | None]) -> Batch:
    """A batch of (table, key, value or None)."""
    made = Batch()
    for table, key, value in operations:
        if value is None:
            made.delete(table, key)
        else:
            made.put(table, key, value)
    return made


async def rows(store: Store) -> Rows:
    """Everything in the tables of this suite, as of one commit: another may be under way."""
    with store.view():
        return {(t, key): value for t in TABLES for key, value in await store.scan(t)}


def laid_on(below: Rows, tables: Tables) -> Rows:
    """The plain dict that a store must be equal to after `tables` was applied."""
    result = dict(below)
    for table, operations in tables.items():
        for key, value in operations.items():
            result.pop((table, key), None)
            if value is not None:
                result[table, key] = value
    return result


class Model:
    """What must be in the store: the states that it may be in, oldest first, of which the last is
    what it comes to when all that is staged is durable."""

    def __init__(self) -> None:
        self.states: list[Rows] = [{}]

    def stage(self, tables: Tables) -> None:
        self.states.append(laid_on(self.states[-1], tables))

    def settle(self) -> None:
        """Everything staged is durable."""
        del self.states[:-1]

    def observe(self, found: Rows) -> None:
        """The store lost what it may lose: it must be in one of the states."""
        assert found in self.states
        self.states = [found]


class Places(ABC):
    """A part of the suite. Every test makes places of its own."""

    @abstractmethod
    def fresh(self) -> AbstractContextManager[Place]:
        """A place that is empty, and gone after the block."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        with self.fresh() as place:
            yield place
