"""The page on security names a test for each threat, and these tests exist."""

import re

from tests.keyrun.pages import ROOT

PAGE = (ROOT / "docs/security.md").read_text()


def test_each_threat_has_tests_that_exist() -> None:
    rows = PAGE.partition("| threat | answer | test |")[2].strip().splitlines()[1:]
    assert len(rows) > 10
    source = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        for name in named:
            assert re.search(rf"def {name}\(", source), name
