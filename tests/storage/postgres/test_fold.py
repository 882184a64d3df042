"""The fold: the log becomes records, while commits continue, and also after it was cut off."""

from math import inf
from pathlib import Path
from random import Random

import attrs
import pytest
import trio

from keyrun.storage.batch import Tables
from keyrun.storage.conformance.model import Rows, batch, laid_on, rows
from keyrun.storage.postgres import PostgresStore
from keyrun.storage.postgres.fold import Fold
from keyrun.storage.postgres.tuning import StoreTuning
from tests.faults.soaking import SOAK, amount
from tests.postgres import installations, new_namespace, open_store, run_sql, server, shared_url
from tests.storage.postgres.proxy import proxy

SOON = StoreTuning(fold_seconds=0.05, fold_piece=7)
NEVER = StoreTuning(fold_seconds=inf, fold_bytes=1 << 60)


def stored(store: PostgresStore, url: str | None = None) -> tuple[int, int]:
    """Return the number of commits in the log, and the number of records."""
    part = f"(select id from keyrun.part where namespace = '{store.name}')"
    ((log, records),) = run_sql(
        url or shared_url(),
        f"""select (select count(*) from keyrun.log where part = {part}),
            (select count(*) from keyrun.record where part = {part})""",
    )
    return int(str(log)), int(str(records))


def operations(random: Random, size: int) -> Tables:
    """Return random puts and deletes of few keys, so that they meet."""
    made = batch()
    for _ in range(size):
        table, key = random.choice(["red", "green"]), b"%d" % random.randrange(50)
        if random.random() < 0.3:
            made.delete(table, key)
        else:
            made.put(table, key, random.randbytes(random.choice([0, 3, 3000])))
    return made.tables


async def write(store: PostgresStore, random: Random, model: Rows, commits: int) -> Rows:
    """Commit random changes, and return what the store must have."""
    for _ in range(commits):
        made = batch()
        made.tables.update({t: dict(each) for t, each in operations(random, 8).items()})
        model = laid_on(model, made.tables)
        await store.commit(made)
    return model


async def folded(store: PostgresStore) -> None:
    """Wait until the whole log is folded."""
    with trio.fail_after(30):
        while store.commits_to_fold:
            await trio.sleep(0.01)


async def test_a_folded_log_has_the_same_records_as_its_commits() -> None:
    seed = 3
    random = Random(seed)
    namespace = new_namespace()
    model: Rows = {}
    for tuning in (SOON, NEVER, SOON):
        async with open_store(namespace=namespace, tuning=tuning) as store:
            assert await rows(store) == model, f"seed {seed}"
            model = await write(store, random, model, amount(60, 2000))
            if tuning is SOON:
                await folded(store)
                assert stored(store) == (0, len(model))
            model = await write(store, random, model, 5)
            assert await rows(store) == model
    async with open_store(namespace=namespace, tuning=NEVER) as store:
        assert await rows(store) == model, f"seed {seed}"


async def test_commits_continue_while_the_log_is_folded() -> None:
    random = Random(5)
    tuning = StoreTuning(fold_seconds=0.02, fold_piece=3)
    async with open_store(tuning=tuning) as store:
        model: Rows = {}
        positions = set()
        for _ in range(amount(20, 200)):
            model = await write(store, random, model, 10)
            positions.add(store.commits_to_fold)
        assert len(positions) > 1
        await folded(store)
    async with open_store(namespace=store.name) as store:
        assert await rows(store) == model


async def test_a_fold_that_is_cut_off_continues() -> None:
    """Its connections end at random. A piece is folded completely, or not at all."""
    random = Random(9)
    async with proxy(shared_url()) as network:
        tuning = StoreTuning(fold_seconds=0.02, fold_piece=3)
        async with open_store(network.url(shared_url()), tuning=tuning) as store:
            application = f"keyrun:{store.name}:{store.node}"[:63]
            model: Rows = {}
            for _ in range(amount(8, 100)):
                model = await write(store, random, model, 10)
                run_sql(
                    shared_url(),
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    f"where application_name = '{application}' "
                    "and query not like '%keyrun.log select%'",
                )
            await folded(store)
            assert await rows(store) == model
            assert stored(store) == (0, len(model))


async def test_two_processes_that_fold_at_once_do_not_disturb_each_other() -> None:
    """A former owner may still fold when its successor does."""
    random = Random(11)
    async with open_store(tuning=NEVER) as store:
        model = await write(store, random, {}, 40)
        held = attrs.evolve(store._opened_lease(), seq=40)
        folds = [Fold(held, store._address, 0, SOON) for _ in range(3)]
        for fold in folds:
            fold.start()
        with trio.fail_after(30):
            while any(fold.folded < 40 for fold in folds):
                await trio.sleep(0.01)
        for fold in folds:
            fold.stop()
        assert stored(store) == (0, len(model))
    async with open_store(namespace=store.name) as store:
        assert await rows(store) == model


async def test_the_log_is_vacuumed_after_a_fold() -> None:
    async with open_store(tuning=SOON) as store:
        await write(store, Random(1), {}, 20)
        await folded(store)
        with trio.fail_after(30):
            while run_sql(
                shared_url(),
                "select 1 from pg_stat_user_tables where schemaname = 'keyrun' "
                "and relname = 'log' and last_vacuum is null",
            ):
                await trio.sleep(0.02)


@pytest.mark.parametrize("kind", ["debian", "wheel"])
async def test_every_build_of_postgresql_keeps_and_folds_records(kind: str) -> None:
    """The build of the wheel has no lz4."""
    if kind not in installations():
        pytest.skip(f"PostgreSQL from {kind} is not installed")
    with server(kind) as own:
        model: Rows = {}
        namespace = new_namespace()
        for tuning in (SOON, NEVER):
            async with open_store(own.url(), namespace, tuning=tuning) as store:
                model = await write(store, Random(2), model, 30)
                if tuning is SOON:
                    await folded(store)
                    assert stored(store, own.url()) == (0, len(model))
        own.kill()
        own.start()
        async with open_store(own.url(), namespace) as store:
            assert await rows(store) == model


def anonymous() -> int:
    """Return the anonymous memory of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


async def test_a_large_store_opens_with_little_memory() -> None:
    count = amount(20_000, 1_000_000)
    namespace = new_namespace()
    async with open_store(namespace=namespace):
        pass
    run_sql(
        shared_url(),
        f"""insert into keyrun.record
            select p.id, t.name, convert_to(lpad(n::text, 9, '0'), 'UTF8'),
                decode(repeat('ab', 100), 'hex')
            from keyrun.part p, generate_series(1, {count // 2}) n,
                (values ('red'), ('green')) as t (name)
            where p.namespace = '{namespace}'""",
    )
    before = anonymous()
    began = trio.current_time()
    async with open_store(namespace=namespace) as store:
        took, grown = trio.current_time() - began, anonymous() - before
        if SOAK:
            print(f"{count} records: {took:.2f} s, {grown / 1e6:.1f} MB of anonymous memory")
        assert grown < 30 << 20
        assert len(await store.scan("red", start=b"000000010", limit=3)) == 3
        assert len(await store.scan("green")) == count // 2
        assert await store.get("red", b"%09d" % (count // 2)) == b"\xab" * 100
