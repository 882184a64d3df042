"""The PostgreSQL store passes the suite of all stores."""

from collections.abc import Iterator
from contextlib import contextmanager

from keyrun.storage import Store
from keyrun.storage.conformance import Place, StoreConformance
from tests.postgres import new_namespace, open_store


class Database(Place):
    def __init__(self) -> None:
        self._namespace = new_namespace()

    def store(self) -> Store:
        return open_store(namespace=self._namespace)


class TestPostgresStore(StoreConformance):
    @contextmanager
    def fresh(self) -> Iterator[Place]:
        yield Database()
