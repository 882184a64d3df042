"""The table, the chart and the page are made from a record, and say all that is in it."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import attrs
import pytest

from benchmarks.peers.__main__ import write
from benchmarks.peers.chart import chart
from benchmarks.peers.page import page
from benchmarks.peers.record import Record
from benchmarks.peers.summary import SHOWN, summary
from benchmarks.peers.table import table
from tests.peers.recorded import recorded

SVG = "{http://www.w3.org/2000/svg}"
DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_has_figures_ratios_reasons_and_bars() -> None:
    text = table(recorded())
    assert re.search(r"W1-256 .* Keyrun +300 +steps/s +1\.00", text)
    assert re.search(r"Restate +30 +steps/s +0\.10", text)
    assert re.search(r"Dramatiq, Redis +- +steps/s +missing: Redis is not installed", text)
    assert re.search(r"W4 .* >= 5 +4 +Restate +MISSED", text)
    assert re.search(r"W2 .* <= 0\.5 +0\.1 +\S.* +ok", text)


def test_the_page_shows_the_latest_with_machine_versions_and_date() -> None:
    text = page(recorded())
    assert "Measured on 2026-01-02 on 2 cores, Linux 6, Python 3.11.0, in 9 minutes" in text
    assert "A write of 4 kB with its fsync took 0.25 to 0.5 ms." in text
    assert "| Restate | restate-sdk 1.0 | its server's log on RocksDB" in text
    assert "| **300** | 30 (0.10) |" in text
    assert "- Dramatiq, Redis is missing: Redis is not installed." in text
    assert "- W3, DBOS, SQLite: 49 keys out of order." in text
    assert "## What is not comparable" in text
    assert "| >= 5 | 4x | Restate | **missed** |" in text
    assert "quick" not in text.partition("## Figures")[0].partition("Measured on")[2]


def test_rows_of_the_page_have_as_many_columns_as_their_heads() -> None:
    rows = page(recorded()).splitlines()
    for above, row in pairwise(rows):
        if above.startswith("|") and row.startswith("|"):
            assert row.count("|") == above.count("|"), row


def test_a_machine_that_was_busy_is_called_busy() -> None:
    assert "Other work ran on the machine" not in page(recorded())
    busy = page(attrs.evolve(recorded(), load=5.25))
    assert "Other work ran on the machine (load 5.2 before the start)" in busy


def test_short_turns_are_told_where_they_were_given() -> None:
    assert "short time slices" not in page(recorded())
    assert "short time slices" in page(attrs.evolve(recorded(), short_turns=True))


def test_a_quick_run_is_called_what_it_is() -> None:
    assert "its figures mean nothing" in page(attrs.evolve(recorded(), quick=True))


def test_the_chart_has_a_bar_for_every_figure_and_leaves_nothing_out_of_sight() -> None:
    root = ElementTree.fromstring(chart(recorded()))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert "durable steps, 256 runs at a time" in words
    assert words.count("Keyrun") == words.count("Restate") == 7
    assert "2000" not in words
    for bar in root.iter(f"{SVG}rect"):
        assert float(bar.attrib["width"]) > 0
        assert float(bar.attrib.get("x", 0)) + float(bar.attrib["width"]) <= width
    for element in root.iter(f"{SVG}text"):
        assert 0 <= float(element.attrib["x"]) < width - 40
        assert 0 <= float(element.attrib["y"]) < height


def test_a_chart_of_nothing_is_still_a_picture() -> None:
    ElementTree.fromstring(chart(Record()))
    ElementTree.fromstring(summary(Record()))


def test_the_summary_shows_keyrun_beside_the_best_peer() -> None:
    root = ElementTree.fromstring(summary(recorded()))
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert words.count("Keyrun") == len(SHOWN)
    after_kill = words.index("Runs finished per second after kill -9")
    assert words[after_kill + 2 : after_kill + 6] == ["Keyrun", "2,000", "Restate", "500"]
    for element in root.iter(f"{SVG}text"):
        room = 0 if element.attrib["text-anchor"] == "end" else 7.5 * len(element.text or "")
        assert float(element.attrib["x"]) + room <= float(root.attrib["width"])


def test_the_summary_in_the_documentation_has_five_figures_of_the_page_beside_it() -> None:
    root = ElementTree.fromstring((DOCS / "summary.svg").read_text())
    words = [element.text or "" for element in root.iter(f"{SVG}text")]
    own = [words[at + 1] for at, word in enumerate(words) if word == "Keyrun"]
    assert len(own) == 5
    assert all(f"**{figure}**" in (DOCS / "benchmarks.md").read_text() for figure in own)


def test_what_was_written_can_be_read_again(tmp_path: Path) -> None:
    write(recorded(), tmp_path)
    again = Record.read(tmp_path / "benchmarks.json")
    assert again == recorded()
    assert (tmp_path / "benchmarks.md").read_text() == page(again)
    assert (tmp_path / "benchmarks.svg").read_text() == chart(again)


def test_the_page_in_the_documentation_says_what_the_record_beside_it_does() -> None:
    """Who changes what is said of a peer writes it again: `--record docs/benchmarks.json`."""
    record = Record.read(DOCS / "benchmarks.json")
    assert (DOCS / "benchmarks.md").read_text() == page(record)
    assert (DOCS / "benchmarks.svg").read_text() == chart(record)
    assert (DOCS / "summary.svg").read_text() == summary(record)


def test_a_file_that_is_no_record_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")
    with pytest.raises(ValueError, match="no record of these benchmarks"):
        Record.read(file)
