"""Field docs: what the docstrings below the fields of a class say. Only the generators of the
OpenAPI description and of the reference need them, because they read source files."""

import ast
import inspect
import re
from functools import cache
from textwrap import dedent

_PYTHON = re.compile(r"\b(None|True|False)\b")
_JSON = {"None": "`null`", "True": "`true`", "False": "`false`"}
_TIMES = {
    ", in seconds since the epoch": "",
    " Times are seconds since the epoch.": "",
    "a `datetime` with a time zone, or seconds since the epoch": "a time",
    "A `datetime` with a time zone, or seconds since the epoch": "A time",
}
"""What docstrings say about times, and what holds for JSON."""


def json_prose(text: str) -> str:
    """Return a text of a docstring for readers of JSON, who see `null` for None, and times in
    RFC 3339."""
    for said, instead in _TIMES.items():
        text = text.replace(said, instead)
    parts = text.split("`")
    parts[::2] = [_PYTHON.sub(lambda match: _JSON[match[0]], each) for each in parts[::2]]
    return "`".join(parts)


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the docstrings of the fields and properties of a class, in one line each, by name."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if each.__module__.startswith("keyrun."):
            found |= _own(each)
    return found


def _own(cls: type) -> dict[str, str]:
    body = ast.parse(dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {
        name: inspect.getdoc(each.fget) or ""
        for name, each in vars(cls).items()
        if isinstance(each, property)
    }
    for field, below in zip(body.body, body.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[field.target.id] = str(below.value.value)
    return {
        name: json_prose(" ".join(text.partition("\n\n")[0].split()))
        for name, text in found.items()
    }
