"""Files with flows: read them, check them as a whole, and make graphs of them."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from keyrun import Graph
from keyrun._errors import KeyrunError
from keyrun.flows import source
from keyrun.flows.builder import Builder
from keyrun.flows.checks import ReferenceCheck, check_syntax, unreachable_timeouts, unused_ports
from keyrun.flows.document import DOCUMENT
from keyrun.flows.shapes import Fault
from keyrun.flows.source import Source, Unreadable
from keyrun.runtime.definitions.workflow import Workflow

Functions = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]


@attrs.frozen
class Problem:
    """Describe one problem of a flow: an error, or a warning."""

    line: int | None
    """The line in the file, from 1. None if the problem is not on one line."""
    message: str
    """The place in the flow, what is wrong there, and what to write instead."""


class InvalidFlow(KeyrunError, ValueError):
    """Raised if a file is not a valid flow."""

    def __init__(self, name: str, problems: Iterable[Problem]) -> None:
        self.name = name
        """The name of the file."""
        self.problems = tuple(problems)
        """All problems of the flow."""
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Return one line for each problem, with file and line number."""
        return [
            f"{self.name}{'' if each.line is None else f':{each.line}'}: {each.message}"
            for each in self.problems
        ]


@attrs.frozen
class Checked:
    """The graph of a flow without errors. `warnings` lists probable mistakes."""

    graph: Graph
    warnings: tuple[Problem, ...]


def load(
    path: str | Path,
    *,
    functions: Functions = (),
    workflows: Iterable[Workflow[Any, Any]] = (),
) -> Graph:
    """Return the graph of a flow file: YAML, or JSON if the name ends in `.json`.

    `functions` are the functions that `call` nodes may call, as a list or by name. `workflows` are
    the workflows that `workflow` nodes may run. Raises `InvalidFlow` with all problems of the file
    and their lines."""
    return check(path, functions=functions, workflows=workflows).graph


def check(
    path: str | Path,
    *,
    functions: Functions = (),
    workflows: Iterable[Workflow[Any, Any]] = (),
) -> Checked:
    """Return the graph in a file with its warnings. Raise `InvalidFlow` like `load`."""
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
    """Return the graph of a flow in a text, which is YAML, or JSON with `json=True`.

    `name` names the flow in errors. `folder` is the directory that paths in the flow are relative
    to. The other parameters are those of `load`."""
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
    found = [*DOCUMENT.faults(read.value, ()), *check_syntax(read.value)]
    warnings: list[Fault] = []
    if isinstance(read.value, dict):
        builder = Builder(
            read.value,
            {fault.place for fault in found},
            folder=folder,
            functions=_named(functions),
            workflows={each.name: each for each in workflows},
        )
        references = ReferenceCheck(builder)
        found += [*builder.faults, *references.faults]
        warnings = [*references.warnings, *unused_ports(builder), *unreachable_timeouts(builder)]
    problems = [*(Problem(*each) for each in read.problems), *_placed(read, found)]
    if problems:
        raise InvalidFlow(name, _sorted(problems))
    builder.graph.document = read.value
    return Checked(builder.graph, tuple(_sorted(_placed(read, warnings))))


def _problem(error: Unreadable) -> Problem:
    return Problem(error.line, str(error))


def _sorted(problems: Iterable[Problem]) -> list[Problem]:
    return sorted(dict.fromkeys(problems), key=lambda each: each.line or 0)


def _placed(read: Source, found: Iterable[Fault]) -> list[Problem]:
    return [
        Problem(read.line(fault.place, fault.line), f"{_path(fault.place)}{fault.reason}")
        for fault in found
    ]


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
            raise TypeError(f"functions requires functions with names, got {function!r}")
        named[name] = function
    return named
