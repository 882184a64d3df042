"""What programs read: the same fields each time, whatever a payload holds."""

import ast
import inspect
import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from keyrun.cli import documents
from tests.keyrun.cli import invoke, lines
from tests.keyrun.pages import read_pages

RUN = {
    "run_id": "r1",
    "key": "alice",
    "workflow": "checkout",
    "version": 1,
    "state": "succeeded",
    "step": None,
    "attempt": 0,
    "steps_done": 1,
    "submitted_at": "2023-11-14T22:13:20.000000Z",
    "started_at": "2023-11-14T22:13:20.000000Z",
    "ended_at": "2023-11-14T22:13:20.000000Z",
    "deadline": None,
    "headers": {"trace": "t"},
    "tags": ["eu", "new"],
    "origin": "submit",
    "waiting_on": None,
    "result": {"receipt": "receipt for 1", "amount": 1},
    "reason": None,
    "failure": None,
    "generation": 1,
    "waiting_until": None,
    "quarantine_cause": None,
    "compensating": False,
    "compensation": None,
}
FAILURE = {
    "kind": "step_failed",
    "reason": "step 'flaky', attempt 1 of 3, after 0.000 s: ValueError: not yet",
    "step": "flaky",
    "attempt": 1,
    "error_type": "builtins.ValueError",
    "traceback": "...",
    "elapsed": 0.0,
    "cause": None,
    "numbers": None,
    "left": [],
}
NOTHING = dict.fromkeys(["step", "attempt", "began_at", "delay", "failure", "detail", "value"])
HISTORY = [
    {"at": "2023-11-14T22:16:40.000000Z", "event": "submitted", **NOTHING},
    {"at": "2023-11-14T22:16:40.000000Z", "event": "started", **NOTHING},
    {
        "at": "2023-11-14T22:16:40.000000Z",
        "event": "attempt_failed",
        "step": "flaky",
        "attempt": 1,
        "began_at": "2023-11-14T22:16:40.000000Z",
        "delay": 10.0,
        "failure": FAILURE,
        "detail": None,
        "value": None,
    },
    {
        "at": "2023-11-14T22:16:50.000000Z",
        "event": "step_completed",
        "step": "flaky",
        "attempt": 2,
        "began_at": "2023-11-14T22:16:50.000000Z",
        "delay": None,
        "failure": None,
        "detail": None,
        "value": None,
    },
    {"at": "2023-11-14T22:16:50.000000Z", "event": "succeeded", **NOTHING},
]
KEY = {
    "key": "carol",
    "runs": 2,
    "head": "r4",
    "state": "waiting",
    "paused": False,
    "quarantined": False,
    "reason": None,
    "waiting_on": "timer",
    "waiting_until": "2023-11-26T12:03:30.000000Z",
    "quarantine_cause": None,
}


def read(*words: object) -> list[Any]:
    return [json.loads(line) for line in lines(*words, "--json")]


def in_order(document: Any) -> str:
    """For comparisons in which the order of the fields counts."""
    return json.dumps(document)


def test_a_run_has_these_fields_in_this_order(filled: Path) -> None:
    assert in_order(read("status", filled, "r1")) == in_order([{**RUN, "input": {"amount": 1}}])
    assert in_order(read("runs", filled, "--limit", "1", "--oldest-first")) == in_order([RUN])
    (letter,) = read("dead-letters", filled)
    assert list(letter) == list(RUN)
    assert list(letter["failure"]) == list(FAILURE)


def test_a_history_has_these_fields_in_this_order(filled: Path) -> None:
    told = read("history", filled, "r3")
    for each in told:
        if each["failure"]:
            assert "ValueError: not yet" in each["failure"]["traceback"]
            each["failure"]["traceback"] = "..."
            each["failure"]["elapsed"] = round(each["failure"]["elapsed"], 3)
    assert in_order(told) == in_order(HISTORY)


def test_a_key_has_these_fields_in_this_order(filled: Path) -> None:
    assert in_order(read("keys", filled, "--key", "carol")) == in_order([KEY])


def test_a_verification_has_these_fields(filled: Path) -> None:
    (found,) = read("verify", filled)
    assert list(found) == ["path", "ok", "records", "tables", "structure_checked", "damage"]
    assert (found["ok"], found["damage"]) == (True, [])
    assert found["records"] == sum(found["tables"].values())
    assert found["tables"]["runs"] == 7


def test_a_compact_copy_is_told_with_its_sizes(filled: Path, tmp_path: Path) -> None:
    (sizes,) = read("compact", filled, "--to", tmp_path / "copy")
    assert list(sizes) == ["path", "bytes_before", "bytes_after"]
    assert sizes["bytes_after"] == (tmp_path / "copy" / "data.mdb").stat().st_size
    assert read("runs", tmp_path / "copy") == read("runs", filled)


def test_nothing_but_json_is_on_stdout(filled: Path) -> None:
    result = invoke("runs", filled, "--json", "--limit", 2)
    assert [json.loads(line)["run_id"] for line in result.stdout.splitlines()]
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"a": (1, 2.5, None, True)}, '{"a":[1,2.5,null,true]}'),
        (float("nan"), '"nan"'),
        (float("-inf"), '"-inf"'),
        (b"\x00\xff", '{"base64":"AP8="}'),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), '"2026-01-02T03:04:05+00:00"'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (Decimal("1.10"), '"1.10"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        ("\u00e9\ud83d", '"\\u00e9\\ud83d"'),
    ],
)
def test_a_payload_is_json_where_it_can_be(value: Any, written: str) -> None:
    assert documents.line(value) == written


FIELDS = {
    "history": ["happening"],
    "why": ["explanation"],
    "progress": ["progress"],
    "graph": ["graph"],
    "keys": ["key", "entity"],
    "schedules": ["schedule"],
    "stats": ["run_counts", "counts"],
    "approvals": ["approval"],
    "audit": ["audit"],
    "groups": ["group_summary"],
    "groups status": ["group"],
    "verify": ["verification", "damage"],
}
"""Commands, and the functions that make their documents."""


def fields_of(function: str) -> set[str]:
    """Return the names of all fields that a function of `documents` writes."""
    tree = ast.parse(inspect.getsource(getattr(documents, function)))
    return {
        key.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def test_the_page_about_the_command_line_has_all_fields() -> None:
    (page,) = (page.text for page in read_pages() if page.name == "docs/command-line.md")
    (runs,) = re.findall(r"^\| `runs`, `status`, `dead-letters` \| a run \| `(.*?)` \|", page, re.M)
    assert set(runs.split()) == fields_of("run")
    assert "`status` also has the `input` of the run" in page
    (failure,) = re.findall(r"^A `failure` has `(.*?)`", page, re.M)
    assert set(failure.split()) == fields_of("failure")
    (compensation,) = re.findall(r"A `compensation` has `(.*?)`", page)
    assert set(compensation.split()) == fields_of("compensation")
    for command, functions in FIELDS.items():
        (row,) = re.findall(rf"^\| `{command}` \| [^|]* \| (.*) \|$", page, re.M)
        told = {word for words in re.findall(r"`([^`]+)`", row) for word in words.split()}
        assert told - {"--key", "--quick"} == set().union(*map(fields_of, functions)), command


def test_an_explanation_has_these_fields_in_this_order(filled: Path) -> None:
    (found,) = read("why", filled, "--key", "carol")
    assert list(found) == [
        *("run_id", "key", "cause", "sentence", "step", "holder", "holder_key", "until"),
        "by",
    ]
    assert (found["run_id"], found["cause"]) == ("r4", "timer")
    assert found["until"] == KEY["waiting_until"]
