"""What the README and the docs show runs as it stands there, and their links lead somewhere."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

import keyrun.testing
from keyrun.cli.group import COMMANDS
from tests.keyrun.examples import run_page
from tests.keyrun.pages import ROOT, Block, Page, read_pages
from tests.keyrun.pasting import NOT_YET

PAGES = {page.name: page for page in read_pages()}
README = PAGES["README.md"]
DOCS = [page for page in PAGES.values() if page.name.startswith("docs/")]


def named(page: Page) -> str:
    return page.name


@pytest.mark.parametrize("page", [PAGES[name] for name in NOT_YET], ids=named)
def test_the_code_of_a_page_does_what_the_page_says(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a page share a namespace and a directory."""
    monkeypatch.chdir(tmp_path)
    run_page(page.blocks("python"))


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("print(1 + 1)  # 3", "prints '2'"),
        ("int('x')  # raises TypeError: invalid", "raises ValueError"),
        ("int('1')  # raises ValueError: invalid", "raises nothing"),
        ("def f():\n    print(1)  # 1", "never happened"),
    ],
)
def test_a_comment_that_is_not_true_is_found(code: str, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        run_page([Block("page", 1, code)])


@pytest.mark.parametrize("page", PAGES.values(), ids=named)
def test_links_lead_to_files_and_headings_that_exist(page: Page) -> None:
    for link in page.links():
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (ROOT / page.name).parent / path if path else ROOT / page.name
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            name = str(target.resolve().relative_to(ROOT.resolve()))
            assert anchor in PAGES[name].anchors(), f"{page.name} links to {link}"


def test_every_page_of_the_docs_is_in_their_index() -> None:
    index = set(PAGES["docs/README.md"].links())
    index |= set(PAGES["docs/reference.md"].links())
    assert {page.name.removeprefix("docs/") for page in DOCS} - {"README.md"} <= index


@pytest.mark.parametrize("page", PAGES.values(), ids=named)
def test_commands_that_are_shown_exist(page: Page) -> None:
    for block in page.blocks("sh"):
        for command in re.findall(r"^(?:\$ )?keyrun ([a-z][a-z-]*)", block.code, re.MULTILINE):
            assert command in COMMANDS, f"{page.name}: keyrun {command}"


@pytest.mark.parametrize("name", keyrun.testing.__all__)
def test_every_name_for_tests_is_in_the_docs(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGES["docs/testing.md"].code)
