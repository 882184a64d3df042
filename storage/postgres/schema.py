"""The schema: created at the first open, and migrated by an owner after its claim.

The rules:

1. A migration only adds, so the previous release can still read and be a client.
2. A release owns no namespace of a schema that is newer than it knows. It may read the lease.
3. Creation and migration hold one advisory lock, so that processes that start together wait for
   each other.
"""

from collections.abc import Sequence
from typing import Final

from keyrun.storage.errors import StoreError, StoreTooNew
from keyrun.storage.postgres import statements
from keyrun.storage.postgres.address import Address
from keyrun.storage.postgres.wire import StatementFailed, Wire

MIN_SERVER: Final = 130000

_VERSION_1 = """
create schema if not exists keyrun;

create table keyrun.version (
    number integer not null
);

create table keyrun.part (
    id bigint generated always as identity primary key,
    namespace text not null,
    number integer not null default 0,
    parts integer not null default 1,
    generation integer not null default 0,
    seq bigint not null default 0,
    epoch bigint not null default 0,
    owner text,
    expires timestamptz,
    locked boolean not null default false,
    address text,
    format integer,
    details text,
    unique (namespace, number)
) with (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

create table keyrun.folded (
    part bigint primary key references keyrun.part,
    seq bigint not null default 0
) with (fillfactor = 50);

create table keyrun.log (
    part bigint not null,
    seq bigint not null,
    epoch bigint not null,
    tables text[] collate "C" not null,
    keys bytea[] not null,
    vals bytea[] not null,
    primary key (part, seq)
) with (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_threshold = 2000000000,
    toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 5000,
    toast.autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_insert_threshold = -1
);
alter table keyrun.log alter tables set storage external;
alter table keyrun.log alter keys set storage external;
alter table keyrun.log alter vals set storage external;

create table keyrun.record (
    part bigint not null,
    tbl text collate "C" not null,
    key bytea not null,
    value bytea not null,
    primary key (part, tbl, key)
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.1);
alter table keyrun.record alter value set storage external;
"""

MIGRATIONS: Final[Sequence[str]] = (_VERSION_1,)
"""The statements that lead to each version, from the one before it."""


async def check_server(wire: Wire, address: Address, *, unsafe: bool) -> bool:
    """Check that the server can keep commits. Return whether the connection is direct, that is,
    whether the session of the server belongs to this process alone."""
    if wire.version < MIN_SERVER:
        raise StoreError(
            f"{address} is PostgreSQL {_version(wire.version)}, and Keyrun requires "
            f"{_version(MIN_SERVER)} or newer; upgrade the server"
        )
    (fsync, backend) = (await wire.run(statements.SERVER)).texts()
    if fsync != "on" and not unsafe:
        raise StoreError(
            f"the server of {address} runs with fsync = {fsync}, so a crash of its machine can "
            "lose or destroy acknowledged commits; set fsync = on, or pass unsafe=True in tests"
        )
    return backend == str(wire.backend)


async def ensure(wire: Wire, address: Address) -> int:
    """Create the schema if it is not there. Return its version."""
    try:
        version = await read_version(wire)
        if version is None:
            await _apply(wire, 0, MIGRATIONS)
            version = await read_version(wire)
    except StatementFailed as error:
        raise explain(error, address) from None
    assert version is not None
    return version


async def read_version(wire: Wire) -> int | None:
    """Return the version of the schema, or None if there is no schema."""
    if (await wire.run(statements.HAS_SCHEMA)).texts() != ["t"]:
        return None
    return int((await wire.run(statements.VERSION)).texts()[0] or 0)


def check_version(version: int, address: Address, newest: int = len(MIGRATIONS)) -> None:
    """Raise unless this Keyrun may own a namespace of a schema."""
    if version > newest:
        raise StoreTooNew(
            f"the schema keyrun in {address} has version {version}, and this Keyrun writes up to "
            f"{newest}; upgrade Keyrun to own a namespace of it"
        )


async def migrate(
    wire: Wire, version: int, address: Address, migrations: Sequence[str] = MIGRATIONS
) -> None:
    """Bring a schema of `version` to the newest one. Only an owner may do this, or a role that
    separates the rights."""
    if version >= len(migrations):
        return
    try:
        await _apply(wire, version, migrations)
    except StatementFailed as error:
        raise explain(error, address) from None


async def _apply(wire: Wire, version: int, migrations: Sequence[str]) -> None:
    """Apply the migrations after `version`, unless another process has applied them."""
    await wire.run(statements.BEGIN)
    try:
        await wire.run(statements.LOCK_SCHEMA)
        found = await read_version(wire)
        if found is None or found == version:
            for script in migrations[version:]:
                for statement in script.split(";\n"):
                    if statement.strip():
                        await wire.run(statement.encode())
            await wire.run(statements.DROP_VERSION)
            await wire.run(statements.SET_VERSION, len(migrations))
        await wire.run(statements.COMMIT)
    except StatementFailed:
        await wire.run(statements.ROLLBACK)
        raise


def explain(error: StatementFailed, address: Address) -> StoreError:
    """Return the error for a statement that PostgreSQL refused while a store was opened."""
    if error.state == "42501":
        return StoreError(
            f"{address}: {error}; the role needs the right to create the schema keyrun in this "
            "database (grant create on database ...), or, if another role has created it, the "
            "rights to use it: grant usage on schema keyrun, and grant select, insert, update, "
            "delete on all tables in schema keyrun"
        )
    return StoreError(f"{address}: {error}")


def _version(number: int) -> str:
    return f"{number // 10000}.{number % 10000}" if number >= 100000 else str(number)
