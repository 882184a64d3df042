"""The schema, and what a server, a role and a URL must be."""

import logging
import os
import traceback
from urllib.parse import quote

import pytest
import trio

from keyrun.storage import LmdbStore, StoreClosed, StoreError, StoreTooNew, store_at
from keyrun.storage.conformance import batch
from keyrun.storage.postgres import PostgresStore, schema
from keyrun.storage.postgres.address import Address
from keyrun.storage.postgres.wire import Wire
from tests.postgres import (
    database,
    new_namespace,
    open_store,
    run_sql,
    server,
    shared_url,
    unused_port,
)
from tests.storage.postgres.proxy import older_server, proxy


@pytest.fixture
def empty() -> object:
    with database() as url:
        yield url


async def test_stores_that_open_a_new_database_at_once_create_the_schema_once(empty: str) -> None:
    async def use(store: PostgresStore) -> None:
        async with store:
            await store.commit(batch(("red", b"k", b"v")))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(use, open_store(empty))
    assert run_sql(empty, "select number from keyrun.version") == [(1,)]
    assert run_sql(empty, "select count(*) from keyrun.part") == [(5,)]


async def test_a_newer_schema_is_refused_and_its_lease_can_be_read(empty: str) -> None:
    store = open_store(empty)
    async with store:
        pass
    run_sql(empty, "update keyrun.version set number = 2")
    with pytest.raises(StoreTooNew, match="version 2, and this Keyrun writes up to 1; upgrade"):
        await store.__aenter__()
    lease = await store.read_lease()
    assert lease is not None
    assert lease.epoch == 1


async def test_a_migration_adds_what_is_missing_once(empty: str) -> None:
    async with open_store(empty):
        pass
    address = Address(empty, "test")
    migrations = (*schema.MIGRATIONS, "alter table keyrun.part add column more text;\n")

    async def migrate() -> None:
        wire = await Wire.connect(address)
        try:
            await schema.migrate(wire, 1, address, migrations)
        finally:
            wire.close()

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(migrate)
    assert run_sql(empty, "select number from keyrun.version") == [(2,)]
    assert run_sql(empty, "select more from keyrun.part") == [(None,)]


async def test_a_migration_that_fails_changes_nothing(empty: str) -> None:
    async with open_store(empty):
        pass
    address = Address(empty, "test")
    broken = "alter table keyrun.part add column more text;\nselect 1 / 0;\n"
    wire = await Wire.connect(address)
    with pytest.raises(StoreError, match="division by zero"):
        await schema.migrate(wire, 1, address, (*schema.MIGRATIONS, broken))
    wire.close()
    assert run_sql(empty, "select number from keyrun.version") == [(1,)]


async def test_a_namespace_of_several_parts_is_refused(empty: str) -> None:
    store = open_store(empty)
    async with store:
        pass
    run_sql(empty, "update keyrun.part set parts = 4")
    with pytest.raises(StoreError, match="divided into 4 parts"):
        await store.__aenter__()


def as_role(url: str, role: str) -> str:
    """Return the URL with another role."""
    return url.replace("postgresql://keyrun@", f"postgresql://{role}@")


needs_own_server = pytest.mark.skipif(
    "KEYRUN_TEST_POSTGRES" in os.environ, reason="makes roles, which a given server may not allow"
)


@needs_own_server
async def test_a_role_without_rights_gets_an_error_that_names_the_grants(empty: str) -> None:
    run_sql(empty, "drop role if exists poor", "create role poor login")
    with pytest.raises(StoreError, match="grant create on database"):
        await open_store(as_role(empty, "poor")).__aenter__()
    async with open_store(empty):
        pass
    with pytest.raises(StoreError, match="grant usage on schema keyrun"):
        await open_store(as_role(empty, "poor")).__aenter__()


