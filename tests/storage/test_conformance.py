"""Every store and committer passes the one suite."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from keyrun.storage import LmdbStore, MemoryStore, Store
from keyrun.storage.conformance import Place, StoreConformance
from keyrun.storage.lmdb_store import CommitterName


class MemoryPlace(Place):
    def __init__(self, *, apply_first: bool = False) -> None:
        self._store = MemoryStore(apply_first=apply_first)

    def store(self) -> Store:
        return self._store


class Directory(Place):
    def __init__(self, path: Path, committer: CommitterName) -> None:
        self._path = path
        self._committer = committer

    def store(self) -> Store:
        return LmdbStore(self._path, committer=self._committer, map_size=1 << 20)


class TestMemoryStore(StoreConformance):
    @contextmanager
    def fresh(self) -> Iterator[Place]:
        yield MemoryPlace()


class TestMemoryStoreThatAppliesFirst(StoreConformance):
    @contextmanager
    def fresh(self) -> Iterator[Place]:
        yield MemoryPlace(apply_first=True)


class TestInlineLmdbStore(StoreConformance):
    @contextmanager
    def fresh(self) -> Iterator[Place]:
        with TemporaryDirectory() as folder:
            yield Directory(Path(folder), "inline")


class TestProcessLmdbStore(StoreConformance):
    @contextmanager
    def fresh(self) -> Iterator[Place]:
        with TemporaryDirectory() as folder:
            yield Directory(Path(folder), "process")
