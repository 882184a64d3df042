"""A store behind PgBouncer in transaction mode, which shares sessions between clients."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psycopg
import pytest
import trio

from keyrun.storage import StoreLocked
from keyrun.storage.conformance import batch
from keyrun.storage.conformance.model import rows
from keyrun.storage.postgres.tuning import StoreTuning
from tests.postgres import Server, open_store, server, unprivileged_user
from tests.storage.postgres.test_fold import folded, write

pytestmark = pytest.mark.skipif(
    shutil.which("pgbouncer") is None, reason="PgBouncer is not installed"
)


@contextmanager
def pooler(own: Server) -> Iterator[str]:
    """Run PgBouncer before a server for the time of a block. Return the URL of a database."""
    folder = Path(tempfile.mkdtemp(prefix="keyrun-pool-"))
    (folder / "pgbouncer.ini").write_text(
        f"""[databases]
* = host={own.folder} port=5432 user=keyrun
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = 3
logfile = {folder}/log
"""
    )
    user = unprivileged_user()
    if user is not None:
        for each in (folder, folder / "pgbouncer.ini"):
            os.chown(each, pwd.getpwnam(user).pw_uid, -1)
    process = subprocess.Popen(
        ["pgbouncer", "-q", str(folder / "pgbouncer.ini")],
        user=user,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"postgresql://keyrun@/postgres?host={folder}&port=6432"
    try:
        give_up_at = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(url).close()
                break
            except psycopg.OperationalError:
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(0.02)
        yield url
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


async def test_a_store_behind_a_pooler_relies_on_its_lease_alone() -> None:
    tuning = StoreTuning(fold_seconds=0.05, fold_piece=7)
    with server() as own, pooler(own) as url:
        # Sessions of others leave their settings behind.
        for _ in range(3):
            with psycopg.connect(url, autocommit=True) as other:
                other.execute("set synchronous_commit = off")
        async with open_store(url, ttl=1.0, tuning=tuning) as store:
            assert not store.is_direct
            model = await write(store, Random(4), {}, 40)
            await folded(store)
            assert store.is_trusted()
            lease = await store.read_lease()
            assert lease is not None
            assert not lease.locked
            another = open_store(own.url(), store.name, ttl=1.0)
            with pytest.raises(StoreLocked):
                await another.__aenter__()
            with trio.move_on_after(2.5) as waiting:
                await another.wait_until_free()
            assert waiting.cancelled_caught, "the lease ended although its owner lives"
        with trio.fail_after(20):
            await another.wait_until_free()
        async with another:
            assert await rows(another) == model
            await another.commit(batch(("red", b"k", b"v")))
