"""The meter of a template: limit the work of one rendering.

No other task runs while a template is rendered, and data from outside decides how long its loops
are. So all work is charged before it is done: iterations of loops, items and characters that are
read or made, and arguments. A template that exceeds its budget fails, always at the same point.
"""

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError

from keyrun.flows.fields import fields_of

MOST = 1_000_000
"""Operations of one template, of about a microsecond each."""
TOGETHER = 2 * MOST
"""Operations of all templates in one value."""
LARGEST = 1024 * 1024
"""Characters or items of a value that a template makes."""
BITS = 4096
"""Bits of a whole number. Larger numbers take long to multiply, divide and print."""

_CHARACTERS = 16
"""Characters that are read in the time of one operation."""
_ITEMS = 4
"""Items that are read in the time of one operation."""
_NODES = 16
"""Parts of an expression that are evaluated in the time of one operation."""

_CONTAINERS = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)
SINGLE = frozenset({str, bytes, int, float, bool, type(None)})
"""The most frequent types, which have no fields."""

_left: "ContextVar[list[int] | None]" = ContextVar("keyrun.flows.meter", default=None)


def metered(render: Callable[[], Any], most: int = MOST) -> Any:
    """Return the result of `render`, which may take `most` operations, but not more than the value
    around it has left."""
    around = _left.get()
    allowed = most if around is None else min(most, around[0])
    left = [allowed]
    token = _left.set(left)
    try:
        return render()
    finally:
        _left.reset(token)
        if around is not None:
            around[0] -= allowed - left[0]


def charge(operations: int) -> None:
    """Count operations."""
    left = _left.get()
    if left is not None:
        left[0] -= operations
        if left[0] < 0:
            raise SecurityError(
                f"it takes more than {MOST:,} operations for this data; use a code node"
            )


def refuse(why: str) -> Any:
    """Fail the template."""
    raise SecurityError(why)


def look(value: Any) -> Any:
    """Charge for reading a text or the items of a container. Return the value."""
    if isinstance(value, str | bytes):
        charge(len(value) // _CHARACTERS)
    elif isinstance(value, list | tuple | dict | range):
        charge(len(value) // _ITEMS)
    return value


def make(value: Any) -> Any:
    """Charge for a new value, and reject one that is too large. Return the value."""
    if isinstance(value, str | bytes | list | tuple | range) and len(value) > LARGEST:
        refuse(f"a value in it has more than {LARGEST:,} characters or items")
    return look(value)


def weigh(value: Any) -> int:
    """Charge for all values in a value, at any depth. Return the operations. A container that is in
    several places counts in each of them."""
    total = 0
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, str | bytes):
            operations = len(each) // _CHARACTERS
        elif isinstance(each, _CONTAINERS):
            operations = 1 + len(each) // _ITEMS
        elif type(each) in SINGLE or not (fields := fields_of(type(each))):
            continue
        else:
            operations = 1 + len(fields)
        if operations:
            total += operations
            charge(operations)
        if isinstance(each, _CONTAINERS):
            left.extend(each)
            left.extend(each.values() if isinstance(each, dict) else ())
        elif not isinstance(each, str | bytes):
            left.extend(getattr(each, name, None) for name in fields)
    return total


def number(value: Any) -> Any:
    """Reject a number that takes long to compute with. Return the value."""
    if isinstance(value, int):
        if value.bit_length() > BITS:
            refuse(f"a whole number in it has more than {BITS:,} bits")
    elif isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) > BITS // 4:
        refuse(f"a number in it has more than {BITS // 4:,} digits")
    return value


def key(value: Any) -> Any:
    """Reject a key of an item that could take long to hash or to show. Return the value."""
    if isinstance(value, tuple | list | dict) or (
        type(value) not in SINGLE and fields_of(type(value))
    ):
        refuse("the key of an item must be text or a number")
    return look(value)


def charged(items: Iterable[Any], each: int) -> Iterator[Any]:
    """Yield the items of a loop, and charge `each` for an iteration."""
    for item in items:
        charge(each)
        yield item


def install(tree: nodes.Template) -> nodes.Template:
    """Return the same template with charges. `keyrun.flows.filters` has the filters with `()` in
    their names. No template can use these names."""
    for loop in list(tree.find_all(nodes.For)):
        parts = sum(1 for _ in loop.find_all(nodes.Node))
        characters = sum(len(text.data) for text in loop.find_all(nodes.TemplateData))
        each = nodes.Const(1 + parts // _NODES + characters // _CHARACTERS, lineno=loop.lineno)
        loop.iter = _through("charged()", loop.iter, loop.lineno, each)
    for block in list(tree.find_all(nodes.AssignBlock)):
        block.filter = _through("make()", block.filter, block.lineno)
    _replace(tree)
    if tree.environment is not None:
        tree.set_environment(tree.environment)
    return tree


def _replace(parent: nodes.Node) -> None:
    """Replace what Jinja2 leaves to Python with our own functions, inner parts first."""
    for name, value in list(parent.iter_fields()):
        if isinstance(value, list):
            for at, item in enumerate(value):
                if isinstance(item, nodes.Node):
                    _replace(item)
                    value[at] = _ours(item)
        elif isinstance(value, nodes.Node):
            _replace(value)
            setattr(parent, name, _ours(value))


def _ours(node: nodes.Node) -> nodes.Node:
    match node:
        case nodes.Compare():
            return _compared(node)
        case nodes.Concat():
            return _through("concat()", nodes.List(node.nodes, lineno=node.lineno), node.lineno)
        case nodes.Getitem(arg=nodes.Slice()):
            node.node = _through("look()", node.node, node.lineno)
        case nodes.Dict():
            for pair in node.items:
                pair.key = _through("key()", pair.key, node.lineno)
    return node


def _compared(node: nodes.Compare) -> nodes.Expr:
    """Return a chain of comparisons as one call, with each operand once. A copy of an operand would
    contain copies of the chains inside it, so the code would double with every level."""
    rest: list[nodes.Expr] = []
    for operand in node.ops:
        rest += [nodes.Const(operand.op, lineno=node.lineno), operand.expr]
    return _through("compare()", node.expr, node.lineno, *rest)


def _through(name: str, value: Any, line: int, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(args), [], None, None, lineno=line)
