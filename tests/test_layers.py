"""The layers of `runtime/`: a module imports only modules of its own row and of the rows below.

`ROWS` is the plan of the package, the lowest layer first. Imports under `TYPE_CHECKING` and inside
functions count, and so do names of modules in strings, which code can import by name. A lower row
that has to call a higher one defines a protocol with what it calls.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUNTIME = "keyrun.runtime."

ROWS: dict[str, str] = {
    "values": (
        "errors values validators limits tuning pass_end texts user_errors internal_errors logger"
        " metrics redaction saturation"
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
    "runtime": "partition options open operator runtime handle faces",
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


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that a file imports, also late, by name and for the type checker."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if _own(name) in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"keyrun(\.\w+)+", str(node.value)):
            yield str(node.value)


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of `runtime/` that a file imports."""
    yield from (_own(name) for name in imported(path, known) if _own(name) in known)


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


def test_no_module_imports_a_higher_row_or_another_feature() -> None:
    assert sorted(violations()) == []


LEAVES = {"keyrun._errors", "keyrun._histogram", "keyrun._waking"}
BY_NAME = {
    "graphs.arguments": {"keyrun.flows.scope", "keyrun.flows.templates"},
    "graphs.graph": {"keyrun.flows.files"},
}
"""Modules of higher folders that `runtime/` imports by name, for programs that use the extra
`flows`: templates in arguments, and `Graph.from_file`."""


def test_runtime_imports_only_actors_and_storage_and_loads_flows_by_name() -> None:
    known, found = modules(), {}
    for module, path in known.items():
        names = {name for name in imported(path, known) if (ROOT / _file_of(name)).exists()}
        lower = {name for name in names if name.startswith(("keyrun.actors", "keyrun.storage"))}
        if higher := {
            name for name in names - lower - LEAVES if not name.startswith("keyrun.runtime")
        }:
            found[module] = higher
    assert found == BY_NAME


def _file_of(name: str) -> str:
    path = name.replace(".", "/")
    return path if (ROOT / path).is_dir() else f"{path}.py"


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of nodes that reach each other."""

    def reached(start: str) -> set[str]:
        seen, ahead = set[str](), [start]
        while ahead:
            ahead += (new := graph.get(ahead.pop(), set()) - seen)
            seen |= new
        return seen

    reach = {node: reached(node) for node in graph}
    found = [{other for other in reach[node] if node in reach.get(other, ())} for node in graph]
    return [each for at, each in enumerate(found) if each and each not in found[:at]]


def test_import_cycles_are_small_and_inside_one_package() -> None:
    known = modules()
    graph = {module: set(imports(path, known)) - {module} for module, path in known.items()}
    for cycle in cycles(graph):
        wiring = cycle <= set(ROWS["runtime"].split())
        assert wiring or len({_feature(module) for module in cycle}) == 1, cycle
        assert len(cycle) <= 8, cycle


BY_NUMBER = {
    "children.child_runs": "children whose cycle check has not been made",
    "groups.handle": "members whose end a group waits for",
    "queue.instance_limits": "runs that count against the limit of their workflow",
    "waiting.eviction": "how long each waiting run has been in memory",
    "waiting.signals": "signals of runs whose commit is under way",
}
"""Modules that keep something by run number, and what. None of it says where a run is."""
BY_OTHER_NUMBERS = (
    "definitions.workflow",
    "graphs.agenda",
    "graphs.frontier",
    "graphs.map_items",
    "graphs.plan",
    "metrics",
    "records.journal_entry",
)
"""Modules that keep something by the number of a version, level, edge, item, range of numbers or
kind of entry."""


def attributes(tree: ast.Module) -> Iterator[str]:
    """Yield the types of all attributes and of the variables of modules and classes."""
    for node in ast.walk(tree):
        body = node.body if isinstance(node, ast.Module | ast.ClassDef) else [node]
        for each in body:
            if isinstance(each, ast.AnnAssign) and (
                each is not node or isinstance(each.target, ast.Attribute)
            ):
                yield ast.unparse(each.annotation).replace("'", "")


def test_only_the_run_table_keeps_runs_by_their_number() -> None:
    found = set()
    for module, path in modules().items():
        for kept in attributes(ast.parse(path.read_text())):
            by_run = re.search(r"([dD]ict|[sS]et|Counter)\[(tuple\[)?(int|Run)\b", kept)
            if by_run and module not in ("runs", *BY_OTHER_NUMBERS):
                found.add(module)
    assert found == BY_NUMBER.keys(), "ask the run table where a run is"


FOLDERS = ("actors", "storage", "runtime", "keyrun")


def test_a_class_name_has_one_meaning() -> None:
    """The faces have the same classes for asyncio and for threads, with the same names."""
    homes: dict[str, set[str]] = {}
    for path in (each for folder in FOLDERS for each in (ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        if "faces" not in parts and not (ROOT / parts[0] / parts[1]).is_symlink():
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    homes.setdefault(node.name, set()).add("/".join(parts))
    assert len(homes) > 500, "no classes were found"
    assert {name: sorted(found) for name, found in homes.items() if len(found) > 1} == {}
