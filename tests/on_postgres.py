"""Run tests that use a `MemoryStore` on PostgreSQL instead: `make test-postgres`.

`tests/conftest.py` calls `install` before it loads any test, if the environment variable
KEYRUN_TEST_STORE is `postgres`. A `MemoryStore()` is then a namespace of its own in the database
that all tests of the process share. Virtual time stands still while the database works.
"""

import logging

import psycopg
import trio

import keyrun.storage
from keyrun.storage.batch import Tables
from keyrun.storage.postgres import PostgresStore
from tests.postgres import new_namespace, open_store, shared_url


class StoreOnPostgres(PostgresStore):
    """A store in PostgreSQL with the arguments of a `MemoryStore`, and with the tables that some
    tests look into and damage."""

    def __init__(self, *, latency: float = 0.0, apply_first: bool = False) -> None:
        super().__init__(shared_url(), namespace=new_namespace(), unsafe=True)
        self.latency = latency
        self.apply_first = apply_first
        self._damaged: dict[str, dict[bytes, bytes]] = {}
        """Records that a test has changed while the store was open."""

    async def _commit(self, tables: Tables) -> None:
        if not self.apply_first:
            await trio.sleep(self.latency)
        failure = self._opened().failure
        if failure is not None:
            raise failure
        await super()._commit(tables)
        if self.apply_first:
            await trio.sleep(self.latency)

    async def _close(self) -> None:
        await super()._close()
        damaged, self._damaged = self._damaged, {}
        if damaged:
            self._append(damaged)

    @property
    def _tables(self) -> "dict[str, _Table]":
        found: dict[str, dict[bytes, bytes]] = {}
        if self._image is not None:
            for name in self._image.reads.tables():
                found[name] = dict(self._image.reads.scan(name, b"", None, None, False))
        else:
            for table, key, value in self._stored():
                found.setdefault(table, {})
                if value is not None:
                    found[table][key] = value
        return {name: _Table(self, name, records) for name, records in found.items()}

    @_tables.setter
    def _tables(self, tables: "dict[str, _Table]") -> None:
        self._append({name: dict(table.records) for name, table in tables.items()})

    def damage_record(self, table: str, key: bytes, value: bytes) -> None:
        """Change a record behind the back of everybody."""
        if self._image is None:
            self._append({table: {key: value}})
            return
        self._image.apply({table: {key: value}})
        self._damaged.setdefault(table, {})[key] = value

    def _stored(self) -> list[tuple[str, bytes, bytes | None]]:
        """Return the last word on each record of the closed store."""
        with psycopg.connect(shared_url()) as connection:
            return connection.execute(
                """with p as (select id from keyrun.part where namespace = %s)
                select distinct on (tbl, key) tbl, key, value from (
                    select tbl, key, value, 0 as seq from keyrun.record
                    where part = (select * from p)
                    union all
                    select u.tbl, u.key, u.value, l.seq from keyrun.log l,
                        unnest(l.tables, l.keys, l.vals) as u (tbl, key, value)
                    where l.part = (select * from p)
                ) as each order by tbl, key, seq desc""",
                (self.name,),
            ).fetchall()

    def _append(self, tables: dict[str, dict[bytes, bytes]]) -> None:
        """Commit to the closed store."""
        each = [
            (table, key, value)
            for table, records in tables.items()
            for key, value in records.items()
        ]
        names, keys, values = ([row[at] for row in each] for at in range(3))
        with psycopg.connect(shared_url()) as connection:
            connection.execute(
                """with made as (
                    insert into keyrun.part (namespace) values (%s)
                    on conflict (namespace, number) do nothing returning id
                ) insert into keyrun.folded (part) select id from made""",
                (self.name,),
            )
            connection.execute(
                """with u as (
                    update keyrun.part set seq = seq + 1 where namespace = %s returning id, seq
                ) insert into keyrun.log select id, seq, 0, %s, %s, %s from u""",
                (self.name, names, keys, values),
            )


class _Records(dict[bytes, bytes]):
    def __init__(self, store: StoreOnPostgres, name: str, records: dict[bytes, bytes]) -> None:
        super().__init__(records)
        self._store = store
        self._name = name

    def __setitem__(self, key: bytes, value: bytes) -> None:
        super().__setitem__(key, value)
        self._store.damage_record(self._name, key, value)


class _Table:
    """A table with its keys in order, as a `MemoryStore` has it."""

    def __init__(self, store: StoreOnPostgres, name: str, records: dict[bytes, bytes]) -> None:
        self.records = _Records(store, name, records)
        self.keys = sorted(records)


def install() -> None:
    """Let `keyrun.storage.MemoryStore` be a store in PostgreSQL, for modules that are imported from
    now on."""
    keyrun.storage.MemoryStore = StoreOnPostgres  # type: ignore[assignment, misc]

    async def create_schema() -> None:
        async with open_store():
            pass

    logging.getLogger("keyrun.storage").addFilter(_is_not_about_unsafe)
    trio.run(create_schema)


def _is_not_about_unsafe(record: logging.LogRecord) -> bool:
    return "unsafe=True" not in record.getMessage()
