"""Tables: as wide as the screen, printed while they are read, and without cut ids."""

import os
import pty
import sys
import termios
from collections.abc import Iterator

import pytest

from keyrun.cli.screen import Screen, fold, print_fields, wrap
from keyrun.cli.table import ELLIPSIS, SAMPLE, Column, Table, print_table

COLUMNS = [Column("run", 10, id=True), Column("key", 4, 7, id=True), Column("note", 8, 5, lines=2)]


def terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Make stdout a terminal without colours that is `columns` wide."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)


def test_the_first_rows_are_printed_before_the_last_are_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn = Table(COLUMNS)
    for number in range(SAMPLE):
        drawn.add((f"r{number}", "k", None))
    assert len(capsys.readouterr().out.splitlines()) == 1 + SAMPLE
    drawn.add(("late", "k", "a note"))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split() == ["late", "k", "a", "note"]
    drawn.end()
    assert capsys.readouterr().out == ""


def test_a_column_without_values_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [("r1", "k", None), ("r2", "k", "")])
    assert capsys.readouterr().out.splitlines() == ["run  key", "r1   k", "r2   k"]


def test_ids_and_keys_continue_on_the_next_line_and_long_texts_are_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows() -> Iterator[tuple[str, str, str]]:
        for _ in range(SAMPLE):
            yield "r" * 10, "k" * 8, "n" * 8
        yield "0123456789abcdef", "a key with blanks", "first then more then the rest"

    terminal(monkeypatch, 30)
    print_table(COLUMNS, rows())
    *_, before, one, two, three = capsys.readouterr().out.splitlines()
    assert before.split() == ["r" * 10, "k" * 8, "n" * 8]
    shown = [(line[:10].rstrip(), line[12:20], line[22:]) for line in (one, two, three)]
    assert "".join(run for run, _, _ in shown) == "0123456789abcdef"
    assert "".join(key for _, key, _ in shown).rstrip() == "a key with blanks"
    assert [note for _, _, note in shown] == ["first", f"then{ELLIPSIS}", ""]
    monkeypatch.undo()
    print_table(COLUMNS, rows())
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "0123456789abcdef  a key with blanks  first then more then the rest"


def test_columns_of_low_priority_are_left_out_of_a_narrow_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(monkeypatch, 20)
    print_table(COLUMNS, [("r" * 10, "k" * 8, "n" * 8)])
    assert capsys.readouterr().out.splitlines()[0].split() == ["run", "key"]


def test_a_terminal_is_as_wide_as_it_says_unless_columns_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 72))
    with os.fdopen(theirs, "w") as stream:
        monkeypatch.delenv("COLUMNS", raising=False)
        assert Screen.of(stream).width == 72
        monkeypatch.setenv("COLUMNS", "100")
        assert Screen.of(stream).width == 100
        monkeypatch.setenv("COLUMNS", "0")
        assert Screen.of(stream).width == 72
        termios.tcsetwinsize(theirs, (0, 0))
        assert Screen.of(stream).width == 80
    os.close(ours)


def test_wide_letters_keep_the_columns_aligned(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_table(COLUMNS, [("r1", "\u6f22\u5b57", "x"), ("r2", "kkkk", "x"), ("r3", "k\nk", "x")])
    assert capsys.readouterr().out.splitlines() == [
        "run  key   note",
        "r1   \u6f22\u5b57  x",
        "r2   kkkk  x",
        r"r3   k\nk  x",
    ]
    assert fold("\u6f22\u5b57\u6f22", 5) == ["\u6f22\u5b57", "\u6f22"]


def test_a_text_is_wrapped_between_words_and_no_word_is_broken() -> None:
    assert wrap("one two  three", 8) == ["one two", "three"]
    assert wrap("a " + "b" * 12 + " c", 8) == ["a", "b" * 12, "c"]
    assert wrap("", 8) == []


def test_the_lines_after_the_first_are_indented(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(monkeypatch, 20)
    Screen.of(sys.stdout).print("  one two three four five six seven", hang="  ")
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["  one two three four", "    five six seven"]


def test_a_long_value_of_a_field_keeps_to_its_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(monkeypatch, 24)
    print_fields([("run", "r" * 30), ("empty", None), ("reason", "one two three four")])
    assert capsys.readouterr().out.splitlines() == [
        "run     " + "r" * 16,
        "        " + "r" * 14,
        "reason  one two three",
        "        four",
    ]
