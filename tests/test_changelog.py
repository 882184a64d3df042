"""The changelog has versions, and each has changes under Added, Changed and Fixed."""

import re
from pathlib import Path

import keyrun

TEXT = (Path(__file__).parent.parent / "CHANGELOG.md").read_text()
GROUPS = ["Added", "Changed", "Fixed"]


def test_the_changelog_has_every_version_and_what_comes_next() -> None:
    versions = re.findall(r"^## (\S+)", TEXT, re.MULTILINE)
    assert versions[0] == "Unreleased"
    assert keyrun.__version__ in versions


def test_changes_are_sentences_under_added_changed_or_fixed() -> None:
    for version in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        name, _, body = version.partition("\n")
        first, *groups = re.split(r"^### ", body, flags=re.MULTILINE)
        assert first.strip() == "", f"{name}: changes belong under Added, Changed or Fixed"
        titles = [group.partition("\n")[0] for group in groups]
        assert titles == [title for title in GROUPS if title in titles], name
        for group in groups:
            for line in group.partition("\n")[2].strip().splitlines():
                assert re.fullmatch(r"- [A-Z`@].*\.", line), line
                assert not re.match(r"- (Added|Changed|Fixed):", line), f"the title says it: {line}"
