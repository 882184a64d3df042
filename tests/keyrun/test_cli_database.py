"""The commands on a namespace of a real PostgreSQL: with an owner, and without one."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.keyrun.cli import invoke
from tests.keyrun.serving import serving
from tests.postgres import server

SOURCE = """
import keyrun
from keyrun import Context, step, workflow


@step
async def count() -> int:
    return keyrun.current_step().epoch


@workflow
async def wait(ctx: Context) -> int:
    await ctx.wait_signal("go")
    return await ctx.step(count)


app = keyrun.App(workflows=[wait])
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    # Commands accept no server that could lose commits.
    with server(fsync="on") as found:
        yield found.url().replace("postgresql://keyrun@", "postgresql://keyrun:s3cret@")


def test_commands_reach_the_owner_or_become_the_owner_for_a_moment(
    tmp_path: Path, url: str
) -> None:
    words = ("--store", url, "--token-file", "tokens", "--http", "127.0.0.1:0")
    with serving(tmp_path, *words, source=SOURCE) as first:
        first.announced()
        first.until("/readyz", (200, "ok"))
        result = invoke("submit", url, "wait", "--key", "k", "--run-id", "r")
        assert result.exit_code == 0, result.output
        assert json.loads(invoke("runs", url, "--json").stdout.splitlines()[0])["run_id"] == "r"
        with serving(tmp_path, *words) as second:
            second.announced()
            second.until("/readyz", (503, "client"))
            assert second.get("/v1/runs")[0] == 421
            first.process.kill()
            second.until("/readyz", (200, "ok"))
            assert invoke("signal", url, "r", "go").exit_code == 0
            answer = invoke("result", url, "r")
            assert answer.stdout.strip() == "2"
            assert invoke("submit", url, "wait", "--key", "k", "--run-id", "s").exit_code == 0
            second.send(signal.SIGTERM)
            assert second.ended() == 0
            assert "s3cret" not in "".join(second.errors)
    # No process owns the namespace any more.
    listed = invoke("runs", url, "--json").stdout.splitlines()
    assert {json.loads(line)["run_id"] for line in listed} == {"r", "s"}
    assert invoke("cancel", url, "s").exit_code == 0
    status = invoke("status", url, "s")
    assert "cancelled" in status.stdout
    missing = invoke("status", url, "none")
    assert missing.exit_code
    assert "s3cret" not in missing.output
    assert "keyrun runs" in missing.output


def test_serve_takes_no_when_locked_for_a_url(url: str) -> None:
    found = invoke("serve", "shop:app", "--store", url, "--when-locked", "wait")
    assert found.exit_code == 2
    assert "--when-locked is for a directory" in found.output
