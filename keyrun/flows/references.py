"""References: find what templates and conditions refer to, without evaluating them."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import attrs

from keyrun.flows.templates import has_template, parsed, sandbox
from keyrun.runtime.graphs.cel import syntax

if TYPE_CHECKING:
    from jinja2 import nodes

_DEFAULTS = ("default", "d")
_DEFINED = ("defined", "undefined")
_METHODS = ("get", "items", "keys", "values")


@attrs.frozen
class Reference:
    """A name with the fields behind it, as in ("outputs", "fetch", "body"), and its line.

    `certain` is False where the expression may never be evaluated, or copes with a missing value.
    `call` is True for a function, as in `len(...)`, and `method` for a method, as in `x.upper()`.
    """

    path: tuple[str, ...]
    line: int = 1
    certain: bool = True
    call: bool = False
    method: bool = False


def in_template(text: str) -> list[Reference]:
    """Return the references of a template that can be parsed."""
    if not has_template(text):
        return []
    from jinja2 import nodes

    tree = parsed(text)
    names = list(tree.find_all(nodes.Name))
    own = {name.name for name in names if name.ctx != "load"}.union(sandbox().globals, {"loop"})
    return [each for each in _walk(tree, True) if each.path[0] not in own]


def _walk(node: "nodes.Node", certain: bool) -> Iterator[Reference]:
    """Yield the references in a part of a template."""
    from jinja2 import nodes

    match node:
        case nodes.Name() | nodes.Getattr() | nodes.Getitem():
            yield from _path(node, certain)
        case nodes.Call(node=nodes.Name(name=name), args=args, kwargs=kwargs):
            yield Reference((name,), node.lineno, certain, call=True)
            yield from _walk_all([*args, *kwargs], certain)
        case nodes.Call(node=nodes.Getattr(node=owner, attr=method), args=args) if (
            method in _METHODS
        ):
            match owner, args:
                case nodes.Name(name=name), [nodes.Const(value=str() as key), *_]:
                    yield Reference((name, key), node.lineno, certain=False)
            yield from _walk_all([owner, *args], certain)
        case nodes.Call(node=nodes.Getattr(node=owner, attr=method), args=args, kwargs=kwargs):
            yield Reference((method,), node.lineno, certain, method=True)
            yield from _walk_all([owner, *args, *kwargs], certain)
        case nodes.Filter(name=name, node=inner, args=args) if name in _DEFAULTS:
            yield from _walk_all([each for each in (inner,) if each is not None], False)
            yield from _walk_all(args, certain)
        case nodes.Test(name=name, node=inner) if name in _DEFINED:
            yield from _walk(inner, False)
        case nodes.CondExpr(test=test, expr1=one, expr2=other):
            yield from _walk(test, certain)
            yield from _walk_all([each for each in (one, other) if each is not None], False)
        case nodes.If(test=test):
            yield from _walk(test, certain)
            yield from _walk_all([*node.body, *node.elif_, *node.else_], False)
        case nodes.For(iter=items):
            yield from _walk(items, certain)
            yield from _walk_all([*node.body, *node.else_], False)
        case nodes.And(left=left, right=right) | nodes.Or(left=left, right=right):
            yield from _walk(left, certain)
            yield from _walk(right, False)
        case nodes.Compare(expr=nodes.Const(value=str() as key), ops=[operand]) if operand.op in (
            "in",
            "notin",
        ) and isinstance(operand.expr, nodes.Name):
            yield Reference((operand.expr.name, key), node.lineno, certain=False)
        case _:
            yield from _walk_all(node.iter_child_nodes(), certain)


def _walk_all(parts: "Iterable[nodes.Node]", certain: bool) -> Iterator[Reference]:
    for part in parts:
        yield from _walk(part, certain)


def _path(node: "nodes.Node", certain: bool) -> Iterator[Reference]:
    """Yield the reference that a chain of fields is, and those in its brackets."""
    from jinja2 import nodes

    names: list[str] = []
    line = node.lineno
    while True:
        match node:
            case nodes.Getattr(node=inner, attr=name):
                names.append(name)
                node = inner
            case nodes.Getitem(node=inner, arg=nodes.Const(value=str() as name)):
                names.append(name)
                node = inner
            case nodes.Getitem(node=inner, arg=key):
                names.clear()
                yield from _walk(key, certain)
                node = inner
            case nodes.Name(name=name):
                yield Reference((name, *reversed(names)), line, certain)
                return
            case _:
                yield from _walk(node, certain)
                return


def in_condition(text: str) -> list[Reference]:
    """Return the references of a condition that can be parsed."""
    return list(_walk_condition(syntax.parse(text), True, frozenset()))


def _walk_condition(
    node: syntax.SyntaxNode, certain: bool, local: frozenset[str]
) -> Iterator[Reference]:
    """Yield the references in a part of a condition. `local` are the variables of macros."""
    parts: Iterable[syntax.SyntaxNode] = ()
    match node:
        case syntax.Name(name) if name not in local:
            yield Reference((name,), certain=certain)
        case syntax.Path(operand, steps):
            names: list[str] = []
            for step in steps:
                match step:
                    case syntax.FieldAccess(name) | syntax.Index(syntax.Constant(str() as name)):
                        names.append(name)
                    case _:
                        break
            if isinstance(operand, syntax.Name):
                if operand.name not in local:
                    yield Reference((operand.name, *names), certain=certain)
            else:
                yield from _walk_condition(operand, certain, local)
            for step in steps:
                yield from _walk_step(step, certain, local)
        case syntax.Has(syntax.Name(name), field) if name not in local:
            yield Reference((name, field), certain=False)
        case syntax.Has(operand):
            yield from _walk_condition(operand, certain, local)
        case syntax.Chain(syntax.Constant(str() as key), (("in", syntax.Name(name)),)):
            yield Reference((name, key), certain=False)
        case syntax.Chain(first, rest):
            parts = (first, *(operand for _, operand in rest))
        case syntax.And(operands) | syntax.Or(operands):
            # The other operands may decide, whatever this one is.
            parts, certain = operands, False
        case syntax.Conditional(branches, otherwise):
            yield from _walk_condition(branches[0][0], certain, local)
            parts = [*[part for branch in branches for part in branch][1:], otherwise]
            certain = False
        case syntax.Not(operand) | syntax.Negative(operand):
            parts = (operand,)
        case syntax.ListLiteral(items):
            parts = items
        case syntax.MapLiteral(entries):
            parts = [part for entry in entries for part in entry]
        case syntax.Call(_, arguments):
            parts = arguments
    for part in parts:
        yield from _walk_condition(part, certain, local)


def _walk_step(step: syntax.Step, certain: bool, local: frozenset[str]) -> Iterator[Reference]:
    match step:
        case syntax.Index(key):
            yield from _walk_condition(key, certain, local)
        case syntax.MethodCall(_, arguments):
            for argument in arguments:
                yield from _walk_condition(argument, certain, local)
        case syntax.Loop(_, variable, test, result):
            for part in (test, result):
                if part is not None:
                    yield from _walk_condition(part, False, local | {variable})
