"""The public names: every name has one home, and nothing that users meet is missing."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import keyrun
from keyrun import errors
from keyrun.groups import GroupHandle
from keyrun.runtime.errors import RuntimeFault

ROOT = Path(__file__).parent.parent
HOMES = ("errors", "events", "graphs", "groups", "policies", "schedules", "status", "types")
MODULES = [
    "keyrun",
    *(f"keyrun.{home}" for home in HOMES),
    *("keyrun.actors", "keyrun.flows", "keyrun.storage", "keyrun.testing"),
]
MOST = 67
"""Names at top level. A name that few programs use belongs into one of the other modules."""


def names_of(module: str) -> list[str]:
    return list(importlib.import_module(module).__all__)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_that_a_module_lists_can_be_imported_from_it(module: str) -> None:
    names = names_of(module)
    assert len(names) == len(set(names))
    namespace: dict[str, object] = {}
    exec(f"from {module} import {', '.join(names)}", namespace)
    assert {*names} <= {*dir(importlib.import_module(module))}


def test_a_name_has_one_home_unless_it_is_an_error() -> None:
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        for name in names_of(module):
            homes.setdefault(name, []).append(module)
    twice = {name: found for name, found in homes.items() if len(found) > 1}
    assert {name for name in twice if name not in errors.__all__} == set()


def test_the_top_level_stays_small() -> None:
    assert len(names_of("keyrun")) <= MOST


def test_every_error_at_top_level_and_of_the_store_is_in_the_errors() -> None:
    for module in ("keyrun", "keyrun.storage"):
        for name in names_of(module):
            value = getattr(importlib.import_module(module), name)
            if isinstance(value, type) and issubclass(value, Exception):
                assert getattr(errors, name) is value


def test_every_public_error_of_the_runtime_is_in_the_errors() -> None:
    listed = {getattr(errors, name) for name in errors.__all__}
    missing, left = set(), [RuntimeFault]
    while left:
        for error in left.pop().__subclasses__():
            left.append(error)
            if error not in listed and error.__module__.startswith("keyrun.runtime"):
                missing.add(error)
    assert missing == set()


def test_type_checkers_see_the_names_that_are_imported_late() -> None:
    seen = {}
    tree = ast.parse((ROOT / "keyrun/__init__.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module != "typing":
            for alias in node.names:
                assert alias.asname == alias.name, "re-exports are written `name as name`"
                seen[alias.name] = node.module
    parts = {name for name, module in seen.items() if module == "keyrun"}
    assert parts == set(keyrun._PARTS)
    assert {
        name: module for name, module in seen.items() if name not in parts
    } == keyrun._DEFINED_IN
    for name, module in keyrun._DEFINED_IN.items():
        defined: Any = getattr(keyrun, name)
        assert getattr(defined, "__module__", module) == module


def drawn() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield name, parent and further bases of every error in the drawing of the hierarchy."""
    assert errors.__doc__ is not None
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        root = re.fullmatch(r" {4}(\w+)(: .*)?", line)
        branch = re.fullmatch(r" {4}((?:│   )*)[├└]── (\w+)(?: \((.+)\))?", line)
        if root:
            above = [root[1]]
        elif branch:
            depth = len(branch[1]) // 4 + 1
            yield branch[2], above[depth - 1], tuple((branch[3] or "").split(", "))
            above[depth:] = [branch[2]]
        else:
            assert not re.search("[├└]", line), line


def test_the_drawing_of_the_errors_is_true() -> None:
    real = set()
    for name in errors.__all__:
        first, *more = getattr(errors, name).__bases__
        parent = "KeyrunError" if first is RuntimeFault else first.__name__
        real.add((name, parent, tuple(each.__name__ for each in more) or ("",)))
    real.remove(("KeyrunError", "Exception", ("",)))
    assert set(drawn()) == real
    assert len(list(drawn())) == len(real)


CALLED = (keyrun.Runtime, keyrun.Reader, keyrun.RunHandle, keyrun.Context, GroupHandle)
"""Classes whose methods users call. Of all other public classes, users read the fields."""
INTERNAL = {"decode_result", "find_submission", "on", "status_of", "wait_for_end"}
"""Methods that are public only for other parts of Keyrun."""
NOT_FOR_USERS = {"Records", "Unset"}
"""The stored form of a history, and the value of an argument that is not given."""


def annotations(owner: type, source: ast.ClassDef) -> Iterator[ast.expr]:
    for node in source.body:
        if isinstance(node, ast.AnnAssign):
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and owner in CALLED:
            if node.name.startswith("_") or node.name in INTERNAL:
                continue
            given = node.args
            for argument in [*given.posonlyargs, *given.args, *given.kwonlyargs]:
                if argument.annotation is not None:
                    yield argument.annotation
            if node.returns is not None:
                yield node.returns


def classes_named_by(owner: type) -> Iterator[type]:
    """Yield the classes of Keyrun that the annotations of a class name, found in its source since
    many of them are imported for the type checker only."""
    module = importlib.import_module(owner.__module__)
    tree = ast.parse(inspect.getsource(module))
    imported = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    [source] = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner.__name__
    ]
    for annotation in annotations(owner, source):
        for name in re.findall(r"\b[A-Za-z]\w*", ast.unparse(annotation)):
            home = importlib.import_module(imported.get(name, module.__name__))
            value = getattr(home, name, None)
            if isinstance(value, type) and value.__module__.startswith("keyrun."):
                yield value


def test_every_class_that_the_public_classes_name_is_public() -> None:
    public = {
        value
        for module in MODULES
        for name in names_of(module)
        if isinstance(value := getattr(importlib.import_module(module), name), type)
    }
    missing = {
        f"{owner.__name__} names {found.__module__}.{found.__name__}"
        for owner in public
        if owner.__module__.startswith("keyrun.runtime.")
        for found in classes_named_by(owner)
        if found not in public and found.__name__ not in NOT_FOR_USERS
    }
    assert missing == set()
