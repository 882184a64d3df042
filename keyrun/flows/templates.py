"""Templates: render text with `{{ expressions }}` in it, and values that contain such text.

A template that is one expression and nothing else, such as `{{ output.total }}`, gives the value of
the expression: a number stays a number, and a list stays a list. Every other template gives text.
The expression is evaluated in the same sandbox, and with the same budget, as text is rendered. It
is never written as text and parsed again, so the text "007" stays the text "007".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import attrs

from keyrun.extras import need
from keyrun.flows.errors import NodeFailed, TemplateFailed

if TYPE_CHECKING:
    from jinja2 import nodes

LONGEST = 1024 * 1024
"""Characters of text that one template may produce."""
TOKENS = 10_000
"""Tokens inside the tags of a template. Compiling takes about 0.1 ms for each."""

_MARKS = ("{{", "{%", "{#")
_SHOWN = 500
"""Characters of an error that are repeated."""
_REJECTED = (
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
"""The tags that load other templates or define functions."""


class Renderable(Protocol):
    """A value that may contain templates."""

    def render(self, names: Mapping[str, Any]) -> Any:
        """Return the value with its templates rendered."""


@attrs.frozen
class PlainValue:
    """A value without templates."""

    value: Any

    def render(self, names: Mapping[str, Any]) -> Any:
        """Return the value."""
        return self.value


@attrs.frozen
class TemplatedList:
    """A list with templates in it."""

    items: tuple[Renderable, ...]

    def render(self, names: Mapping[str, Any]) -> list[Any]:
        """Return the list."""
        rendered: list[Any] = _together(lambda: [item.render(names) for item in self.items])
        return rendered


@attrs.frozen
class TemplatedMapping:
    """A mapping with templates in its values."""

    fields: dict[str, Renderable]

    def render(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return the mapping."""
        rendered: dict[str, Any] = _together(
            lambda: {name: field.render(names) for name, field in self.fields.items()}
        )
        return rendered


class Template:
    """Text with templates in it. Errors name it as `where`, as in "nodes.fetch.url"."""

    def __init__(self, source: str, where: str) -> None:
        self.source = source
        self.where = where
        self._render = _compiled(source, where)

    def render(self, names: Mapping[str, Any]) -> Any:
        """Return the text, or the value if the template is one expression."""
        try:
            return self._render(names)
        except Exception as error:
            raise _failed(self.where, error) from error

    def __repr__(self) -> str:
        return f"Template({self.source!r}, {self.where!r})"


def renderable(value: Any, where: str) -> Renderable:
    """Compile all templates in `value`, at any depth. Raise `TemplateFailed` for one that cannot be
    parsed."""
    match value:
        case str() if has_template(value):
            return Template(value, where)
        case list() | tuple():
            items = tuple(renderable(item, f"{where}[{at}]") for at, item in enumerate(value))
            return PlainValue(value) if _is_literal(items) else TemplatedList(items)
        case dict():
            fields = {name: renderable(item, f"{where}.{name}") for name, item in value.items()}
            return PlainValue(value) if _is_literal(fields.values()) else TemplatedMapping(fields)
    return PlainValue(value)


def has_template(text: str) -> bool:
    """Return whether a text contains a template."""
    return any(mark in text for mark in _MARKS)


def is_whole(text: str) -> bool:
    """Return whether a text is one expression and nothing else. A text that cannot be parsed counts
    as one: its own error says what is wrong."""
    if not has_template(text):
        return False
    try:
        return _only_expression(parsed(text)) is not None
    except Exception:
        return True


def parsed(text: str) -> "nodes.Template":
    """Return the syntax tree of a template."""
    tree: nodes.Template = sandbox().parse(text)
    return tree


def as_text(value: Any, where: str) -> str:
    """Return a rendered value where text is required. It reads as it does inside of a text."""
    match value:
        case str():
            return value
        case bool() | int() | float() | Decimal() | UUID() | date():
            return str(value)
    raise NodeFailed(
        f"{where} requires text, got {_kind(value)}; choose one value of it, or turn it into text "
        "with the filter join or tojson"
    )


def as_mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a rendered value where a mapping is required."""
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return value
    raise NodeFailed(f"{where} requires a mapping, got {_kind(value)}")


def as_number(value: Any, where: str) -> int | float | Decimal:
    """Return a rendered value where a number is required."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return value
    raise NodeFailed(f"{where} requires a number, got {_kind(value)}")


