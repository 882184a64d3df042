"""Files with flows in them: read, checked as a whole, and made into graphs."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from keyrun import Graph
from keyrun._errors import KeyrunError
from keyrun.flows import source
from keyrun.flows.builder import Builder
from keyrun.flows.document import DOCUMENT
from keyrun.flows.source import Source, Unreadable
from keyrun.runtime.definitions.workflow import Workflow

Functions = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]


@attrs.frozen
class Problem:
    """One thing that is wrong with a flow, and the line that it is on, if it is on one."""

    line: int | None
    message: str


class InvalidFlow(KeyrunError, ValueError):
    """A file that is no flow; `problems` lists all that is wrong with it."""

    def __init__(self, name: str, problems: Iterable[Problem]) -> None:
        self.name = name
        self.problems = tuple(problems)
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """One line for each problem, as compilers write them."""
        return [
            f"{self.name}{'' if each.line is None else f':{each.line}'}: {each.message}"
            for each in self.problems
        ]


@attrs.frozen
class Checked:
    """A flow without errors, with its graph. `warnings` lists what is probably not meant."""

    graph: Graph
    warnings: tuple[Problem, ...]


def load(
    path: str | Path,
    *,
    functions: Functions = (),
    workflows: Iterable[Workflow[Any, Any]] = (),
) -> Graph:
    """The graph in a file: YAML, or JSON if its name ends in .json. `functions` are those that
    `call` nodes may call, by name or with names of their own; `workflows` those that `workflow`
    nodes may run. Raises `InvalidFlow` with all that is wrong, each with its line."""
    return check(path, functions=functions, workflows=workflows).graph


def check(
    path: str | Path,
    *,
    functions: Functions = (),
    workflows: Iterable[Workflow[Any, Any]] = (),
) -> Checked:
    """Return the graph in a file with its warnings. Raises `InvalidFlow` like `load`."""
    path = Path(path)
    try:
        text = source.read_file(path)
    except Unreadable as error:
        raise InvalidFlow(str(path), [_problem(error)]) from error
    return _checked(
        text,
        json=path.suffix.lower() == ".json",
        name=str(path),
        folder=path.parent,
        functions=functions,
        workflows=workflows,
    )


def parse(
    text: str,
    *,
    json: bool = False,
    name: str = "the flow",
    folder: Path | None = None,
    functions: Functions = (),
    workflows: Iterable[Workflow[Any, Any]] = (),
) -> Graph:
    """The graph in a text. `name` is what errors call it."""
    return _checked(
        text, json=json, name=name, folder=folder, functions=functions, workflows=workflows
    ).graph


def _checked(
    text: str,
    *,
    json: bool,
    name: str,
    folder: Path | None,
    functions: Functions,
    workflows: Iterable[Workflow[Any, Any]],
) -> Checked:
    try:
        read = source.read_json(text) if json else source.read_yaml(text)
    except Unreadable as error:
        raise InvalidFlow(name, [_problem(error)]) from error
    misshapen = list(DOCUMENT.problems(read.value, ()))
    found = [Problem(*each) for each in read.problems] + _placed(read, misshapen)
    if not isinstance(read.value, dict):
        raise InvalidFlow(name, found)
    builder = Builder(
        read.value,
        {place for place, _ in misshapen},
        folder=folder,
        functions=_named(functions),
        workflows={each.name: each for each in workflows},
    )
    graph = builder.graph(read.value)
    found += _placed(read, builder.problems)
    if found:
        raise InvalidFlow(name, sorted(set(found), key=lambda each: (each.line or 0, each.message)))
    graph.document = read.value
    return Checked(graph, tuple(_placed(read, builder.warnings)))


def _problem(error: Unreadable) -> Problem:
    return Problem(error.line, str(error))


def _placed(read: Source, found: Iterable[tuple[source.Place, str]]) -> list[Problem]:
    return [Problem(read.line(place), f"{_path(place)}{said}") for place, said in found]


def _path(place: source.Place) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part[:80]}"
    return f"{text[1:]}: " if text else ""


def _named(functions: Functions) -> dict[str, Callable[..., Any]]:
    if isinstance(functions, Mapping):
        return dict(functions)
    named: dict[str, Callable[..., Any]] = {}
    for function in functions:
        name = str(getattr(function, "__name__", ""))
        if not callable(function) or not name:
            raise TypeError(f"a function that is registered has a name, and {function!r} has none")
        named[name] = function
    return named
