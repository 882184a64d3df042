"""Journal entries: every kind is stored as before, and old entries with fewer fields are read."""

from typing import Any

import pytest

from keyrun.runtime.records.journal_entry import (
    AttemptFailed,
    CallDone,
    CallKind,
    Continued,
    Interrupted,
    JournalEntry,
    NextTurn,
    NodeEnded,
    Note,
    Redriven,
    StepGaveUp,
    StepOverrun,
    Timer,
    TimerSet,
    Undo,
    WaitBegan,
    decode,
    encode_step,
)
from keyrun.runtime.records.submission import StatusRecord
from keyrun.runtime.values import Failure, FailureKind, State
from keyrun.storage.record import seal, unseal

FAILURE = Failure(kind=FailureKind.STEP_FAILED, reason="r", step="s", attempt=2)
FAILED = ("step_failed", "r", "s", 2, None, None, None, None)
FORMER = StatusRecord(started_at=1.0, ended_at=2.0, state=State.FAILED, reason="r", failure=FAILURE)

STORED: list[tuple[JournalEntry, tuple[Any, ...]]] = [
    (CallDone("s", 9.0, CallKind.STEP, 5, 1, 8.0, b"p"), (1, "s", 9.0, 1, 5, 1, 8.0, b"p")),
    (CallDone("g()", 9.0, CallKind.GATHER, None, 1, None, 2), (1, "g()", 9.0, 3, None, 1, None, 2)),
    (
        AttemptFailed("s", 9.0, 5, 2, 8.0, FAILURE, Timer(10.0, 1.0)),
        (2, "s", 9.0, 5, 2, 8.0, FAILED, (10.0, 1.0)),
    ),
    (StepGaveUp("s", 9.0, 5, 2, None, FAILURE), (3, "s", 9.0, 5, 2, None, FAILED)),
    (Interrupted("s", 9.0, 1, True, 8.0), (4, "s", 9.0, 1, True, 8.0)),
    (Redriven(9.0, 2, FORMER), (5, "", 9.0, 2, 1.0, 2.0, "failed", "r", FAILED)),
    (TimerSet("sleep()", 9.0, Timer(12.0, 3.0)), (6, "sleep()", 9.0, 12.0, 3.0)),
    (
        TimerSet("fail_after()", 9.0, Timer(12.0, 3.0), CallKind.SCOPE),
        (6, "fail_after()", 9.0, 12.0, 3.0, 5),
    ),
    (Note("", 9.0, "paused"), (7, "", 9.0, "paused")),
    (
        Note("s", 9.0, "step_cancelled", ("attempt 1",)),
        (7, "s", 9.0, "step_cancelled", "attempt 1"),
    ),
    (
        NodeEnded("n", 9.0, "fail", "p", [0, 2], FAILURE),
        (7, "n", 9.0, "node_ended", "fail", "p", [0, 2], FAILED),
    ),
    (
        NodeEnded("n", 9.0, "complete", None, [1], None),
        (7, "n", 9.0, "node_ended", "complete", None, [1], None),
    ),
    (StepOverrun("s", 9.0, 2, 0.5), (7, "s", 9.0, "step_overrun", 2, 0.5)),
    (
        NextTurn(9.0, 3, b"p", Timer(12.0, 3.0), 1, 4, "c", b"v"),
        (8, "turn", 9.0, 3, b"p", (12.0, 3.0), 1, 4, "c", b"v"),
    ),
    (
        WaitBegan("wait_signal()", 9.0, CallKind.SIGNAL, "c", Timer(12.0, 3.0)),
        (9, "wait_signal()", 9.0, 6, "c", (12.0, 3.0)),
    ),
    (
        WaitBegan("child()", 9.0, CallKind.CHILD, "keyrun.child:r", None, 77),
        (9, "child()", 9.0, 8, "keyrun.child:r", None, 77),
    ),
    (Continued(9.0, 2, b"i", 7), (10, "", 9.0, 2, b"i", 7)),
    (
        Undo(9.0, State.FAILED, "r", FAILURE, True, ["a", "b"]),
        (16, "", 9.0, "failed", "r", FAILED, True, ["a", "b"]),
    ),
]


@pytest.mark.parametrize(("entry", "fields"), STORED)
def test_the_stored_bytes_of_an_entry_are_those_of_earlier_versions(
    entry: JournalEntry, fields: tuple[Any, ...]
) -> None:
    stored = seal("journal", b"k", entry.encode())
    assert stored == seal("journal", b"k", fields)
    read = decode(unseal("journal", b"k", stored))
    assert type(read) is type(entry)
    assert read == entry


def test_every_kind_of_entry_is_in_the_list_above() -> None:
    assert {type(entry) for entry, _ in STORED} == set(JournalEntry.__args__)


def test_the_fields_of_a_step_are_those_of_its_entry() -> None:
    entry = CallDone("s", 9.0, CallKind.STEP, 5, 1, 8.0, b"p")
    assert encode_step("s", 9.0, 5, 1, 8.0, b"p") == entry.encode()


@pytest.mark.parametrize(
    ("fields", "entry"),
    [
        ([4, "s", 9.0, 1, False], Interrupted("s", 9.0, 1, False)),
        ([5, "", 9.0, 2], Redriven(9.0, 2)),
        ([8, "turn", 9.0, 3, b"p", None], NextTurn(9.0, 3, b"p")),
        (
            [9, "child()", 9.0, 8, "keyrun.child:r", None],
            WaitBegan("child()", 9.0, CallKind.CHILD, "keyrun.child:r", None),
        ),
        (
            [7, "n", 9.0, "node_ended", "complete", "p", [1]],
            NodeEnded("n", 9.0, "complete", "p", [1], None, has_failure=False),
        ),
    ],
)
def test_entries_of_older_versions_have_defaults_for_the_fields_that_they_lack(
    fields: list[Any], entry: JournalEntry
) -> None:
    assert decode(fields) == entry


def test_an_entry_of_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="99 is not a known kind"):
        decode([99, "s", 9.0])
