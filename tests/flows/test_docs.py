"""The flows of the page about flows are valid, and the page has every kind, field and name.

`tests/keyrun/test_pasted_pages.py` runs its programs and commands."""

import pytest

import keyrun.flows
from keyrun.flows import parse
from keyrun.flows.kinds import KINDS
from tests.keyrun.pages import Block, read_pages

(PAGE,) = [page for page in read_pages() if page.name == "docs/flows.md"]
FLOWS = PAGE.blocks("yaml")


def greeting(name: str) -> str:
    return name


@pytest.mark.parametrize("block", FLOWS, ids=lambda block: f"line-{block.line}")
def test_a_flow_of_the_page_is_valid(block: Block) -> None:
    assert parse(block.code, functions={"greeting": greeting}).nodes


@pytest.mark.parametrize("name", keyrun.flows.__all__)
def test_every_name_is_on_the_page(name: str) -> None:
    assert name in PAGE.code


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_heading_and_every_field_a_word(kind: str) -> None:
    assert kind in PAGE.anchors()
    for field in KINDS[kind].record(kind).fields:
        assert field in PAGE.code, field
