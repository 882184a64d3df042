"""The sandbox that templates run in: values and a few of their methods, and nothing of Python.

Jinja2's own sandbox refuses what is known to be dangerous. This one allows what is known to be
harmless, on top of it: items of mappings and lists, declared fields of attrs classes and
dataclasses, and the methods listed here.
"""

import dataclasses
import re
from collections.abc import Generator, ItemsView, KeysView, Mapping, ValuesView
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NoReturn
from uuid import UUID

import attrs
from jinja2 import StrictUndefined, Undefined
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from keyrun.flows import jsons, meter
from keyrun.flows.meter import LARGEST


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


METHODS: dict[type, frozenset[str]] = {
    str: _words(
        "upper lower title capitalize strip lstrip rstrip split rsplit splitlines replace "
        "startswith endswith removeprefix removesuffix find count join"
    ),
    dict: _words("get items keys values"),
    list: _words("index count"),
    date: _words("isoformat year month day hour minute second weekday"),
    LoopContext: _words("index index0 revindex revindex0 first last length"),
}
"""What a template may use of a value besides its items."""

FILTERS = _words(
    "abs batch capitalize count d default dictsort first float groupby int items join last length "
    "list lower map max min reject rejectattr reverse round select selectattr slice sort string "
    "sum title trim truncate unique upper urlencode wordcount"
)
"""Filters of Jinja2 that are taken as they are."""
_WIDE = re.compile(r"%[^a-zA-Z%]*(?:\d{4,}|\*)")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of all templates."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined, keep_trailing_newline=True, finalize=_shown)
        self.globals = {"range": self.globals["range"]}
        self.filters = {name: self.filters[name] for name in FILTERS}
        self.filters |= {"tojson": _to_json, "format": _format, "replace": _replace}
        self.filters = {name: meter.counted(each) for name, each in self.filters.items()}
        self.filters |= meter.INNER
        # Those that are named for what they look for in Python have no use here.
        for name in ("callable", "sameas", "filter", "test", "escaped"):
            del self.tests[name]

    def getattr(self, obj: Any, attribute: str) -> Any:
        """What is behind a dot: an item of that name comes before any method."""
        if isinstance(obj, Undefined):
            str(obj)  # raises what it stands for
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may use this."""
        if attr.startswith("_"):
            return False
        for kind, names in METHODS.items():
            if isinstance(obj, kind) and attr in names:
                return True
        return not isinstance(obj, type) and attr in _fields(type(obj))

    def is_safe_callable(self, obj: Any) -> bool:
        """Whether a template may call this: a method from the list, or a global."""
        if obj is self.globals["range"]:
            return True
        owner = getattr(obj, "__self__", None)
        return isinstance(owner, str | dict | list | date) and self.is_safe_attribute(
            owner, getattr(obj, "__name__", "_"), obj
        )

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """What a template gets for what it may not use."""
        return self.undefined(
            f"a template may not use {attribute!r} of a {type(obj).__name__}",
            obj=obj,
            name=attribute,
            exc=SecurityError,
        )

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call what may be called."""
        if isinstance(__obj, Undefined):
            str(__obj)  # raises what it stands for
        if not __self.is_safe_callable(__obj):
            _refuse(f"a template may not call {getattr(__obj, '__name__', type(__obj).__name__)}")
        meter.look(getattr(__obj, "__self__", None))
        if getattr(__obj, "__name__", "") == "replace":
            return _replace(getattr(__obj, "__self__", ""), *args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Operators that can make much of little."""
        match operator:
            case "**":
                if abs(right) > 64 or abs(left) > 2**32:
                    _refuse(f"{left} ** {right} is too large for a template")
            case "*":
                for text, times in ((left, right), (right, left)):
                    if isinstance(text, str | list | tuple) and len(text) * times > LARGEST:
                        _refuse(f"'*' would make {len(text) * times:,} of {len(text):,}")
            case "%" if isinstance(left, str):
                _refuse("'%' of text is not for templates; use ~ or the format filter")
        return meter.make(super().call_binop(context, operator, left, right))


def as_value(value: Any) -> Any:
    """What an expression came to, with nothing in it that only Python or Jinja2 knows."""
    match value:
        case str() | None | bool() | int() | float() | bytes() | date() | Decimal() | UUID():
            return value
        case Undefined():
            return str(value)  # raises what it stands for
        case dict():
            return {as_value(name): as_value(item) for name, item in value.items()}
        case tuple():
            return tuple(map(as_value, value))
        case list() | range() | Generator() | KeysView() | ValuesView() | ItemsView() | reversed():
            return list(map(as_value, value))
        case timedelta() | Enum():
            return value
    if _fields(type(value)):
        return value
    if callable(value):
        raise TypeError("it gives a method and not a value; call it with ()")
    raise TypeError(f"it gives a {type(value).__name__}, which is no value")


def _shown(value: Any) -> Any:
    """What stands in the text for an expression."""
    return meter.look(as_value(value))


def _replace(value: Any, old: Any, new: Any, count: int = -1) -> str:
    text, old, new = str(value), str(old), str(new)
    size = text.count(old) * len(new)
    if size > LARGEST:
        _refuse(f"replace would make {size:,} letters of {len(text):,}")
    return text.replace(old, new, count)


def _format(text: str, *args: Any, **kwargs: Any) -> str:
    if _WIDE.search(text):
        _refuse("the widths of a format are at most 999")
    return str(text % (kwargs or args))


def _to_json(value: Any, indent: int | None = None) -> str:
    """For a body or a prompt, where Jinja2's own would escape for HTML."""
    return jsons.dumps(as_value(value), indent=indent)


def _fields(kind: type) -> frozenset[str]:
    if attrs.has(kind):
        return frozenset(field.name for field in attrs.fields(kind))
    if dataclasses.is_dataclass(kind):
        return frozenset(field.name for field in dataclasses.fields(kind))
    return frozenset()


def _refuse(why: str) -> NoReturn:
    raise SecurityError(why)
