"""The sandbox of templates: they can use values and a few methods, and nothing else of Python.

Jinja2's own sandbox rejects what is known to be dangerous. This one adds a list of what is allowed:
items of mappings and lists, declared fields of attrs classes and dataclasses, and the methods,
filters, tests and operators that are listed here. The meter charges for all of them.
"""

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from jinja2 import StrictUndefined, Undefined
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing, object_type_repr

from keyrun.flows import filters, meter
from keyrun.flows.fields import fields_of
from keyrun.flows.meter import LARGEST, refuse


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
"""The methods and attributes that a template may use, by type."""

_NUMBERS = (int, float, Decimal)
_SEQUENCES = (str, bytes, list, tuple)


class Missing(StrictUndefined):
    """A value that is not there. Every use of it raises an error."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        if self._undefined_hint:
            return self._undefined_hint
        name = self._undefined_name
        if self._undefined_obj is missing:
            return f"there is no name {name!r}"
        owner = object_type_repr(self._undefined_obj).removesuffix(" object")
        what = {"dict": "mapping", "str": "text"}.get(owner, owner)
        return f"there is no {name!r} in the {what}; use the filter default if it may be missing"


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of all templates."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(undefined=Missing, keep_trailing_newline=True, finalize=_shown)
        self.globals = {"range": self.globals["range"]}
        self.filters = dict(filters.FILTERS)
        self.tests = dict(filters.TESTS)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return the item or attribute behind a dot. An item takes precedence over a method."""
        if isinstance(obj, Undefined):
            str(obj)  # raises its error
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        meter.charge(1)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item or a field of a value. Filters use this to look up attributes."""
        meter.charge(1)
        return super().getitem(obj, meter.key(argument))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may use an attribute."""
        if attr.startswith("_"):
            return False
        for kind, names in METHODS.items():
            if isinstance(obj, kind) and attr in names:
                return True
        return not isinstance(obj, type) and attr in fields_of(type(obj))

    def is_safe_callable(self, obj: Any) -> bool:
        """Return whether a template may call an object: a listed method, or `range`."""
        if obj is self.globals["range"]:
            return True
        owner = getattr(obj, "__self__", None)
        return isinstance(owner, str | dict | list | date) and self.is_safe_attribute(
            owner, getattr(obj, "__name__", "_"), obj
        )

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """Return an undefined value that names the forbidden attribute."""
        return self.undefined(
            f"a template may not use {attribute!r} of a {type(obj).__name__}",
            obj=obj,
            name=attribute,
            exc=SecurityError,
        )

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call an object that a template may call."""
        if isinstance(__obj, Undefined):
            str(__obj)  # raises its error
        if not __self.is_safe_callable(__obj):
            refuse(f"a template may not call {getattr(__obj, '__name__', type(__obj).__name__)}")
        meter.charge(3 + (len(args) + len(kwargs)) // 4)
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        meter.look(owner)
        match owner, name:
            case str(), "replace":
                return filters.replace(owner, *args, **kwargs)
            case str(), "join" if len(args) == 1:
                return filters.joined(owner, filters.items_of(args[0]), _a_text)
            case str(), "strip" | "lstrip" | "rstrip":
                args = tuple(map(filters.few, args))
            case str(), "rsplit":
                # From the right, Python may compare the whole separator at every character.
                for each in (*args, *kwargs.values()):
                    if isinstance(each, str):
                        meter.charge(len(owner) * len(each) // 256)
            case dict(), "get" if args:
                meter.key(args[0])
            case list(), "index" | "count" if args:
                # The same work as a search.
                meter.charge(len(owner) * (1 + meter.weigh(args[0])) // 16)
            case _:
                for each in args:
                    meter.weigh(each)
        return meter.make(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator, unless the result could be very large."""
        numbers = isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS)
        if numbers:
            meter.number(left), meter.number(right)
        elif operator == "**":
            refuse("the operator '**' requires numbers")
        match operator:
            case "**" if abs(right) > 64 or abs(left) > 2**32:
                refuse(f"{left} ** {right} is too large for a template")
            case "*" if not numbers:
                for items, times in ((left, right), (right, left)):
                    if isinstance(items, _SEQUENCES) and len(items) * times > LARGEST:
                        refuse(f"'*' would turn {len(items):,} items into {len(items) * times:,}")
            case "+" if isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES):
                if len(left) + len(right) > LARGEST:
                    refuse(f"a value in it has more than {LARGEST:,} characters or items")
            case "%" if isinstance(left, str | bytes):
                refuse("'%' is not allowed for text; use '~' or the filter format")
        return meter.number(meter.make(super().call_binop(context, operator, left, right)))


def _shown(value: Any) -> str:
    """Return the value of an expression as text."""
    shown: str = meter.look(filters.text(value))
    return shown


def _a_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"join requires text, got a {type(value).__name__}; use the filter join")
    return value
