"""A page that is pasted from top to bottom prints what the page says."""

import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.keyrun.pages import Page, read_pages
from tests.keyrun.pasting import (
    BLOCK_LIMIT,
    CONTINUES,
    PAGE_LIMIT,
    paste,
    pasted_pages,
    slowness,
)


@pytest.mark.parametrize("page", pasted_pages(read_pages()), ids=lambda page: page.name)
def test_a_page_that_is_pasted_prints_what_the_page_says(page: Page, tmp_path: Path) -> None:
    patience = slowness()
    paste(page, tmp_path, BLOCK_LIMIT * patience, PAGE_LIMIT * patience)


def page_of(*blocks: str) -> Page:
    return Page("page.md", "\n\n".join(blocks) + "\n")


def python(code: str, above: str = "") -> str:
    return f"{above}\n\n```python\n{code}\n```"


def shown(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


QUICKSTART = "From [shop.py](../examples/quickstart/shop.py):"
COMPLETE = python("x = 1\nprint(x)  # 1")


@pytest.mark.parametrize(
    "page",
    [
        page_of(COMPLETE),
        page_of(COMPLETE, python(f"{CONTINUES}\nprint(x + 1)  # 2")),
        page_of(python("print('a', 'b')\n# a\n# b")),
        page_of(python("for n in (1, 2):\n    print(n)"), shown("text", "1\n2")),
        page_of(python("print(1)", "Save it as `a.py`:"), shown("console", "$ python a.py\n1")),
        page_of(
            python("import os\nos.kill(os.getpid(), 9)", "Save this as `a.py` and run it:"),
            shown("console", "$ python a.py\nKilled\n$ echo x >&2\nx"),
        ),
        page_of(python("print('took 17 ms')  # took ... ms")),
        page_of(
            "Save this as `a.yaml`:",
            shown("yaml", "x: 1"),
            shown("console", "$ cat \\\n    a.yaml\nx: 1\n$ echo y\ny"),
        ),
        page_of(python("import trio", QUICKSTART), python("import shop\nprint(1)  # 1")),
    ],
    ids=["beside", "continued", "below", "text", "console", "killed", "any", "file", "part"],
)
def test_a_page_that_is_true_passes(page: Page, tmp_path: Path) -> None:
    paste(page, tmp_path)


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        (page_of(python("print(1 + 1)  # 3")), "the output is\n2"),
        (page_of(python("print(1)")), "does not say what it prints"),
        (page_of(python("int('x')")), "ValueError"),
        (page_of(python("if False:\n    print(1)  # 1")), "the page says\n1"),
        (page_of(COMPLETE, python("print(x)  # 1")), "NameError"),
        (page_of(python(f"{CONTINUES}\nprint(1)  # 1")), "continues no program"),
        (page_of(python("print(1)"), shown("text", "2")), "the output is\n1"),
        (
            page_of(python("print(1)", "Save it as `a.py`."), shown("console", "$ python a.py\n2")),
            "the output is\n1",
        ),
        (
            page_of(python("x = 1", "Save it as `a.py`."), shown("console", "$ python b.py")),
            "No such file",
        ),
        (page_of(python("import time; time.sleep(60)")), "did not end within"),
        (page_of(COMPLETE, shown("console", "$ sleep 60; true")), "did not end within"),
        (page_of(python("import nothing", QUICKSTART)), "is not in shop.py"),
        (page_of("no code"), "has no program"),
    ],
)
def test_a_page_that_is_not_true_is_found(page: Page, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=complaint):
        paste(page, tmp_path, block_limit=2)


@pytest.mark.parametrize("end", ["$ true\n", "$ false\n"])
def test_what_a_page_leaves_in_the_background_is_ended(end: str, tmp_path: Path) -> None:
    page = page_of(shown("console", f"$ sleep 60 > log 2>&1 & echo $! > pid\n{end}"))
    with suppress(AssertionError):
        paste(page, tmp_path)
    pid = int((tmp_path / "pid").read_text())
    began = time.monotonic()
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() - began < 9, "the process still runs"


def test_a_page_that_takes_too_long_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="takes"):
        paste(page_of(COMPLETE), tmp_path, page_limit=0)
