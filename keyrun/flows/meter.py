"""The meter of a template: how much work it may take to fill it in.

While a template is filled in, nothing else in the process moves, and what comes in from outside
says how long its loops are. So turns are counted, and so is, at a rate, what filters, methods,
comparisons and texts look at or make. What is too much is an error, always at the same point.
"""

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError

MOST = 1_000_000
"""Turns, of about a microsecond each."""
LARGEST = 1024 * 1024
"""Letters or items that a part of a template may make."""

_LOOKED_AT = 16
"""So many items or letters are looked at in the time of a turn."""

_left: "ContextVar[list[int] | None]" = ContextVar("keyrun.flows.meter", default=None)


def metered(fill: Callable[[], Any]) -> Any:
    """What `fill` gives, with a meter of its own running."""
    token = _left.set([MOST])
    try:
        return fill()
    finally:
        _left.reset(token)


def charge(turns: int) -> None:
    """Count so many turns."""
    left = _left.get()
    if left is not None:
        left[0] -= turns
        if left[0] < 0:
            raise SecurityError(f"it would take more than {MOST:,} turns to fill it in")


def look(value: Any) -> Any:
    """Count that a value is looked at; gives it back."""
    if isinstance(value, str | list | tuple | dict | range):
        charge(len(value) // _LOOKED_AT)
    return value


def make(value: Any) -> Any:
    """Count that a text or a list was made, and refuse what is too large; gives it back."""
    if isinstance(value, str | list | tuple) and len(value) > LARGEST:
        raise SecurityError(f"a part of it has more than {LARGEST:,} letters or items")
    return look(value)


def turns(items: Iterable[Any], each: int) -> Iterator[Any]:
    """The items of a loop, whose turns count `each`."""
    for item in items:
        charge(each)
        yield item


INNER: dict[str, Callable[..., Any]] = {"look()": look, "make()": make, "turns()": turns}
"""Filters that only `install` can name."""


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that counts what it looks at; what it does with an item is like a turn."""
    # What Jinja2 marks so gets the environment, or the like, before its value.
    at = 0 if getattr(function, "jinja_pass_arg", None) is None else 1

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        value = args[at] if len(args) > at else None
        if isinstance(value, list | tuple | dict | range):
            charge(len(value))
        else:
            look(value)
        return function(*args, **kwargs)

    return call


def install(tree: nodes.Template) -> nodes.Template:
    """The same template, counting."""
    for loop in list(tree.find_all(nodes.For)):
        letters = sum(len(text.data) for text in loop.find_all(nodes.TemplateData))
        each = nodes.Const(1 + letters // _LOOKED_AT, lineno=loop.lineno)
        loop.iter = _through("turns()", loop.iter, loop.lineno, each)
    for comparison in list(tree.find_all(nodes.Compare)):
        for operand in comparison.ops:
            operand.expr = _through("look()", operand.expr, comparison.lineno)
    for parent in list(tree.find_all(nodes.Node)):
        for name, value in list(parent.iter_fields()):
            if isinstance(value, nodes.Concat):
                setattr(parent, name, _through("make()", value, value.lineno))
    for block in list(tree.find_all(nodes.AssignBlock)):
        block.filter = _through("make()", block.filter, block.lineno)
    if tree.environment is not None:
        tree.set_environment(tree.environment)
    return tree


def _through(name: str, value: Any, line: int, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(args), [], None, None, lineno=line)
