"""The meter of a template: limits the work that filling it in may take.

While a template is filled in, the event loop stands still, and data from outside decides how long
its loops are. So everything that a template does is charged before it is done: turns of loops,
items and letters that are looked at or made, and arguments. Beyond the limit the template fails,
always at the same point.
"""

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError

from keyrun.flows.fields import fields_of

MOST = 1_000_000
"""Turns that one template may take, of about a microsecond each."""
TOGETHER = 2 * MOST
"""Turns that all templates in one value may take."""
LARGEST = 1024 * 1024
"""Letters or items that a part of a template may make."""
BITS = 4096
"""Bits of a whole number. Larger ones take long to multiply, divide and print."""

_LETTERS = 16
"""Letters that are looked at in the time of a turn."""
_ITEMS = 4
"""Items that are looked at in the time of a turn."""
_NODES = 16
"""Parts of an expression that are evaluated in the time of a turn."""

_CONTAINERS = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)
SINGLE = frozenset({str, bytes, int, float, bool, type(None)})
"""Types without fields, by far the most frequent ones."""

_left: "ContextVar[list[int] | None]" = ContextVar("keyrun.flows.meter", default=None)


def metered(fill: Callable[[], Any], most: int = MOST) -> Any:
    """Return the result of `fill`, which may take `most` turns, and no more than are left to the
    value around it."""
    around = _left.get()
    allowed = most if around is None else min(most, around[0])
    left = [allowed]
    token = _left.set(left)
    try:
        return fill()
    finally:
        _left.reset(token)
        if around is not None:
            around[0] -= allowed - left[0]


def charge(turns: int) -> None:
    """Count these turns."""
    left = _left.get()
    if left is not None:
        left[0] -= turns
        if left[0] < 0:
            raise SecurityError(f"it would take more than {MOST:,} turns to fill it in")


def refuse(why: str) -> Any:
    """Fail the template."""
    raise SecurityError(why)


def look(value: Any) -> Any:
    """Charge for looking at a text or at the items of a container, and return it."""
    if isinstance(value, str | bytes):
        charge(len(value) // _LETTERS)
    elif isinstance(value, list | tuple | dict | range):
        charge(len(value) // _ITEMS)
    return value


def make(value: Any) -> Any:
    """Charge for a value that was made, and refuse one that is too large. Returns it."""
    if isinstance(value, str | bytes | list | tuple | range) and len(value) > LARGEST:
        refuse(f"a part of it has more than {LARGEST:,} letters or items")
    return look(value)


def weigh(value: Any) -> int:
    """Charge for all that is in a value, however deep, and return the turns. A container that
    stands in several places counts in each of them."""
    total = 0
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, str | bytes):
            turns = len(each) // _LETTERS
        elif isinstance(each, _CONTAINERS):
            turns = 1 + len(each) // _ITEMS
        elif type(each) in SINGLE or not (fields := fields_of(type(each))):
            continue
        else:
            turns = 1 + len(fields)
        if turns:
            total += turns
            charge(turns)
        if isinstance(each, _CONTAINERS):
            left.extend(each)
            left.extend(each.values() if isinstance(each, dict) else ())
        elif not isinstance(each, str | bytes):
            left.extend(getattr(each, name, None) for name in fields)
    return total


def number(value: Any) -> Any:
    """Refuse a number that takes long to compute with. Returns the value."""
    if isinstance(value, int):
        if value.bit_length() > BITS:
            refuse(f"a whole number in it has more than {BITS:,} bits")
    elif isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) > BITS // 4:
        refuse(f"a number in it has more than {BITS // 4:,} digits")
    return value


def key(value: Any) -> Any:
    """Refuse what cannot be the name of an item: hashing or showing it could take long. Returns
    the value."""
    if isinstance(value, tuple | list | dict) or (
        type(value) not in SINGLE and fields_of(type(value))
    ):
        refuse("the name of an item is a text or a number")
    return look(value)


def turns(items: Iterable[Any], each: int) -> Iterator[Any]:
    """Yield the items of a loop, and charge `each` for a turn."""
    for item in items:
        charge(each)
        yield item


def install(tree: nodes.Template) -> nodes.Template:
    """Return the same template with charges. `keyrun.flows.filters` has the filters with `()` in
    their names, which no template can name itself."""
    for loop in list(tree.find_all(nodes.For)):
        parts = sum(1 for _ in loop.find_all(nodes.Node))
        letters = sum(len(text.data) for text in loop.find_all(nodes.TemplateData))
        each = nodes.Const(1 + parts // _NODES + letters // _LETTERS, lineno=loop.lineno)
        loop.iter = _through("turns()", loop.iter, loop.lineno, each)
    for block in list(tree.find_all(nodes.AssignBlock)):
        block.filter = _through("make()", block.filter, block.lineno)
    _replace(tree)
    if tree.environment is not None:
        tree.set_environment(tree.environment)
    return tree


def _replace(parent: nodes.Node) -> None:
    """Put our own functions in the place of what Jinja2 leaves to Python, inner ones first."""
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
    """Return a chain of comparisons as one call. Each operand stands in it once: a copy of an
    operand has copies of the chains inside it, so the code would double with every level."""
    rest: list[nodes.Expr] = []
    for operand in node.ops:
        rest += [nodes.Const(operand.op, lineno=node.lineno), operand.expr]
    return _through("compare()", node.expr, node.lineno, *rest)


def _through(name: str, value: Any, line: int, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(args), [], None, None, lineno=line)