def as_list(value: Any, where: str) -> list[Any]:
    """Return a rendered value where a list is required."""
    if isinstance(value, list | tuple):
        return list(value)
    raise NodeFailed(f"{where} requires a list, got {_kind(value)}")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case str():
            return "text"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
    return f"a {type(value).__name__}"


def _is_literal(parts: Iterable[Renderable]) -> bool:
    return all(isinstance(part, PlainValue) for part in parts)


@lru_cache(1)
def sandbox() -> Any:
    """Return the environment of all templates."""
    need("jinja2", for_="a template")
    from keyrun.flows.sandbox import Sandbox

    return Sandbox()


def _metered(render: Callable[[Mapping[str, Any]], Any]) -> Callable[[Mapping[str, Any]], Any]:
    from keyrun.flows.meter import metered

    return lambda names: metered(lambda: render(names))


def _together(render: Callable[[], Any]) -> Any:
    """Render all templates of one value. Together they have the budget of two templates."""
    from keyrun.flows.meter import TOGETHER, metered

    return metered(render, TOGETHER)


def _compiled(source: str, where: str) -> Callable[[Mapping[str, Any]], Any]:
    environment = sandbox()
    from jinja2 import nodes
    from jinja2.environment import TemplateExpression

    from keyrun.flows.meter import install

    try:
        _check_length(source, where)
        tree = parsed(source)
        for kind in _REJECTED:
            for node in tree.find_all(getattr(nodes, kind)):
                reason = f"the tag {kind.lower()!r} is not allowed in a flow"
                raise TemplateFailed(where, reason, node.lineno)
        expression = _only_expression(tree)
        if expression is None:
            template = environment.from_string(install(tree))
            return _metered(lambda names: _joined(template.generate(dict(names))))
        result = nodes.Assign(nodes.Name("result", "store"), expression, lineno=1)
        compiled = environment.from_string(install(nodes.Template([result], lineno=1)))
        evaluate = TemplateExpression(compiled, undefined_to_none=False)
        return _metered(lambda names: _value(evaluate, names, where, expression.lineno))
    except (RecursionError, MemoryError) as error:
        raise TemplateFailed(where, "is nested too deep") from error
    except SyntaxError as error:
        # An error in the Python code that Jinja2 generates: too many nested loops.
        raise TemplateFailed(where, f"is nested too deep: {error.msg}") from error
    except Exception as error:
        raise _failed(where, error) from error


def _check_length(source: str, where: str) -> None:
    count = 0
    for _, kind, _ in sandbox().lex(source):
        count += kind not in ("data", "whitespace")
        if count > TOKENS:
            raise TemplateFailed(where, f"has more than {TOKENS:,} words and signs in its tags")


def _only_expression(tree: "nodes.Template") -> "nodes.Expr | None":
    from jinja2 import nodes

    match tree.body:
        case [nodes.Output(nodes=[only])] if not isinstance(only, nodes.TemplateData):
            return only
    return None


def _value(evaluate: Any, names: Mapping[str, Any], where: str, line: int) -> Any:
    from keyrun.flows.filters import as_value

    try:
        value = as_value(evaluate(dict(names)))
        return _joined(iter([value])) if isinstance(value, str) else value
    except Exception as error:
        raise _failed(where, error, line) from error


def _joined(pieces: Iterator[str]) -> str:
    kept, size = [], 0
    for piece in pieces:
        kept.append(piece)
        size += len(piece)
        if size > LONGEST:
            raise ValueError(f"the text has more than {LONGEST:,} characters")
    return "".join(kept)


def _failed(where: str, error: Exception, line: int | None = None) -> TemplateFailed:
    if isinstance(error, TemplateFailed):
        return error
    line = line or getattr(error, "lineno", None) or _line_of(error)
    reason = getattr(error, "message", None) or str(error) or type(error).__name__
    reason = reason if len(reason) <= _SHOWN else f"{reason[:_SHOWN]}..."
    return TemplateFailed(where, reason, line)


def _line_of(error: Exception) -> int | None:
    """Return the line of the template where an error was raised. Jinja2 leaves it in the
    traceback."""
    found, at = None, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == "<template>":
            found = at.tb_lineno
        at = at.tb_next
    return found
