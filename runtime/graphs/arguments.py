"""Arguments of nodes: literals, and text with `{{ templates }}` in it."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from keyrun.runtime.errors import MissingExtra

if TYPE_CHECKING:
    from keyrun.runtime.graphs.node_input import NodeInputRecord

Arguments = Mapping[str, Any] | str
"""Arguments by name, or one template that gives such a mapping."""

_MARKS = ("{{", "{%", "{#")


def rendering(args: Arguments | None) -> "Callable[[NodeInputRecord], dict[str, Any]] | None":
    """Return a function that renders the arguments of a node from its input. Return None if the
    function of the node takes the input itself."""
    if args is None:
        return None
    if isinstance(args, Mapping) and not _has_template(args):
        return lambda given: dict(args)
    if isinstance(args, str) and not _has_template(args):
        raise ValueError(
            "args must be a mapping, or one template that gives a mapping, as in "
            f"'{{{{ output }}}}', got {args!r}"
        )
    rendered = _rendering(args if isinstance(args, str) else dict(args), "args")
    as_mapping = import_module("keyrun.flows.templates").as_mapping

    def render(given: "NodeInputRecord") -> dict[str, Any]:
        found: dict[str, Any] = as_mapping(rendered(given), "args")
        return found

    return render


def rendering_of(value: Any, where: str) -> "Callable[[NodeInputRecord], Any]":
    """Return a function that renders a value with templates in it. Errors name it as `where`."""
    return _rendering(value, where) if _has_template(value) else lambda given: value


def _rendering(value: Any, where: str) -> "Callable[[NodeInputRecord], Any]":
    try:
        # Templates belong to flows, a higher layer. Only graphs with templates need them.
        templates = import_module("keyrun.flows.templates")
        scope = import_module("keyrun.flows.scope").scope
        ready = templates.renderable(value, where)
    except ImportError as error:
        raise MissingExtra(
            f"templates in {where} require Jinja2 ({error}); install the extra 'flows' in a clone "
            'of Keyrun: pip install ".[flows]"'
        ) from error
    return lambda given: ready.render(scope(given))


def _has_template(value: Any) -> bool:
    if isinstance(value, str):
        return any(mark in value for mark in _MARKS)
    if isinstance(value, Mapping):
        return any(map(_has_template, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_template, value))
