"""What the page about flows shows is so."""

import shlex
from pathlib import Path

import pytest

import keyrun.flows
from keyrun.flows import parse
from keyrun.flows.kinds import KINDS
from tests.keyrun.cli import shell
from tests.keyrun.pages import Block, read_pages

(PAGE,) = [page for page in read_pages() if page.name == "docs/flows.md"]
FLOWS = PAGE.blocks("yaml")


@pytest.mark.parametrize("block", FLOWS, ids=lambda block: f"line-{block.line}")
def test_a_flow_of_the_page_is_fine(block: Block) -> None:
    assert parse(block.code).nodes


def test_the_commands_of_the_page_give_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "order.yaml").write_text(FLOWS[0].code)
    (commands,) = PAGE.blocks("sh")
    for line in commands.code.splitlines():
        _, *words = shlex.split(line)
        done = shell(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert f"`{done.stdout.strip()}`" in PAGE.prose


@pytest.mark.parametrize("name", keyrun.flows.__all__)
def test_every_name_is_on_the_page(name: str) -> None:
    assert name in PAGE.code


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_heading_and_every_field_a_word(kind: str) -> None:
    assert kind in PAGE.anchors()
    for field in KINDS[kind].record(kind).fields:
        assert field in PAGE.code, field