@needs_own_server
async def test_a_role_with_the_rights_of_the_documentation_uses_the_schema_of_another(
    empty: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(empty):
        pass
    run_sql(
        empty,
        "drop role if exists app",
        "create role app login",
        "grant usage on schema keyrun to app",
        "grant select, insert, update, delete on all tables in schema keyrun to app",
    )
    store = open_store(as_role(empty, "app"))
    async with store:
        await store.commit(batch(("red", b"k", b"v")))
    async with store:
        assert await store.get("red", b"k") == b"v"
    run_sql(empty, "drop owned by app", "drop role app")


async def test_a_server_that_is_too_old_is_refused() -> None:
    async with proxy(shared_url()) as old:
        old.rewrite = older_server
        with pytest.raises(StoreError, match=r"is PostgreSQL 12.*requires 13.0 or newer; upgrade"):
            await open_store(old.url(shared_url())).__aenter__()


@needs_own_server
async def test_a_server_without_fsync_is_refused_unless_it_is_called_unsafe(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert run_sql(shared_url(), "show fsync") == [("off",)]
    with pytest.raises(StoreError, match=r"fsync = off.*set fsync = on, or pass unsafe=True"):
        await PostgresStore(shared_url(), namespace=new_namespace()).__aenter__()
    assert not caplog.records
    async with open_store():
        pass
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert [each for each in warnings if "unsafe=True" in each.getMessage()]


SECRET = "hunter2%2F%40secret"
SECRETS = ("hunter2", "secret")


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@127.0.0.1:{{port}}/db",
        f"postgresql://ann:{SECRET}@127.0.0.1:{{port}},127.0.0.1:{{port}}/db",
        f"postgresql://ann@127.0.0.1:{{port}}/db?password={SECRET}",
        f"postgresql://ann:{SECRET}@no-such-host.invalid/db",
        f"postgresql://ann:{SECRET}@/db?host=/no/such/folder",
        # Characters that are not encoded end the password early.
        "postgresql://ann:hunter2@secret@127.0.0.1:{port}/db",
        "postgresql://ann:hunter2/secret@127.0.0.1:{port}/db",
        "postgresql://ann:hunter2?secret@127.0.0.1:{port}/db",
        "postgresql://ann:hunter2%secret@127.0.0.1:{port}/db",
        "postgresql://ann:hunter2#secret@127.0.0.1:{port}/db",
    ],
)
async def test_the_password_of_a_url_is_in_no_error_repr_or_log(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    try:
        store = PostgresStore(url.format(port=unused_port()))
        shown = repr(store) + repr(store._address)
        await store.__aenter__()
    except StoreError as error:
        shown = "".join(traceback.format_exception(error)) + repr(error)
        shown = shown.replace(url, "")  # nothing of this test's own lines
    else:
        raise AssertionError("a store was opened")
    text = "".join(line for line in shown.splitlines() if "File" not in line) + caplog.text
    assert not [secret for secret in SECRETS if secret in text], text


async def test_the_error_of_an_unreachable_database_names_it() -> None:
    port = unused_port()
    store = PostgresStore(f"postgresql://ann:{SECRET}@127.0.0.1:{port}/orders")
    assert repr(store) == (
        f"PostgresStore('postgresql://ann@127.0.0.1:{port}/orders', namespace='default')"
    )
    with pytest.raises(
        StoreError,
        match=rf"cannot use the database postgresql://ann@127.0.0.1:{port}/orders: .*"
        "Connection refused",
    ):
        await store.__aenter__()
    with pytest.raises(StoreError, match="cannot use the database"):
        await store.read_lease()


async def test_environment_variables_and_passwords_of_libpq_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server(password_encryption="scram-sha-256") as own:
        run_sql(own.url(), f"create role ann login password '{SECRET}'")
        run_sql(own.url(), "grant create on database postgres to ann")
        rules = "local all keyrun trust\nlocal all all scram-sha-256\n"
        (own.data / "pg_hba.conf").write_text(rules)
        run_sql(own.url(), "select pg_reload_conf()")
        with pytest.raises(StoreError, match="password"):
            await PostgresStore(own.url(user="ann"), unsafe=True).__aenter__()
        monkeypatch.setenv("PGHOST", str(own.folder))
        monkeypatch.setenv("PGPASSWORD", SECRET)
        monkeypatch.setenv("PGUSER", "ann")
        async with PostgresStore("postgresql:///postgres", unsafe=True) as store:
            await store.commit(batch(("red", b"k", b"v")))
            assert SECRET not in repr(store)
        encoded = f"postgresql://ann:{quote(SECRET, safe='')}@/postgres"
        monkeypatch.delenv("PGPASSWORD")
        async with PostgresStore(encoded, unsafe=True) as store:
            assert await store.get("red", b"k") == b"v"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "state"}, "url must begin with postgresql://"),
        ({"url": "postgresql://h/d", "ttl": 0}, "ttl must be at least 0.1 seconds, got 0"),
        ({"url": "postgresql://h/d", "namespace": "a b"}, "namespace must be 1 to 64 of"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PostgresStore(**arguments)  # type: ignore[arg-type]


def test_a_store_is_made_for_a_path_or_a_url() -> None:
    assert repr(store_at("state")) == "LmdbStore('state')"
    assert isinstance(store_at("postgres.d"), LmdbStore)
    store = store_at("postgres://ann@h:7000/d", namespace="eu")
    assert repr(store) == "PostgresStore('postgresql://ann@h:7000/d', namespace='eu')"


async def test_a_store_cannot_be_used_after_a_fork_and_its_parent_continues() -> None:
    async with open_store() as store:
        await store.commit(batch(("red", b"k", b"v")))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                store.stage(batch(("red", b"child", b"v")))
            except StoreClosed as error:
                os.write(writer, str(error).encode())
            finally:
                os._exit(0)
        os.close(writer)
        await trio.to_thread.run_sync(os.waitpid, child, 0)
        assert b"cannot be used after a fork" in os.read(reader, 1000)
        os.close(reader)
        await store.commit(batch(("red", b"parent", b"v")))
        assert [key for key, _ in await store.scan("red")] == [b"k", b"parent"]
