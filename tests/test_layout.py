"""The rules of the house: which folder may import what."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "actors": {"trio", "attrs", "keyrun.errors", "keyrun.waking", "keyrun.actors"},
    # What a task is woken with is an `outcome`: the library that Trio uses for it.
    "storage": {"lmdb", "msgpack", "attrs", "cattrs", "trio", "outcome", "keyrun.errors"}
    | {"keyrun.waking", "keyrun.storage"},
}
FOR_TESTS = {"conformance": {"hypothesis", "pytest"}}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports inside the house are absolute"
            yield node.module or ""


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_a_folder_imports_only_what_the_plan_of_the_house_allows(folder: str) -> None:
    for path in (ROOT / folder).glob("**/*.py"):
        allowed = MAY_IMPORT[folder] | FOR_TESTS.get(path.parent.name, set())
        for name in imports_of(path):
            if name.partition(".")[0] in sys.stdlib_module_names:
                continue
            assert any(name == a or name.startswith(a + ".") for a in allowed), f"{path}: {name}"


def test_the_front_door_does_not_import_what_only_commands_need() -> None:
    code = "import keyrun, sys; print(sorted({'click', 'rich'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
