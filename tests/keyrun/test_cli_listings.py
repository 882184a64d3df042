"""Listings: what fits is shown, in order, page by page, as wide as the screen and no wider."""

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from keyrun import Entity, entity
from keyrun.storage import LmdbStore
from keyrun.testing import EPOCH, open_test_runtime
from tests.keyrun.cli import LONG_KEY, invoke, lines

R6 = "r6" * 20


def ids(store: Path, *words: object) -> list[str]:
    return [json.loads(line)["run_id"] for line in lines("runs", store, "--json", *words)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["r7", R6, "r5", "r4", "r3", "r2", "r1"]),
        (["--oldest-first"], ["r1", "r2", "r3", "r4", "r5", R6, "r7"]),
        (["--state", "failed"], ["r2"]),
        (["--state", "failed", "--state", "waiting"], [R6, "r4", "r2"]),
        (["--state", "pending"], ["r5"]),
        (["--state", "paused"], []),
        (["--key", "alice"], ["r3", "r1"]),
        (["--key", "ali"], []),
        (["--workflow", "refund"], ["r7", "r3"]),
        (["--workflow", "refund", "--version", "1"], ["r7", "r3"]),
        (["--version", "2"], []),
        (["--error", "PermanentError"], ["r2"]),
        (["--error", "keyrun.runtime.errors.PermanentError"], ["r2"]),
        (["--error", "Permanent"], []),
        (["--step", "charge"], ["r2"]),
        (["--step", "charg"], []),
        (["--tag", "eu"], ["r3", "r1"]),
        (["--tag", "new", "--key", "alice"], ["r1"]),
        (["--state", "succeeded", "--workflow", "checkout"], ["r1"]),
        (["--since", "2023-11-14T22:14:30Z"], ["r7", R6, "r5", "r4", "r3", "r2"]),
        (["--until", "2023-11-14T22:14:30Z"], ["r1"]),
        (["--since", "1s"], []),
        (["--limit", "2"], ["r7", R6]),
        (["--limit", "2", "--after", R6], ["r5", "r4"]),
        (["--limit", "2", "--after", "r2", "--oldest-first"], ["r3", "r4"]),
        (["--limit", "1", "--workflow", "refund", "--after", "r7"], ["r3"]),
        (["--limit", "0"], ["r7", R6, "r5", "r4", "r3", "r2", "r1"]),
        (["--after", "r1"], []),
        (["--namespace", "other"], []),
    ],
)
def test_runs_are_listed_by_filter_and_page(
    filled: Path, words: list[str], expected: list[str]
) -> None:
    assert ids(filled, *words) == expected


def test_the_table_says_how_to_go_on(filled: Path) -> None:
    result = invoke("runs", filled, "--limit", 2)
    assert result.stderr == f"Showing 2 runs. Next page: --after {R6}\n"
    result = invoke("runs", filled, "--limit", 1)
    assert result.stderr == "Showing 1 run. Next page: --after r7\n"
    result = invoke("keys", filled, "--after", "carol", "--limit", 1)
    assert result.stderr == f"Showing 1 key. Next page: --after '{LONG_KEY}'\n"
    assert "--after" not in invoke("runs", filled, "--limit", 20).stderr


def test_dead_letters_have_the_same_filters(filled: Path) -> None:
    (letter,) = lines("dead-letters", filled, "--json")
    assert json.loads(letter)["failure"]["kind"] == "permanent_error"
    assert len(lines("dead-letters", filled, "--key", "bob", "--json")) == 1
    assert lines("dead-letters", filled, "--key", "alice", "--json") == []
    result = invoke("dead-letters", filled)
    assert "PermanentError: card\\ndeclined" in result.stdout


def test_keys_are_listed_with_the_run_whose_turn_it_is(filled: Path) -> None:
    keys = [json.loads(line) for line in lines("keys", filled, "--json")]
    assert [(key["key"], key["runs"], key["head"]) for key in keys] == [
        ("carol", 2, "r4"),
        (LONG_KEY, 1, R6),
    ]
    assert len(lines("keys", filled, "--json", "--limit", 1)) == 1
    assert len(lines("keys", filled, "--json", "--after", "carol")) == 1
    assert len(lines("keys", filled, "--json", "--key", "carol")) == 1
    assert lines("keys", filled, "--json", "--key", "alice") == []
    assert lines("keys", filled, "--json", "--state", "quarantined") == []
    assert len(lines("keys", filled, "--json", "--state", "waiting", "--limit", 1)) == 1


def test_a_key_is_shown_with_the_entities_that_keep_a_state_under_it(tmp_path: Path) -> None:
    @entity
    class Account(Entity):
        async def deposit(self, amount: int) -> None:
            self.state["balance"] = amount

    async def fill() -> None:
        async with open_test_runtime(LmdbStore(tmp_path / "store"), entities=[Account]) as rt:
            await rt.entity(Account, "alice").deposit(10)

    trio.run(fill, clock=MockClock(autojump_threshold=0))
    (line,) = lines("keys", tmp_path / "store", "--key", "alice", "--json")
    assert json.loads(line) == {"key": "alice", "entity": "Account", "bytes": 10}
    shown = invoke("keys", tmp_path / "store", "--key", "alice")
    assert shown.stdout.split() == ["entity", "bytes", "of", "state", "Account", "10"]
    assert lines("keys", tmp_path / "store", "--key", "bob", "--json") == []


