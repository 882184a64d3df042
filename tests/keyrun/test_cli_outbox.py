"""`keyrun outbox`: count the outcomes that wait for the hook, and drop them."""

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, workflow
from keyrun.storage import LmdbStore
from keyrun.testing import RecordingHook, open_test_runtime
from tests.keyrun.cli import invoke, lines, shell
from tests.storage.processes import line, running_python
from tests.storage.test_ownership import OWNER


@workflow
async def echo(ctx: Context, value: int) -> int:
    return value


def end_runs(path: Path, *names: str, hook: RecordingHook | None = None) -> None:
    async def main() -> None:
        async with open_test_runtime(
            LmdbStore(path), workflows=[echo], on_terminal=hook, namespace="shop"
        ) as rt:
            for name in names:
                await (await rt.submit(echo, 1, key="k", run_id=name)).result()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def outbox(path: Path, *words: str) -> str:
    (said,) = lines("outbox", path, "--namespace", "shop", *words)
    return said


def test_the_waiting_outcomes_are_counted_and_dropped(tmp_path: Path) -> None:
    end_runs(tmp_path, "a")
    said = "0 outcomes waiting for on_terminal. The store keeps no new outcomes."
    assert outbox(tmp_path) == said
    end_runs(tmp_path, "b", "c", hook=RecordingHook(failures=1000))
    end_runs(tmp_path, "d")
    assert outbox(tmp_path) == "3 outcomes waiting for on_terminal. The store keeps new outcomes."
    assert json.loads(outbox(tmp_path, "--json")) == {"waiting": 3, "collecting": True}
    assert lines("outbox", tmp_path)[0].startswith("0 outcomes")
    discarded = outbox(tmp_path, "--discard")
    assert discarded == "Dropped 3 outcomes. The store keeps no new outcomes."
    assert outbox(tmp_path) == said
    end_runs(tmp_path, "e")
    assert json.loads(outbox(tmp_path, "--discard", "--json")) == {"discarded": 0}
    hook = RecordingHook()
    end_runs(tmp_path, "f", hook=hook)
    assert [outcome.run_id for outcome in hook.outcomes] == ["f"]


@pytest.mark.parametrize("words", [[], ["--discard"]])
def test_nothing_is_made_where_there_is_no_store(tmp_path: Path, words: list[str]) -> None:
    result = invoke("outbox", tmp_path / "missing", *words)
    assert result.exit_code == 4
    assert "no store at" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_outcomes_of_a_store_in_use_are_counted_and_not_dropped(tmp_path: Path) -> None:
    with running_python(OWNER, tmp_path, "inline") as owner:
        line(owner)
        assert lines("outbox", tmp_path)[0].startswith("0 outcomes waiting")
        refused = shell("outbox", tmp_path, "--discard")
    assert refused.returncode == 4
    assert "Traceback" not in refused.stderr
