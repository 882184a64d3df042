"""What the README and the docs show runs as it stands there, and their links lead somewhere."""

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import keyrun
import keyrun.testing
from keyrun import Context, Limits, Reader, Retention, Retry, RunHandle, Runtime, Turn, open_runtime
from keyrun.cli.group import COMMANDS
from keyrun.types import CurrentStep
from tests.keyrun.examples import run_page
from tests.keyrun.pages import ROOT, Block, Page, read_pages
from tests.keyrun.pasting import PASTED

PAGES = {page.name: page for page in read_pages()}
README = PAGES["README.md"]
DOCS = [page for page in PAGES.values() if page.name.startswith("docs/")]
EXAMPLES = README.blocks("python")
CODE = "\n".join(page.code for page in [README, *DOCS])

NOT_FOR_USERS = {
    Runtime: {"wait_for_end", "decode_result"},
    Context: {"branch"},
    CurrentStep: {
        "begin_wait",
        "elapsed",
        "is_of",
        "mark",
        "seal_state",
        "start",
        "store_memo",
        "unmark",
    }
    | {"begun", "in_thread", "marked", "over", "progress", "sealed_state", "shielded"}
    | {"suspect", "timeout", "until"},
}
"""What other parts of the runtime call, and what has no underscore for that reason."""


def named(page: Page) -> str:
    return page.name


def test_the_readme_has_an_example() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda block: f"line-{block.line}")
def test_an_example_of_the_readme_runs(example: Block, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example.code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    expected = re.findall(r"print\(.*#\s*(.*)", example.code)
    assert done.stdout.splitlines() == expected


def test_the_commands_of_the_readme_run_with_its_example(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(EXAMPLES[0].code)
    (shell,) = README.blocks("sh")
    printed = []
    for line in shell.code.splitlines():
        name, *arguments = shlex.split(line, comments=True)
        assert name == "keyrun"
        done = subprocess.run(
            [sys.executable, "-m", name, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == '"receipt for 7"\n'
    assert "step completed  charge" in printed[2]


@pytest.mark.parametrize("page", [page for page in DOCS if page.name not in PASTED], ids=named)
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
    assert {Path(page.name).name for page in DOCS} - {"README.md"} <= index


@pytest.mark.parametrize("page", PAGES.values(), ids=named)
def test_commands_that_are_shown_exist(page: Page) -> None:
    for block in page.blocks("sh"):
        for command in re.findall(r"^(?:\$ )?keyrun ([a-z][a-z-]*)", block.code, re.MULTILINE):
            assert command in COMMANDS, f"{page.name}: keyrun {command}"


HOMES = ("errors", "events", "graphs", "groups", "policies", "schedules", "status", "types")


@pytest.mark.parametrize(
    "name", sorted({*keyrun._DEFINED_IN, *(n for h in HOMES for n in getattr(keyrun, h).__all__)})
)
def test_every_public_name_is_in_the_docs(name: str) -> None:
    assert re.search(rf"\b{name}\b", CODE)


@pytest.mark.parametrize("home", [home for home in HOMES if home != "errors"])
def test_the_reference_lists_the_names_of_every_module(home: str) -> None:
    module = getattr(keyrun, home)
    [listed] = re.findall(rf"^\| `keyrun\.{home}` \|(.*)\|$", PAGES["docs/reference.md"].text, re.M)
    assert set(re.findall(r"`(\w+)`", listed)) == set(module.__all__)


@pytest.mark.parametrize("name", keyrun.testing.__all__)
def test_every_name_for_tests_is_in_the_docs(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGES["docs/testing.md"].code)


MEMBERS = [
    (owner, spelled, name)
    for owner, spelled in [
        (Runtime, r"(?:rt|runtime)\."),
        (Reader, r"(?:rt|runtime|reader)\."),
        (RunHandle, r"run\."),
        (Context, r"ctx\."),
        (CurrentStep, r"current_step\(\)\."),
        (Turn, r"turn\."),
    ]
    for name in dir(owner)
    if not name.startswith("_") and name not in NOT_FOR_USERS.get(owner, ())
]


@pytest.mark.parametrize(
    ("spelled", "name"), [pytest.param(s, n, id=f"{o.__name__}-{n}") for o, s, n in MEMBERS]
)
def test_every_public_member_is_in_the_docs(spelled: str, name: str) -> None:
    assert re.search(rf"\b{spelled}{name}\b", CODE)


def test_every_parameter_of_open_runtime_is_in_the_docs_with_its_default() -> None:
    parameters = inspect.signature(open_runtime).parameters
    told = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PAGES["docs/reference.md"].text, re.M))
    for name, parameter in parameters.items():
        if parameter.default is not inspect.Parameter.empty and name not in ("wall", "tuning"):
            namespace = {"Limits": Limits, "Retention": Retention, "inf": float("inf")}
            assert eval(told[name], namespace) == parameter.default, name
        assert re.search(rf"\b{name}\b", CODE)


@pytest.mark.parametrize("kind", [Limits, Retention, Retry])
def test_every_field_of_a_policy_is_in_the_docs(kind: type) -> None:
    for field in inspect.signature(kind).parameters:
        assert re.search(rf"\b{field}\b", PAGES["docs/reference.md"].code), field
