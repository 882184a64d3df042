"""The model of a store, a plain dict, and the operations of the random tests."""

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

# Few keys, so that operations meet. Some of them are easily put into the wrong order.
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
    """The place of one store, which stays when the store is closed, crashes and is opened again."""

    @abstractmethod
    def store(self) -> Store:
        """Return a store on the records of this place. It is not open yet."""


def run(test: Callable[[], Awaitable[T]]) -> T:
    """Run `test` on virtual time."""
    return trio.run(test, clock=MockClock(autojump_threshold=0))


def batch(*operations: tuple[str, bytes, bytes | None]) -> Batch:
    """Return a batch of (table, key, value or None)."""
    made = Batch()
    for table, key, value in operations:
        if value is None:
            made.delete(table, key)
        else:
            made.put(table, key, value)
    return made


async def rows(store: Store) -> Rows:
    """Return all records of the tables of this suite, as of one commit."""
    with store.view():
        return {(t, key): value for t in TABLES for key, value in await store.scan(t)}


def laid_on(below: Rows, tables: Tables) -> Rows:
    """Return the dict that a store must be equal to after `tables` was applied."""
    result = dict(below)
    for table, operations in tables.items():
        for key, value in operations.items():
            result.pop((table, key), None)
            if value is not None:
                result[table, key] = value
    return result


class Model:
    """The states that the store may be in, the oldest first. The last one is its state when
    everything staged is durable."""

    def __init__(self) -> None:
        self.states: list[Rows] = [{}]

    def stage(self, tables: Tables) -> None:
        self.states.append(laid_on(self.states[-1], tables))

    def settle(self) -> None:
        """Record that everything staged is durable."""
        del self.states[:-1]

    def observe(self, found: Rows) -> None:
        """Check that the store is in one of the states after a crash."""
        assert found in self.states
        self.states = [found]


class Places(ABC):
    """A part of the suite. Each test makes its own places."""

    @abstractmethod
    def fresh(self) -> AbstractContextManager[Place]:
        """Return a context manager with an empty place, which it removes afterwards."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        with self.fresh() as place:
            yield place
