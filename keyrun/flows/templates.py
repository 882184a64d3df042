"""Templates: text with places to fill in, and values that have such text in them.

A template that is one expression and nothing else, such as `{{ output.total }}`, gives the value
itself: a number stays a number, a list a list. Every other template gives text.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol

import attrs

from keyrun.flows.errors import TemplateFailed
from keyrun.flows.extras import need

LONGEST = 1024 * 1024
"""Letters of text that a template may make."""
_MARKS = ("{{", "{%", "{#")
TOKENS = 10_000
"""Words and signs inside the tags of a template. To compile one takes about 0.1 ms for each."""
_SAID = 500
"""Letters of an error that are repeated."""
_NOT_HERE = (
    "Extends",
    "Include",
    "Import",
    "FromImport",
    "Block",
    "Macro",
    "CallBlock",
    "EvalContextModifier",
    "ScopedEvalContextModifier",
)


class Fillable(Protocol):
    """Something with places to fill in."""

    def fill(self, names: Mapping[str, Any]) -> Any:
        """The value, with `names` filled in."""


@attrs.frozen
class Literal:
    """A value without templates in it."""

    value: Any

    def fill(self, names: Mapping[str, Any]) -> Any:
        """The value."""
        return self.value


@attrs.frozen
class Items:
    """A list with templates in it."""

    items: tuple[Fillable, ...]

    def fill(self, names: Mapping[str, Any]) -> list[Any]:
        """The list."""
        filled: list[Any] = _together(lambda: [item.fill(names) for item in self.items])
        return filled


@attrs.frozen
class Fields:
    """A mapping with templates in its values."""

    fields: dict[str, Fillable]

    def fill(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """The mapping."""
        filled: dict[str, Any] = _together(
            lambda: {name: field.fill(names) for name, field in self.fields.items()}
        )
        return filled


class Template:
    """Text with templates in it. `where` names it in errors, as in "nodes.fetch.url"."""

    def __init__(self, source: str, where: str) -> None:
        self.source = source
        self.where = where
        self._fill = _compiled(source, where)

    def fill(self, names: Mapping[str, Any]) -> Any:
        """The text, or the value of the one expression that it is."""
        try:
            return self._fill(names)
        except Exception as error:
            raise _failed(self.where, error) from error

    def __repr__(self) -> str:
        return f"Template({self.source!r}, {self.where!r})"


def fillable(value: Any, where: str) -> Fillable:
    """`value` with the templates in it made ready, however deep they are. Raises `TemplateFailed`
    where one cannot be read."""
    match value:
        case str() if any(mark in value for mark in _MARKS):
            return Template(value, where)
        case list() | tuple():
            items = tuple(fillable(item, f"{where}[{at}]") for at, item in enumerate(value))
            return Literal(value) if _literal(items) else Items(items)
        case dict():
            fields = {name: fillable(item, f"{where}.{name}") for name, item in value.items()}
            return Literal(value) if _literal(fields.values()) else Fields(fields)
    return Literal(value)


def asked_for(source: str) -> set[str]:
    """The names that a template, which can be read, is about."""
    if not any(mark in source for mark in _MARKS):
        return set()
    sandbox = _sandbox()
    from jinja2.meta import find_undeclared_variables

    return find_undeclared_variables(sandbox.parse(source)).difference(sandbox.globals)


def _literal(parts: Iterable[Fillable]) -> bool:
    return all(isinstance(part, Literal) for part in parts)


@lru_cache(1)
def _sandbox() -> Any:
    need("jinja2", for_="a template")
    from keyrun.flows.sandbox import Sandbox

    return Sandbox()


def _metered(fill: Any) -> Any:
    from keyrun.flows.meter import metered

    return lambda names: metered(lambda: fill(names))


def _together(fill: Any) -> Any:
    """Fill in all templates of one value: together they may take no more than two may."""
    from keyrun.flows.meter import TOGETHER, metered

    return metered(fill, TOGETHER)


def _compiled(source: str, where: str) -> Any:
    sandbox = _sandbox()
    from jinja2 import nodes
    from jinja2.environment import TemplateExpression

    from keyrun.flows.meter import install

    try:
        _check_length(sandbox, source, where)
        tree = sandbox.parse(source)
        for kind in _NOT_HERE:
            for node in tree.find_all(getattr(nodes, kind)):
                said = f"{kind.lower()} has no place in a template of a flow"
                raise TemplateFailed(f"the template {where}, line {node.lineno}: {said}")
        expression = _only_expression(tree)
        if expression is None:
            template = sandbox.from_string(install(tree))
            return _metered(lambda names: _text(template.generate(dict(names))))
        result = nodes.Assign(nodes.Name("result", "store"), expression, lineno=1)
        compiled = sandbox.from_string(install(nodes.Template([result], lineno=1)))
        evaluate = TemplateExpression(compiled, undefined_to_none=False)
        return _metered(lambda names: _value(evaluate, names, where, expression.lineno))
    except (RecursionError, MemoryError) as error:
        raise TemplateFailed(f"the template {where} is nested too deep") from error
    except SyntaxError as error:
        # It is of the Python that Jinja2 makes of the template: loops in loops in loops.
        raise TemplateFailed(f"the template {where} is nested too deep: {error.msg}") from error
    except Exception as error:
        raise _failed(where, error) from error


def _check_length(sandbox: Any, source: str, where: str) -> None:
    count = 0
    for _, kind, _ in sandbox.lex(source):
        count += kind not in ("data", "whitespace")
        if count > TOKENS:
            raise TemplateFailed(
                f"the template {where} has more than {TOKENS:,} words and signs in its tags"
            )


def _only_expression(tree: Any) -> Any:
    from jinja2 import nodes

    match tree.body:
        case [nodes.Output(nodes=[only])] if not isinstance(only, nodes.TemplateData):
            return only
    return None


def _value(evaluate: Any, names: Mapping[str, Any], where: str, line: int) -> Any:
    from keyrun.flows.filters import as_value

    try:
        value = as_value(evaluate(dict(names)))
        return _text(iter([value])) if isinstance(value, str) else value
    except Exception as error:
        raise _failed(where, error, line) from error


def _text(pieces: Iterator[str]) -> str:
    kept, size = [], 0
    for piece in pieces:
        kept.append(piece)
        size += len(piece)
        if size > LONGEST:
            raise ValueError(f"it makes more than {LONGEST:,} letters of text")
    return "".join(kept)


def _failed(where: str, error: Exception, line: int | None = None) -> TemplateFailed:
    if isinstance(error, TemplateFailed):
        return error
    line = line or getattr(error, "lineno", None) or _line_of(error)
    place = f", line {line}" if line else ""
    said = getattr(error, "message", None) or str(error) or type(error).__name__
    said = said if len(said) <= _SAID else f"{said[:_SAID]}..."
    return TemplateFailed(f"the template {where}{place}: {said}")


def _line_of(error: Exception) -> int | None:
    """Where in the template it happened: Jinja2 leaves that in the traceback."""
    found, at = None, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == "<template>":
            found = at.tb_lineno
        at = at.tb_next
    return found
