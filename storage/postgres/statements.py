"""Every SQL statement, except those that create the schema.

Each change of a part compares its owner, epoch or position with what the caller knows, and changes
nothing if they differ. A statement that waits for a lock keeps the snapshot of its beginning, so
only this comparison, on the locked row, is safe.
"""

_SYNC = b"""set_config('synchronous_commit', case current_setting('synchronous_commit')
    when 'remote_apply' then 'remote_apply' else 'on' end, true) is not null"""
"""Let the transaction of this statement wait for the disk, whatever the session says. The setting
travels with the statement, because a pooler shares sessions. It is never weakened."""

BEGIN = b"begin"
COMMIT = b"commit"
ROLLBACK = b"rollback"

# The server and the schema.

SERVER = b"select current_setting('fsync'), pg_backend_pid()"
HAS_SCHEMA = b"""select exists (
    select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'keyrun' and c.relname = 'version'
)"""
"""A look into the catalogs. `to_regclass` may not see yet what another session has just made."""
VERSION = b"select coalesce(max(number), 0) from keyrun.version"
DROP_VERSION = b"delete from keyrun.version"
SET_VERSION = b"insert into keyrun.version values ($1::integer)"
LOCK_SCHEMA = b"select pg_advisory_xact_lock(hashtextextended('keyrun.schema', 0))"

# The lease.

PART = b"""
select id, parts, seq, epoch, owner, locked, address, format, details,
    greatest(extract(epoch from expires - clock_timestamp()), 0)::float8,
    extract(epoch from clock_timestamp())::float8,
    extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8
from keyrun.part where namespace = $1 and number = 0
"""
"""$1: the namespace."""

ADD_PART = b"""
with added as (
    insert into keyrun.part (namespace) values ($1)
    on conflict (namespace, number) do nothing returning id
)
insert into keyrun.folded (part) select id from added
"""
"""$1: the namespace."""

CLAIM = (
    b"""
with free as (
    select id from keyrun.part
    where id = $1::bigint and epoch = $2::bigint
        and (owner is null or expires < clock_timestamp() or $3::boolean)
    for update skip locked
)
update keyrun.part p
set owner = $4, epoch = p.epoch + 1, locked = $5::boolean, address = $6, format = $7::integer,
    details = $8, expires = clock_timestamp() + $9::float8 * interval '1 second'
from free where p.id = free.id and """
    + _SYNC
    + b"""
returning p.seq, extract(epoch from clock_timestamp())::float8
"""
)
"""$1: part, $2: the epoch before, $3: whether the session of that epoch has ended, $4: owner,
$5: whether the new owner holds a session lock, $6: address, $7: format, $8: details, $9: TTL."""

BEAT = (
    b"""
update keyrun.part set expires = clock_timestamp() + $4::float8 * interval '1 second'
where id = $1::bigint and owner = $2 and epoch = $3::bigint and """
    + _SYNC
    + b"""
returning seq, extract(epoch from clock_timestamp())::float8
"""
)
"""$1: part, $2: owner, $3: epoch, $4: TTL."""

DESCRIBE = b"""
update keyrun.part set address = $4, format = $5::integer, details = $6
where id = $1::bigint and owner = $2 and epoch = $3::bigint
"""
"""$1: part, $2: owner, $3: epoch, $4: address, $5: format, $6: details."""

RELEASE = b"""
update keyrun.part set owner = null, expires = null, address = null, locked = false
where id = $1::bigint and owner = $2 and epoch = $3::bigint
"""
"""$1: part, $2: owner, $3: epoch."""

LOCK = b"select pg_advisory_lock($1::bigint)"
TRY_LOCK = b"select pg_try_advisory_lock($1::bigint)"
UNLOCK = b"select pg_advisory_unlock($1::bigint)"

