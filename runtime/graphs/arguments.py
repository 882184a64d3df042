"""Arguments of nodes: literals, and texts with `{{ templates }}` in them."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from keyrun.runtime.errors import MissingExtra

if TYPE_CHECKING:
    from keyrun.runtime.graphs.node_input import NodeInputRecord

_MARKS = ("{{", "{%", "{#")


def rendering(
    args: Mapping[str, Any] | None,
) -> "Callable[[NodeInputRecord], dict[str, Any]] | None":
    """Return a function that renders the arguments of a node from its input; None if the node
    takes its input itself."""
    if args is None:
        return None
    if not _has_template(args):
        return lambda given: dict(args)
    try:
        # Templates come with flows, which stand above: only who has written one needs them.
        fillable = import_module("keyrun.flows.templates").fillable
        scope = import_module("keyrun.flows.scope").scope
        ready = fillable(dict(args), "args")
    except ImportError as error:
        raise MissingExtra(
            f'templates in args need Jinja2 ({error}): pip install "keyrun[flows]"'
        ) from error

    def render(given: "NodeInputRecord") -> dict[str, Any]:
        filled: dict[str, Any] = ready.fill(scope(given))
        return filled

    return render


def _has_template(value: Any) -> bool:
    if isinstance(value, str):
        return any(mark in value for mark in _MARKS)
    if isinstance(value, Mapping):
        return any(map(_has_template, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_template, value))
