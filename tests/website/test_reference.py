"""The reference has every public name, and is what the docstrings say now."""

import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, is_typeddict

import pytest

import keyrun
from website import reference
from website.contents import HIDDEN, MODULES, PAGES, SHOWN
from website.reference import Incomplete, Reference, anchor, generate, stale

DOCS = Path(__file__).parent.parent.parent / "docs"
NAMES = [(module, name) for module in MODULES for name in importlib.import_module(module).__all__]


@cache
def pages() -> dict[str, str]:
    return generate()


def entry_of(name: str) -> str:
    """Return the text of the entry that the index links a name to."""
    [(page, target)] = set(
        re.findall(rf"\[`{name}`\]\((reference/[\w-]+\.md)#([\w-]+)\)", pages()["reference.md"])
    )
    for found in re.split(r"^(?=### )", pages()[page], flags=re.MULTILINE):
        heading = found.splitlines()[0]
        if heading.startswith("### ") and anchor(heading.lstrip("# ")) == target:
            return re.split(r"^## ", found, flags=re.MULTILINE)[0]
    raise AssertionError(f"{page} has no heading #{target}")


def test_the_pages_in_the_repository_are_what_the_docstrings_say_now() -> None:
    assert stale(DOCS, pages()) == [], "run: python -m website.reference"


def test_a_page_that_is_missing_changed_or_left_over_is_found(tmp_path: Path) -> None:
    texts = {"reference.md": "a", "reference/errors.md": "b", "reference/events.md": "c"}
    (tmp_path / "reference").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert stale(tmp_path, texts) == []
    (tmp_path / "reference/errors.md").unlink()
    (tmp_path / "reference/events.md").write_text("something else")
    (tmp_path / "reference/old.md").write_text("")
    found = ["reference/errors.md", "reference/events.md", "reference/old.md"]
    assert stale(tmp_path, texts) == found


def test_the_reference_has_every_public_module() -> None:
    parts = {f"keyrun.{part}" for part in keyrun._PARTS if part != "runtime"}
    assert set(MODULES) == parts | {"keyrun", "keyrun.flows", "keyrun.storage.postgres"}
    assert re.findall(r"^### (.+)$", pages()["reference.md"], re.MULTILINE) == list(MODULES)


def test_every_public_name_is_in_the_index_and_has_an_entry_with_a_description() -> None:
    for module, name in NAMES:
        listed = pages()["reference.md"].split(f"### {module}\n")[1].split("\n### ")[0]
        assert f"[`{name}`](" in listed, name
        text = re.sub(r"```.*?```|^###.*?$", "", entry_of(name), flags=re.DOTALL | re.MULTILINE)
        assert re.match(r"\s*[A-Z][a-z]+ [^.]+[.:]", text), name


CLASSES = {
    name: value
    # A name of several modules belongs to the first one.
    for module, name in reversed(NAMES)
    if isinstance(value := getattr(importlib.import_module(module), name), type)
    and not is_typeddict(value)
}


def own_members(value: type) -> set[str]:
    """Return the public members of a class that Keyrun defines, as Python sees them."""
    found: set[str] = set(getattr(value, "_fields", ()))
    for owner in value.__mro__:
        if owner.__module__.startswith("keyrun"):
            found |= {member for member in vars(owner) if not member.startswith("_")}
    return found


def members_of(name: str) -> set[str]:
    """Return the members in the entry of a class, and in the entries of its public bases."""
    entry = entry_of(name)
    found = set(re.findall(rf"^- `(?:{name}\.)?(\w+)`", entry, re.MULTILINE))
    found |= set(re.findall(rf"^#### {name}\.(\w+)$", entry, re.MULTILINE))
    for base in CLASSES[name].__mro__[1:]:
        if CLASSES.get(base.__name__) is base and base.__name__ != "Workflow":
            found |= members_of(base.__name__)
    return found


def test_every_public_member_of_a_class_is_in_its_entry() -> None:
    for name, value in CLASSES.items():
        if name in SHOWN:
            assert set(SHOWN[name].split()) <= members_of(name), name
            continue
        classes = [base.__name__ for base in value.__mro__]
        hidden = {member for each in classes for member in HIDDEN.get(each, "").split()}
        assert own_members(value) - hidden - members_of(name) == set(), name


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (None, "open_runtime"),
        (None, "step"),
        (None, "workflow"),
        (keyrun.Runtime, "submit"),
        (keyrun.Runtime, "schedule"),
        (keyrun.Reader, "runs"),
    ],
)
def test_every_parameter_of_a_large_function_is_described(owner: Any, name: str) -> None:
    function = getattr(keyrun, name) if owner is None else getattr(owner, name)
    entry = entry_of(name if owner is None else owner.__name__)
    if owner is not None:
        entry = entry.split(f"#### {owner.__name__}.{name}\n")[1].split("\n#### ")[0]
    listed = "\n".join(re.findall(r"^- .*?:", entry, re.MULTILINE))
    described = set(re.findall(r"`(\w+)`", listed))
    if "The other arguments are those of" in entry:
        described |= inspect.signature(keyrun.Runtime.submit).parameters.keys() | {"schedule_id"}
    given = inspect.signature(function).parameters.keys() - {"self", "function", "policies"}
    assert given - described == set()


def test_a_public_name_without_a_place_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "PAGES", PAGES[1:])
    with pytest.raises(Incomplete, match=r"website/contents\.py"):
        Reference()


def test_a_hidden_member_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HIDDEN, "Limits", "over gone")
    with pytest.raises(Incomplete, match="Limits has no gone"):
        Reference()


def test_an_object_without_a_docstring_is_an_error() -> None:
    silent = SimpleNamespace(docstring=None, filepath="limits.py", lineno=3)
    with pytest.raises(Incomplete, match="Limits has no docstring"):
        Reference().description(silent, "Limits")
