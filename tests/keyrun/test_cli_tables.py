"""Tables: as wide as the screen, printed while they are read."""

from collections.abc import Iterator

import pytest

from keyrun.cli.table import LOOK_AT, Column, Table, table

COLUMNS = [Column("run", 4, whole=True), Column("key", 4, 7), Column("note", 4, 5)]


@pytest.fixture(autouse=True)
def _no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def test_the_first_rows_are_out_before_the_last_are_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn = Table(COLUMNS)
    for number in range(LOOK_AT):
        drawn.add((f"r{number}", "k", None))
    assert len(capsys.readouterr().out.splitlines()) == 1 + LOOK_AT
    drawn.add(("late", "k", "a note"))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split() == ["late", "k", "a", "note"]
    drawn.end()
    assert capsys.readouterr().out == ""


def test_a_column_in_which_nothing_stands_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    table(COLUMNS, [("r1", "k", None), ("r2", "k", "")])
    assert capsys.readouterr().out.splitlines() == ["run  key", "r1   k", "r2   k"]


def test_what_comes_late_and_is_too_long_is_cut_or_wrapped_on_a_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows() -> Iterator[tuple[str, str, str]]:
        for _ in range(LOOK_AT):
            yield "r" * 10, "k" * 8, "n" * 10
        yield "0123456789abcdef", "a key that is long", "n"

    monkeypatch.setenv("COLUMNS", "40")
    table(COLUMNS, rows())
    *_, before, first, second = capsys.readouterr().out.splitlines()
    assert before.split() == ["r" * 10, "k" * 8, "n" * 10]
    assert first.split("  ") == ["0123456789", "a key t\N{HORIZONTAL ELLIPSIS}", "n"]
    assert second == "abcdef"
    monkeypatch.delenv("COLUMNS")
    table(COLUMNS, rows())
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split("  ") == ["0123456789abcdef", "a key that is long", "n"]


def test_wide_letters_keep_the_columns_in_line(capsys: pytest.CaptureFixture[str]) -> None:
    table(COLUMNS, [("r1", "\u6f22\u5b57", "x"), ("r2", "kkkk", "x"), ("r3", "k\nk", "x")])
    assert capsys.readouterr().out.splitlines() == [
        "run  key   note",
        "r1   \u6f22\u5b57  x",
        "r2   kkkk  x",
        r"r3   k\nk  x",
    ]