def test_when_nothing_fits_that_is_said_beside_the_output(filled: Path) -> None:
    for words in (["runs"], ["keys"], ["dead-letters"]):
        result = invoke(*words, filled, "--namespace", "other")
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr.startswith("No ")
        assert result.stderr.endswith(" found.\n")


TABLES = (["runs"], ["keys"], ["dead-letters"], ["status", "r2"], ["history", "r3"])
OTHERS = (["progress", "r2"], ["progress", "r2", "--follow"], ["stats"], ["verify"], ["outbox"])


@pytest.mark.parametrize("words", [*TABLES, *OTHERS])
@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_the_output_fits_the_terminal(filled: Path, words: list[str], columns: int) -> None:
    name, *rest = words
    result = invoke(name, filled, *rest, columns=columns)
    shown = result.stdout.partition("\n\nTraceback")[0].splitlines() + result.stderr.splitlines()
    assert shown
    assert max(map(len, shown)) <= columns


def column(shown: list[str], title: str) -> str:
    """Return the values of a column of a table, one after the other."""
    start = shown[0].index(title)
    rest = shown[0][start + len(title) :]
    end = start + len(title) + len(rest) - len(rest.lstrip()) - 2 if rest.strip() else None
    return "".join(line[start:end].ljust((end or 0) - start) for line in shown[1:])


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_no_id_and_no_key_is_cut(filled: Path, columns: int) -> None:
    for name, ids in (("runs", "run"), ("keys", "first run")):
        shown = lines(name, filled, columns=columns)
        assert R6 in column(shown, ids)
        assert LONG_KEY in column(shown, "key")
        assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(shown)


@pytest.mark.parametrize("columns", [None, "60"])
def test_a_line_that_goes_into_a_pipe_is_not_broken(filled: Path, columns: str | None) -> None:
    """COLUMNS is the width of a terminal, even if CI services set it for pipes."""
    env = {"COLUMNS": columns}
    assert any(LONG_KEY in line and R6 in line for line in lines("runs", filled, env=env))
    assert any(line.endswith(LONG_KEY) for line in lines("status", filled, R6, env=env))
    assert len(invoke("status", filled, "x" * 100, env=env).stderr.splitlines()) == 1


def test_letters_that_would_move_the_cursor_are_made_visible(filled: Path) -> None:
    text = invoke("runs", filled).output
    assert "\\x1b[31mred\\n" in text
    assert "\x1b" not in text


def test_there_are_no_colours_where_there_is_no_terminal(filled: Path) -> None:
    for words in TABLES:
        name, *rest = words
        assert "\x1b" not in invoke(name, filled, *rest, env={"FORCE_COLOR": "1"}).output


def test_the_history_of_a_run_tells_each_attempt_and_its_delay(filled: Path) -> None:
    title, *story = lines("history", filled, "r3")
    assert title.split() == ["time", "event", "step", "attempt", "took", "detail"]
    assert [" ".join(line.split()[2:]) for line in story] == [
        "submitted",
        "started",
        "attempt failed flaky 1 0 ms ValueError: not yet; next attempt in 10.0 s",
        "step completed flaky 2 0 ms",
        "succeeded",
    ]


def test_the_status_of_a_run_shows_its_failure(filled: Path) -> None:
    shown = "\n".join(lines("status", filled, "r2"))
    assert "permanent_error: step 'charge', attempt 1 of 3" in shown
    assert "Traceback" in shown
    shown = "\n".join(lines("status", filled, "r1"))
    assert '{"receipt":"receipt for 1","amount":1}' in shown
    assert "eu, new" in shown
    assert "trace=t" in shown


def test_times_are_local(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC-5")
    time.tzset()
    try:
        shown = "\n".join(lines("status", filled, "r1"))
        assert EPOCH == 1_700_000_000.0
        assert "2023-11-15 03:13:20" in shown
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("command", ["status", "history"])
def test_a_run_that_is_not_there_is_not_found(filled: Path, command: str) -> None:
    result = invoke(command, filled, "nobody")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: no run has the id 'nobody', or the run was forgotten; list the run ids with: "
        f"keyrun runs {filled}\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--since", "yesterday"], "'yesterday' is not a time; give an age such as 90s"),
        (["--state", "crashed"], "is not one of"),
        (["--limit", "-1"], "is not in the range"),
        (["--namespace", "a b"], "namespace must be 1 to 64 of"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    filled: Path, words: list[str], message: str
) -> None:
    result = invoke("runs", filled, *words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_page_after_a_run_that_is_not_there_is_refused(filled: Path) -> None:
    result = invoke("runs", filled, "--after", "nobody")
    assert result.exit_code == 1
    assert "no run has the id 'nobody'" in result.stderr
