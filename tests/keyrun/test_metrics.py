"""Prometheus gets the metrics of every kind of runtime."""

import re
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

import keyrun
import keyrun.asyncio
import keyrun.metrics
import keyrun.sync
from keyrun import Context, workflow
from keyrun.control.guard import TokenGuard
from keyrun.control.roles import Role
from keyrun.control.tokens import TokenFile
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime
from tests.control.test_guard import SECRETS, bearer, write
from tests.control.world import served

ROOT = Path(__file__).parents[2]
OF_FLOW = {"namespace": "default", "workflow": "flow"}


@workflow
async def flow(ctx: Context) -> None: ...


async def test_all_metrics_are_described_and_the_page_lists_exactly_them(
    autojump_clock: MockClock,
) -> None:
    page = (ROOT / "docs/monitoring.md").read_text()
    listed = {
        (name, kind)
        for names, kind in re.findall(r"^\| (`keyrun_.*?) \| (\w+) \|", page, re.M)
        for name in re.findall(r"`(keyrun_\w+)`", names)
    }
    async with open_test_runtime(MemoryStore(), workflows=[flow]) as rt:
        text = keyrun.metrics.exposition(rt).decode()
        families = list(text_string_to_metric_families(text))
    # A memory store has no file.
    of_files = {"keyrun_store_size_bytes", "keyrun_store_disk_free_bytes"}
    assert {(each.name, each.type) for each in families} == {
        each for each in listed if each[0] not in of_files
    }
    assert all(each.documentation for each in families)


async def test_a_registry_collects_from_another_thread(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    found: list[float | None] = []

    def scrape() -> None:
        for name in ("keyrun_runs_submitted_total", "keyrun_run_duration_seconds_count"):
            found.append(registry.get_sample_value(name, OF_FLOW))

    async with keyrun.open_runtime(tmp_path / "state", workflows=[flow]) as rt:
        collector = keyrun.metrics.register(rt, registry)
        await (await rt.submit(flow, key="a")).result()
        import trio

        await trio.to_thread.run_sync(scrape)
        assert registry.get_sample_value("keyrun_store_size_bytes", {"namespace": "default"})
        registry.unregister(collector)
    assert found == [1, 1]


def test_an_asyncio_and_a_sync_runtime_have_metrics() -> None:
    import asyncio

    async def main() -> float | None:
        registry = CollectorRegistry()
        async with keyrun.asyncio.open_runtime(MemoryStore(), workflows=[flow]) as rt:
            keyrun.metrics.register(rt, registry)
            await (await rt.submit(flow, key="a")).result()
            return registry.get_sample_value("keyrun_runs_submitted_total", OF_FLOW)

    assert asyncio.run(main()) == 1
    with keyrun.sync.open_runtime(MemoryStore(), workflows=[flow]) as rt:
        rt.submit(flow, key="a").result()
        texts: list[bytes] = []
        thread = threading.Thread(target=lambda: texts.append(keyrun.metrics.exposition(rt)))
        thread.start()
        thread.join()
    assert b'keyrun_runs_submitted_total{namespace="default",workflow="flow"} 1.0' in texts[0]


def test_what_is_no_runtime_is_refused() -> None:
    with pytest.raises(TypeError, match="requires a runtime"):
        keyrun.metrics.collector("state")  # type: ignore[arg-type]


@pytest.mark.parametrize("role", list(Role))
async def test_the_role_metrics_reads_metrics_and_nothing_else(
    autojump_clock: MockClock,
    tmp_path: Path,
    role: Role,
) -> None:
    path = tmp_path / "tokens"
    write(path, "\n".join(f"{secret} {role} of-{role}" for role, secret in SECRETS.items()))
    guard = TokenGuard(TokenFile(path), ["localhost:8000"])
    async with served(guard=guard) as client:
        headers = [bearer(role), ("host", "localhost:8000")]
        answer = await client.call("GET", "/metrics", headers=headers, state={})
        may = role in (Role.METRICS, Role.ADMIN)
        assert answer.status == (200 if may else 403)
        if may:
            assert "keyrun_runs_submitted" in answer.body.decode()
            assert answer.headers["content-type"].startswith("text/plain")
        other = await client.call("GET", "/v1/runs", headers=headers, state={})
        assert other.status == (403 if role is Role.METRICS else 200)
