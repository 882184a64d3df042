"""`keyrun schedules`: what is started by the clock, as a table and as JSON."""

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from keyrun.schedules import Cron, Every, Once
from keyrun.storage import LmdbStore
from keyrun.testing import EPOCH, open_test_runtime
from tests.keyrun.cli import checkout, invoke, lines, refund

CRON = {
    "schedule_id": "nightly",
    "workflow": "checkout",
    "key": "night",
    "kind": "cron",
    "at": None,
    "every": None,
    "start": None,
    "cron": "30 3 * * *",
    "timezone": "Europe/Berlin",
    "misfire": "skip",
    "overlap": True,
    "paused": False,
    "next_at": "2023-11-15T02:30:00.000000Z",
    "last_at": None,
    "last_run_id": None,
    "last_state": None,
    "fired": 0,
    "skipped": 0,
    "missed": 0,
    "problem": None,
}


async def _fill(path: Path) -> None:
    store = LmdbStore(path)
    async with open_test_runtime(store, workflows=[checkout, refund]) as rt:
        slow = {"amount": 1, "sleep": 1000}
        await rt.schedule("busy", checkout, slow, key="b", when=Every(100))
        await rt.schedule("gone", refund, key="g", when=Every(1000))
        await rt.schedule("held", checkout, {"amount": 1}, key="h", when=Every(60), paused=True)
        night = Cron("30 3 * * *", "Europe/Berlin")
        await rt.schedule(
            "nightly", checkout, slow, key="night", when=night, misfire="skip", overlap=True
        )
        await rt.schedule("past", checkout, {"amount": 1}, key="p", when=Once(EPOCH + 10))
        await trio.sleep(350)
    async with open_test_runtime(store, workflows=[checkout]):
        await trio.sleep(1000)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with five schedules."""
    path = tmp_path_factory.mktemp("planned") / "store"
    trio.run(_fill, path, clock=MockClock(autojump_threshold=0))
    return path


def read(*words: object) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines("schedules", *words, "--json")]


def test_a_schedule_has_these_fields_in_this_order(planned: Path) -> None:
    (nightly,) = read(planned, "--after", "held", "--limit", 1)
    assert json.dumps(nightly) == json.dumps(CRON)
    busy, gone, held, _, past = read(planned)
    assert (busy["kind"], busy["every"], busy["fired"]) == ("every", 100, 2)
    assert (busy["skipped"], busy["last_state"]) == (11, "waiting")
    assert "'refund' is not a workflow of this runtime" in str(gone["problem"])
    assert (held["paused"], held["next_at"]) == (True, None)
    assert (past["at"], past["last_at"]) == ("2023-11-14T22:13:30.000000Z",) * 2
    assert (past["next_at"], past["last_state"]) == (None, "succeeded")


def test_the_table_says_what_keeps_a_schedule_from_firing(planned: Path) -> None:
    title, *rows = lines("schedules", planned)
    assert title.split() == [
        *["schedule", "workflow", "when", "next", "last", "state", "last", "run", "note"]
    ]
    busy, gone, held, nightly, past = rows
    assert "every 1m 40s" in busy
    assert "11 skipped" in busy
    assert "is not a workflow of this runtime" in gone
    assert held.rstrip().endswith("paused")
    assert "30 3 * * * Europe/Berlin" in nightly
    assert "past-20231114T221330Z" in past
    assert past.rstrip().endswith("finished")


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_table_fits_the_terminal(planned: Path, columns: int) -> None:
    shown = lines("schedules", planned, columns=columns)
    assert max(map(len, shown)) <= columns
    assert "note" in shown[0]


def test_the_table_is_paged(planned: Path) -> None:
    result = invoke("schedules", planned, "--limit", 2)
    assert "Showing 2 schedules. Next page: --after gone" in result.stderr
    assert [each["schedule_id"] for each in read(planned, "--after", "nightly")] == ["past"]


def test_where_there_is_none_that_is_said_beside_the_output(filled: Path) -> None:
    result = invoke("schedules", filled)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No schedules found.\n"