END_SESSION = b"""
select pg_terminate_backend(pid) from pg_locks
where pid = $2::integer and locktype = 'advisory' and objsubid = 1
    and database = (select oid from pg_database where datname = current_database())
    and ((classid::bigint << 32) | objid::bigint) = $1::bigint
"""
"""End a session of this owner that the server has not yet found to be dead. $1: the key of its
lock, $2: its process."""

# Commits.

APPEND = (
    b"""
with u as (
    update keyrun.part
    set seq = seq + 1, expires = clock_timestamp() + $5::float8 * interval '1 second'
    where id = $1::bigint and owner = $2::text and epoch = $3::bigint and seq = $4::bigint and """
    + _SYNC
    + b"""
    returning seq
)
insert into keyrun.log select $1::bigint, u.seq, $3::bigint, $6::text[], $7::bytea[], $8::bytea[]
from u returning seq
"""
)
"""$1: part, $2: owner, $3: epoch, $4: the last commit, $5: TTL, $6: tables, $7: keys, $8: values.
All parameters are binary."""

STATE = b"select owner, epoch, seq from keyrun.part where id = $1::bigint"
"""$1: part."""

# Load and fold.

BEGIN_SNAPSHOT = b"begin isolation level repeatable read read only"

PLAN_BY_INDEX = b"""select set_config('enable_seqscan', 'off', true),
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
    set_config('statement_timeout', '0', true),
    set_config('idle_in_transaction_session_timeout', '0', true)"""
"""Tables without statistics get plans that read all of them. For one transaction."""

FOLDED = b"select seq from keyrun.folded where part = $1::bigint"
"""$1: part."""


def copy_records(part: int) -> bytes:
    """Return the statement that copies all records of a part, in the order of their keys."""
    return (
        b"""copy (select tbl, key, value from keyrun.record where part = %d order by tbl, key)
        to stdout (format binary)"""
        % part
    )


def copy_log(part: int, after: int) -> bytes:
    """Return the statement that copies the records of all commits after one, in their order."""
    return b"""copy (
        select u.tbl, u.key, u.value from keyrun.log l,
            lateral unnest(l.tables, l.keys, l.vals) with ordinality as u (tbl, key, value, place)
        where l.part = %d and l.seq > %d order by l.seq, u.place
    ) to stdout (format binary)""" % (part, after)


PIECE = b"""
select max(seq) from (
    select seq, row_number() over w as number,
        sum(pg_column_size(keys) + pg_column_size(vals)) over w as size
    from keyrun.log where part = $1::bigint and seq > $2::bigint and seq <= $3::bigint
    window w as (order by seq) limit $4::integer
) as piece where number = 1 or size <= $5::bigint
"""
"""Return the last commit of the next piece to fold. $1: part, $2: the position, $3: the last commit
to fold, $4: the most commits, $5: the most bytes of a piece with several commits."""

FOLD = (
    b"""
with moved as (
    update keyrun.folded set seq = $3::bigint
    where part = $1::bigint and seq = $2::bigint and """
    + _SYNC
    + b"""
    returning seq
), changed as (
    select distinct on (u.tbl, u.key) u.tbl, u.key, u.value
    from moved, keyrun.log l, lateral unnest(l.tables, l.keys, l.vals) as u (tbl, key, value)
    where l.part = $1::bigint and l.seq > $2::bigint and l.seq <= $3::bigint
    order by u.tbl, u.key, l.seq desc
), gone as (
    delete from keyrun.record r using changed c
    where c.value is null and r.part = $1::bigint and r.tbl = c.tbl and r.key = c.key
), kept as (
    insert into keyrun.record as r (part, tbl, key, value)
    select $1::bigint, tbl, key, value from changed where value is not null
    on conflict (part, tbl, key) do update set value = excluded.value
), dropped as (
    delete from keyrun.log l using moved
    where l.part = $1::bigint and l.seq > $2::bigint and l.seq <= $3::bigint
)
select seq from moved
"""
)
"""Fold the commits after one position, up to another. $1: part, $2: the position, $3: the new one.
Nothing happens if another process has moved the position."""

VACUUM = b"vacuum (truncate off) keyrun.log"
