"""The layers of `runtime/`: a module imports only modules of its own row and of the rows below.

`ROWS` is the plan of the package, the lowest layer first. The imports that still point the wrong
way are in `layer_violations.txt`. That list may only shrink: a new line in it is a mistake, and a
line whose import is gone has to be removed.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUNTIME = "keyrun.runtime."
LISTED = Path(__file__).parent / "layer_violations.txt"

ROWS: dict[str, str] = {
    "values": (
        "errors values limits tuning verdicts texts unwinding user_errors internal_errors logger"
    ),
    "records": "records",
    "events": "events",
    "policies": "policies",
    "definitions": "definitions",
    "host": "host",
    "run": "run",
    "runs": "runs",
    "steps": "steps",
    "waiting": "waiting",
    "children": "children",
    "execution": "execution",
    "queue": "queue",
    "operations": "operations",
    "features": "entities graphs groups schedules machines",
    "recovery": "recovery",
    "inspect": "inspect",
    "runtime": "partition open runtime handle",
}
"""Modules and packages by row. The longest name that fits a module decides."""
ORDER = list(ROWS)
FEATURES = ROWS["features"].split()


def row_of(module: str) -> str:
    """Return the row of a module of `runtime/`."""
    fitting = {
        name: row
        for row, names in ROWS.items()
        for name in names.split()
        if module == name or module.startswith(name + ".")
    }
    assert fitting, f"runtime/{module.replace('.', '/')}.py has no row: add it to ROWS"
    return fitting[max(fitting, key=len)]


def modules() -> dict[str, Path]:
    """Return the modules of `runtime/` by name."""
    found = {}
    for path in (ROOT / "runtime").rglob("*.py"):
        parts = list(path.relative_to(ROOT / "runtime").with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if parts:
            found[".".join(parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of `runtime/` that a file imports, also late and for the type checker."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if _own(name) in known else node.module for name in names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (_own(name) for name in names if _own(name) in known)


def _own(name: str) -> str:
    return name.removeprefix(RUNTIME) if name.startswith(RUNTIME) else ""


def violations() -> set[str]:
    """Return the imports that point to a higher row, or from one feature to another."""
    known, found = modules(), set()
    for module, path in known.items():
        if path.name == "__init__.py":
            continue
        row = row_of(module)
        for other in set(imports(path, known)) - {module}:
            if known[other].name == "__init__.py":
                continue
            higher = ORDER.index(row_of(other)) > ORDER.index(row)
            beside = row == row_of(other) == "features" and _feature(module) != _feature(other)
            if higher or beside:
                found.add(f"{module} -> {other}")
    return found


def _feature(module: str) -> str:
    return module.partition(".")[0]


def test_every_module_has_a_row() -> None:
    for module, path in modules().items():
        if path.name != "__init__.py":
            row_of(module)


def test_imports_that_point_the_wrong_way_only_become_fewer() -> None:
    listed = set(LISTED.read_text().splitlines())
    found = violations()
    assert sorted(found - listed) == [], "these imports point to a higher layer"
    assert sorted(listed - found) == [], "these imports are gone: remove them from the list"
