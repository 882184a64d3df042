"""The links of the README and the docs lead somewhere, and the names in them exist."""

import re
from urllib.parse import unquote

import pytest

import keyrun.testing
from keyrun.cli.group import COMMANDS
from tests.keyrun.pages import ROOT, Page, read_pages

PAGES = {page.name: page for page in read_pages()}
DOCS = [page for page in PAGES.values() if page.name.startswith("docs/")]


def named(page: Page) -> str:
    return page.name


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
