"""The page about the architecture names files, functions and layers that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import keyrun.runtime
from keyrun.runtime.run.run import Location
from keyrun.runtime.runs import MOVES
from tests.test_layers import ROWS

ROOT = Path(__file__).parent.parent
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")
TEXT = (ROOT / PAGES[0]).read_text()
FOLDERS = ("actors", "storage", "runtime", "keyrun", "tests", "benchmarks", "docs", "website")

NAMES = r"`[\w.]+`(?:(?:, | and )`[\w.]+`)*"
IN_A_ROW = re.compile(rf"^\| `([\w/]+\.py)` \| ({NAMES}) \|", re.MULTILINE)
IN_A_SENTENCE = re.compile(rf"({NAMES})\s\(`([\w/]+\.py)`\)")


def references() -> list[tuple[str, str]]:
    """Return the files of the page with the names that it says they define."""
    found = [(path, names) for path, names in IN_A_ROW.findall(TEXT)]
    found += [(path, names) for names, path in IN_A_SENTENCE.findall(TEXT)]
    return [(path, name) for path, names in found for name in re.findall(r"`([\w.]+)`", names)]


@cache
def defined_in(path: str) -> frozenset[str]:
    """Return the functions, classes, methods and assigned names of a file."""
    found: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.add(prefix + name)
                case ast.ClassDef(name=name):
                    found.add(prefix + name)
                    visit(node.body, f"{prefix}{name}.")
                case ast.Assign(targets=[ast.Name(id=name)]):
                    found.add(prefix + name)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(prefix + name)

    visit(ast.parse((ROOT / path).read_text()).body, "")
    return frozenset(found)


def rows_of_table(text: str) -> list[list[str]]:
    """Return the names in the first column of the table with the layers."""
    table = text[text.index("| package or module") :].partition("\n\n")[0]
    firsts = [line.split("|")[1] for line in table.splitlines()[2:] if line.startswith("|")]
    return [
        [name.removesuffix(".py").rstrip("/") for name in re.findall(r"`([\w./]+)`", first)]
        for first in firsts
    ]


def test_the_page_has_the_layers_in_the_order_of_the_layer_test() -> None:
    assert rows_of_table(TEXT) == [names.split() for names in ROWS.values()]


def test_the_docstring_of_the_runtime_has_the_same_layers() -> None:
    listed = rows_of_table(keyrun.runtime.__doc__ or "")
    assert len(listed) == len(ROWS)
    for names, row in zip(listed, ROWS.values(), strict=True):
        assert names
        assert set(names) <= set(row.split())


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_is_named_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    paths = re.findall(rf"\b(?:{'|'.join(FOLDERS)})/[\w/.-]*\w", text)
    assert paths
    assert sorted({path for path in paths if not (ROOT / path).exists()}) == []


def test_every_function_that_is_named_is_in_its_file() -> None:
    found = references()
    assert len(found) > 100
    assert sorted({ref for ref in found if ref[1] not in defined_in(ref[0])}) == []


def test_the_page_has_every_location_of_a_run() -> None:
    table = TEXT[TEXT.index("| `Location`") :].partition("\n\n")[0]
    listed = re.findall(r"^\| `(\w+)` \| [A-Z]", table, re.MULTILINE)
    assert listed == [location.value for location in Location]


def test_the_page_has_every_move_of_a_run() -> None:
    table = TEXT[TEXT.index("| `Location`") :].partition("\n\n")[0]
    rows = re.findall(r"^\| `([a-z]+)` \| .* \| ([^|]*) \|$", table, re.MULTILINE)
    assert {here: set(re.findall(r"`(\w+)`", there)) for here, there in rows} == {
        here.value: {there.value for there in MOVES.get(here, ())} for here in Location
    }
