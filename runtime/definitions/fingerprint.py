"""Fingerprints: detect that the code of a workflow has changed since its runs were started.

The fingerprint of a function is a hash of its syntax tree. Comments, formatting, docstrings, its
name and its decorators do not count, and neither does the version of Python. A function whose
source cannot be read has no fingerprint.
"""

import ast
import inspect
import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from textwrap import dedent
from typing import Any

SIZE = 8
_FUNCTIONS = (ast.AsyncFunctionDef, ast.FunctionDef)
_IGNORED = frozenset({"ctx", "kind", "type_comment"})
"""Fields that repeat other fields, or that are comments."""


def of_function(function: Callable[..., Any]) -> bytes | None:
    """Return the fingerprint of a function, or None if its source cannot be read."""
    tree = _tree(function)
    if tree is None:
        return None
    tree.name, tree.decorator_list = "", []
    return _hash("\n".join(_lines(tree)))


def of_definition(definition: Any) -> bytes:
    """Return the fingerprint of a value made of strings, numbers, lists and mappings."""
    text = json.dumps(definition, sort_keys=True, default=lambda other: type(other).__name__)
    return _hash(text)


def _hash(text: str) -> bytes:
    return sha256(text.encode(errors="surrogatepass")).digest()[:SIZE]


def _tree(function: Callable[..., Any]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        (tree,) = ast.parse(dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    name = getattr(inspect.unwrap(function), "__name__", None)
    # Another name means that the file has changed since it was imported.
    return tree if isinstance(tree, _FUNCTIONS) and tree.name == name else None


def _lines(node: Any) -> Iterator[str]:
    """Yield the lines of a syntax tree as text. Empty fields are left out, because later versions
    of Python have fields that earlier versions do not have."""
    if isinstance(node, ast.Constant):
        yield f"{type(node.value).__name__} {node.value!r}"
        return
    yield type(node).__name__
    for name, value in ast.iter_fields(node):
        if name in _IGNORED or value is None:
            continue
        parts = value if isinstance(value, list) else [value]
        if name == "body" and isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            parts = _without_docstring(parts)
        elif isinstance(node, ast.JoinedStr):
            parts = _joined(parts)
        if parts:
            yield f".{name}"
        for each in parts:
            if isinstance(each, ast.AST):
                yield from _lines(each)
            else:
                yield repr(each)
    yield "end"


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0].value if isinstance(body[0], ast.Expr) else None
    documented = isinstance(first, ast.Constant) and isinstance(first.value, str)
    return body[1:] if documented else body


def _joined(values: list[ast.expr]) -> list[ast.expr]:
    """Return the parts of an f-string with adjacent literals joined. Versions of Python divide the
    literals differently."""
    parts: list[ast.expr] = []
    for each in values:
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            last = parts[-1] if parts else None
            if isinstance(last, ast.Constant):
                parts[-1] = ast.Constant(str(last.value) + each.value)
                continue
            if not each.value:
                continue
        parts.append(each)
    return parts
