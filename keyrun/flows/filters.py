"""The filters and tests of templates. Each charges the meter for its work.

Jinja2's own filters trust their arguments: `slice(30000000)` makes 30,000,000 lists of any input.
The filters here reject such arguments. They return lists and text, never generators, so that the
work is done, and charged, when the filter is called. They take the context, because Jinja2 would
otherwise evaluate them while it compiles a template, when no meter runs.
"""

import operator
import re
from collections.abc import (
    Callable,
    Generator,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    ValuesView,
)
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from math import ceil, floor
from typing import Any
from uuid import UUID

from jinja2 import Undefined, pass_context
from jinja2 import filters as jinja
from jinja2 import tests as jinja_tests
from jinja2.runtime import Context
from jinja2.utils import url_quote

from keyrun.flows import jsons, meter
from keyrun.flows.fields import fields_of
from keyrun.flows.meter import LARGEST, SINGLE, charge, look, make, refuse, weigh

DIGITS = 1000
"""Characters of a number that is given as text."""
PLACES = 300
"""Digits before or behind the point that `round` accepts."""
WIDEST = 999
"""The largest width and precision in `format`."""
DEEPEST_INDENT = 16
"""The largest indent of `tojson`."""
_PATH = 200
"""Characters of an attribute, as in `sort(attribute="a.b")`."""
_CHARS = 100
"""Characters that `trim` and `strip` can remove."""
_DIRECTIVE = re.compile(
    r"%(?:\((?P<name>[^()]*)\))?(?P<flags>[#0\- +]*)(?P<width>\*|\d*)"
    r"(?:\.(?P<precision>\*|\d*))?[hlL]?(?P<kind>.?)",
    re.DOTALL,
)


def as_value(value: Any) -> Any:
    """Return the value of an expression as plain data. Raise `TypeError` for other objects."""
    match value:
        case str() | None | bool() | int() | float() | bytes() | date() | Decimal() | UUID():
            return value
        case Undefined():
            return str(value)  # raises its error
        case dict():
            charge(1 + len(value) // 4)
            return {as_value(name): as_value(item) for name, item in value.items()}
        case tuple():
            charge(1 + len(value) // 4)
            return tuple(map(as_value, value))
        case list() | range() | KeysView() | ValuesView() | ItemsView():
            charge(1 + len(value) // 4)
            return list(map(as_value, value))
        case Generator() | reversed():
            return list(map(as_value, items_of(value)))
        case timedelta() | Enum():
            return value
    if fields_of(type(value)):
        return value
    if callable(value):
        raise TypeError("the expression gives a method, not a value; call it with ()")
    raise TypeError(f"the expression gives a {type(value).__name__}, not a value")


def text(value: Any) -> str:
    """Return a value as text."""
    if isinstance(value, str):
        return value
    value = as_value(value)
    weigh(value)
    # The text of a decimal has an exponent, so it is short for large numbers, too.
    made: str = make(str(value if isinstance(value, Decimal) else meter.number(value)))
    return made


def items_of(value: Any) -> list[Any]:
    """Return the items of a value."""
    found: list[Any] = make(list(islice(value, LARGEST + 1)))
    return found


def compare_all(left: Any, *rest: Any) -> bool:
    """Return the result of a chain of comparisons: a value, then operators and values."""
    for sign, right in zip(rest[::2], rest[1::2], strict=True):
        charge(1)
        if not compare(sign, left, right):
            return False
        left = right
    return True


def compare(sign: str, left: Any, right: Any) -> bool:
    """Return the result of a comparison. `sign` is the operator as Jinja2 names it."""
    if sign in ("in", "notin"):
        _search(left, right)
        return (left in right) is (sign == "in")
    if isinstance(left, str | bytes) and isinstance(right, str | bytes):
        charge(min(len(left), len(right)) // 16)
    elif not {type(left), type(right)} & SINGLE:
        weigh(left)
    return bool(_SIGNS[sign](left, right))


_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
}


def _search(wanted: Any, place: Any) -> None:
    """Charge for the search of a value."""
    if isinstance(place, str | bytes):
        look(place)
        look(wanted)
    elif isinstance(place, dict | KeysView):
        meter.key(wanted)
    elif isinstance(place, list | tuple | ValuesView | ItemsView):
        each = len(wanted) if isinstance(wanted, str | bytes) else 16 * weigh(wanted)
        charge(len(place) * (1 + each // 16) // 16)
    elif isinstance(place, range) and type(wanted) is not int:
        charge(len(place) // 16)


def _path(attribute: Any) -> Any:
    if isinstance(attribute, str) and len(attribute) > _PATH:
        refuse(f"an attribute has at most {_PATH} characters")
    return meter.key(attribute)


def _keys(
    ctx: Context, items: list[Any], attribute: Any, case_sensitive: bool, default: Any = None
) -> list[Any]:
    """Return the keys by which items are compared. Charge for sorting them."""
    fold = None if case_sensitive else _folded
    find = jinja.make_attrgetter(
        ctx.environment, _path(attribute), postprocess=fold, default=default
    )
    return _weighed([find(item) for item in items])


def _folded(value: Any) -> Any:
    """Return the key of a value for a comparison that ignores case."""
    weigh(value)
    return value.lower() if isinstance(value, str) else value


def _weighed(keys: list[Any]) -> list[Any]:
    weight = sum(1 + weigh(key) for key in keys)
    charge(weight // 4 + weight * len(keys).bit_length() // 16)
    return keys


def _in_order(items: list[Any], keys: list[Any], *, reverse: bool = False) -> list[Any]:
    order = sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)
    return [items[at] for at in order]


def _sort(
    ctx: Context,
    value: Any,
    reverse: bool = False,
    case_sensitive: bool = False,
    attribute: Any = None,
) -> list[Any]:
    items = items_of(value)
    fold = None if case_sensitive else _folded
    find = jinja.make_multi_attrgetter(ctx.environment, _path(attribute), postprocess=fold)
    charge(len(items))
    return _in_order(items, _weighed([find(item) for item in items]), reverse=bool(reverse))


def _dictsort(
    ctx: Context,
    value: Any,
    case_sensitive: bool = False,
    by: str = "key",
    reverse: bool = False,
) -> list[Any]:
    if by not in ("key", "value"):
        raise ValueError("dictsort requires by='key' or by='value'")
    items = items_of(value.items())
    keys = _keys(ctx, items, 0 if by == "key" else 1, case_sensitive)
    return _in_order(items, keys, reverse=bool(reverse))


def _groupby(
    ctx: Context, value: Any, attribute: Any, default: Any = None, case_sensitive: bool = False
) -> list[Any]:
    items = items_of(value)
    charge(len(items))
    keys = _keys(ctx, items, attribute, case_sensitive, default)
    find = jinja.make_attrgetter(ctx.environment, attribute, default=default)
    groups: list[tuple[Any, list[Any]]] = []
    last: Any = None
    for at in sorted(range(len(items)), key=keys.__getitem__):
        if not groups or keys[at] != last:
            groups.append((find(items[at]), []))
            last = keys[at]
        groups[-1][1].append(items[at])
    return groups


def _unique(
    ctx: Context, value: Any, case_sensitive: bool = False, attribute: Any = None
) -> list[Any]:
    items = items_of(value)
    charge(len(items))
    seen: dict[Any, Any] = {}
    for key, item in zip(_keys(ctx, items, attribute, case_sensitive), items, strict=True):
        seen.setdefault(key, item)
    return list(seen.values())


def _extreme(choose: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(
        ctx: Context, value: Any, case_sensitive: bool = False, attribute: Any = None
    ) -> Any:
        items = items_of(value)
        if not items:
            return ctx.environment.undefined("an empty list has no least and no greatest item")
        keys = _keys(ctx, items, attribute, case_sensitive)
        return items[choose(range(len(items)), key=keys.__getitem__)]

    return extreme


def _sum(ctx: Context, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    items = items_of(value)
    if attribute is not None:
        find = jinja.make_attrgetter(ctx.environment, _path(attribute))
        charge(len(items))
        items = [find(item) for item in items]
    total = start
    for item in items:
        if isinstance(total, str | bytes | list | tuple):
            refuse("sum requires numbers")
        total = total + item
    return meter.number(total)


def _join(ctx: Context, value: Any, d: Any = "", attribute: Any = None) -> str:
    items = items_of(value)
    if attribute is not None:
        find = jinja.make_attrgetter(ctx.environment, _path(attribute))
        charge(len(items))
        items = [find(item) for item in items]
    return joined(text(d), items, text)


def joined(between: str, items: Iterable[Any], said: Callable[[Any], str]) -> str:
    """Join the texts of items. Fail as soon as the result is too long."""
    size, parts = 0, []
    for item in items:
        part = said(item)
        size += len(part) + len(between)
        if size - len(between) > LARGEST:
            refuse(f"a value in it has more than {LARGEST:,} characters or items")
        charge(1 + (len(part) + len(between)) // 16)
        parts.append(part)
    return between.join(parts)


def _map(ctx: Context, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
    if isinstance(value, Undefined):
        str(value)  # raises its error
    if args and not _is_name(args[0]):
        refuse("map requires the name of a filter")
    if not args:
        _path(kwargs.get("attribute"))
    do = jinja.prepare_map(ctx, args, kwargs)
    return [do(item) for item in meter.charged(items_of(value), 2)]


def _chosen(keep: bool, by_attribute: bool) -> Callable[..., list[Any]]:
    def choose(ctx: Context, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if by_attribute and args:
            _path(args[0])
        test = args[by_attribute : by_attribute + 1]
        if test and not _is_name(test[0]):
            refuse("select and reject require the name of a test")
        fits = jinja.prepare_select_or_reject(ctx, args, kwargs, bool, by_attribute)
        return [
            item for item in meter.charged(items_of(value), 1 + by_attribute) if fits(item) is keep
        ]

    return choose


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and len(name) < _PATH and "(" not in name


def _batch(ctx: Context, value: Any, linecount: int, fill_with: Any = None) -> list[Any]:
    _count(linecount, "batch")
    charge(linecount // 4)
    items = items_of(value)
    charge(len(items) // 4)
    return list(jinja.do_batch(items, linecount, fill_with))


def _slice(ctx: Context, value: Any, slices: int, fill_with: Any = None) -> list[Any]:
    charge(_count(slices, "slice"))
    return list(jinja.sync_do_slice(items_of(value), slices, fill_with))


def _count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        refuse(f"{name} requires a number from 1 to {LARGEST:,}")
    count: int = value
    return count


def _round(ctx: Context, value: Any, precision: int = 0, method: str = "common") -> Any:
    if not isinstance(precision, int) or abs(precision) > PLACES:
        refuse(f"round keeps at most {PLACES} digits, got {look(precision)!r:.50}")
    if method not in ("common", "ceil", "floor"):
        raise ValueError("the method of round must be 'common', 'ceil' or 'floor'")
    meter.number(value)
    if method == "common":
        return round(value, precision)
    factor = 10**precision
    return (ceil if method == "ceil" else floor)(value * factor) / factor


def _int(ctx: Context, value: Any, default: int = 0, base: int = 10) -> Any:
    return meter.number(jinja.do_int(_short(value), default, base))


def _float(ctx: Context, value: Any, default: float = 0.0) -> Any:
    return jinja.do_float(_short(value), default)


def _short(value: Any) -> Any:
    if isinstance(value, str | bytes) and len(value) > DIGITS:
        refuse(f"a number has at most {DIGITS:,} characters")
    return meter.number(value)


def _trim(ctx: Context, value: Any, chars: Any = None) -> str:
    return look(text(value)).strip(few(chars))  # type: ignore[no-any-return]


def few(chars: Any) -> Any:
    """Reject many characters to remove: each is compared with all characters of a text."""
    if isinstance(chars, str) and len(chars) > _CHARS:
        refuse(f"at most {_CHARS} characters can be removed from the ends of a text")
    return chars


def _of_text(change: Callable[[str], Any]) -> Callable[..., Any]:
    def changed(ctx: Context, value: Any) -> Any:
        return make(change(look(text(value))))

    return changed


def _truncate(
    ctx: Context,
    value: Any,
    length: int = 255,
    killwords: bool = False,
    end: str = "...",
    leeway: int | None = None,
) -> str:
    said = look(text(value))
    return jinja.do_truncate(ctx.environment, said, length, killwords, text(end), leeway)


def _urlencode(ctx: Context, value: Any) -> str:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return _quoted(value)
    pairs = value.items() if isinstance(value, Mapping) else value
    return joined(
        "&", (f"{_quoted(name, True)}={_quoted(item, True)}" for name, item in pairs), str
    )


def _quoted(value: Any, for_query: bool = False) -> str:
    said = value if isinstance(value, bytes) else text(value)
    quoted: str = make(url_quote(look(said), for_qs=for_query))
    return quoted


def _reverse(ctx: Context, value: Any) -> Any:
    return look(value)[::-1] if isinstance(value, str) else items_of(value)[::-1]


def _list(ctx: Context, value: Any) -> list[Any]:
    return items_of(value)


def _items(ctx: Context, value: Any) -> list[Any]:
    if isinstance(value, Undefined):
        str(value)  # raises its error
    return items_of(value.items())


def replace(value: Any, old: Any, new: Any, count: Any = None) -> str:
    """Replace text. Fail if the result would be too long."""
    said, old, new = look(text(value)), look(text(old)), text(new)
    if count is not None and not isinstance(count, int):
        raise TypeError(f"the count of replace must be a whole number, got {count!r:.50}")
    found = said.count(old) if count is None or count < 0 else min(count, said.count(old))
    size = len(said) + found * (len(new) - len(old))
    if size > LARGEST:
        refuse(f"replace would turn {len(said):,} characters into {size:,}")
    charge(size // 16)
    result: str = said.replace(old, new, -1 if count is None else count)
    return result


def _format(ctx: Context, value: Any, *args: Any, **kwargs: Any) -> str:
    """Format values as the operator `%` does."""
    if args and kwargs:
        raise ValueError("format requires values by position or by name, not both")
    return joined("", _filled(look(text(value)), args, kwargs), str)


def _filled(pattern: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[str]:
    at = used = 0
    for found in _DIRECTIVE.finditer(pattern):
        yield pattern[at : found.start()]
        at = found.end()
        if found["kind"] == "%":
            yield "%"
        elif found["name"] is not None:
            yield _directive(found, kwargs[found["name"]])
        elif used < len(args):
            used += 1
            yield _directive(found, args[used - 1])
        else:
            raise TypeError("the format requires more values")
    if used < len(args):
        raise TypeError("the format does not use all values")
    yield pattern[at:]


def _directive(found: re.Match[str], given: Any) -> str:
    width, precision, kind = found["width"], found["precision"], found["kind"]
    for size in (width, precision or ""):
        if size == "*" or len(size) > 3:
            refuse(f"the widths of a format must be numbers up to {WIDEST}")
    if kind in ("s", "r", "a"):
        given = look(text(given))
    elif not isinstance(given, str):
        given = meter.number(as_value(given))
        weigh(given)
    elif len(given) > 1:
        raise TypeError(f"the format %{kind} requires a number")
    point = "" if precision is None else f".{precision}"
    return f"%{found['flags'][:5]}{width}{point}{kind}" % (given,)


def _to_json(ctx: Context, value: Any, indent: int | None = None) -> str:
    """Return a value as JSON. The filter of Jinja2 would escape it for HTML."""
    value = as_value(value)
    weigh(value)
    if indent is None:
        made: str = make(jsons.dumps(value))
        return made
    if isinstance(indent, bool) or not isinstance(indent, int) or not 0 <= indent <= DEEPEST_INDENT:
        refuse(f"the indent of tojson must be 0 to {DEEPEST_INDENT}, got {look(indent)!r:.50}")
    return joined("", jsons.pieces(value, indent=indent), str)


def _default(ctx: Context, value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    return jinja.do_default(value, default_value, boolean)


def _with_environment(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, value: function(ctx.environment, value)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, value: function(value)


_TABLE: dict[str, Callable[..., Any]] = {
    "abs": lambda ctx, value: abs(meter.number(value)),
    "batch": _batch,
    "capitalize": _of_text(str.capitalize),
    "count": _plain(len),
    "d": _default,
    "default": _default,
    "dictsort": _dictsort,
    "first": _with_environment(jinja.sync_do_first),
    "float": _float,
    "format": _format,
    "groupby": _groupby,
    "int": _int,
    "items": _items,
    "join": _join,
    "last": _with_environment(jinja.do_last),
    "length": _plain(len),
    "list": _list,
    "lower": _of_text(str.lower),
    "map": _map,
    "max": _extreme(max),
    "min": _extreme(min),
    "reject": _chosen(False, False),
    "rejectattr": _chosen(False, True),
    "replace": lambda ctx, value, old, new, count=None: replace(value, old, new, count),
    "reverse": _reverse,
    "round": _round,
    "select": _chosen(True, False),
    "selectattr": _chosen(True, True),
    "slice": _slice,
    "sort": _sort,
    "string": _of_text(str),
    "sum": _sum,
    "title": _of_text(jinja.do_title),
    "tojson": _to_json,
    "trim": _trim,
    "truncate": _truncate,
    "unique": _unique,
    "upper": _of_text(str.upper),
    "urlencode": _urlencode,
    "wordcount": _of_text(jinja.do_wordcount),
    # Only `meter.install` can use these names.
    "compare()": lambda ctx, left, *rest: compare_all(left, *rest),
    "concat()": lambda ctx, parts: joined("", parts, text),
    "key()": lambda ctx, value: meter.key(value),
    "look()": lambda ctx, value: look(value),
    "make()": lambda ctx, value: make(value),
    "charged()": lambda ctx, items, each: meter.charged(items, each),
}


def _arithmetic(test: Callable[..., bool]) -> Callable[..., bool]:
    """Return a test that accepts numbers only. For text, `%` would format it."""

    def fits(ctx: Context, value: Any, *args: Any) -> bool:
        for each in (value, *args):
            if not isinstance(each, int | float | Decimal):
                raise TypeError(f"the test requires numbers, got a {type(each).__name__}")
            meter.number(each)
        return test(value, *args)

    return fits


def _comparing(sign: str) -> Callable[..., bool]:
    return lambda ctx, value, other: compare(sign, value, other)


_COMPARING = {
    "in": ("in",),
    "eq": ("eq", "equalto", "=="),
    "ne": ("ne", "!="),
    "lt": ("lt", "lessthan", "<"),
    "lteq": ("le", "<="),
    "gt": ("gt", "greaterthan", ">"),
    "gteq": ("ge", ">="),
}
_KINDS = frozenset(
    {
        *("boolean", "defined", "false", "float", "integer", "iterable", "mapping", "none"),
        *("number", "sequence", "string", "true", "undefined"),
    }
)
_JINJAS: dict[str, Any] = dict(jinja_tests.TESTS)
_TESTS: dict[str, Callable[..., Any]] = {
    **{name: _plain(_JINJAS[name]) for name in _KINDS},
    **{name: _comparing(sign) for sign, names in _COMPARING.items() for name in names},
    **{name: _arithmetic(_JINJAS[name]) for name in ("divisibleby", "even", "odd")},
    "lower": _of_text(str.islower),
    "upper": _of_text(str.isupper),
}


def _charged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Charge for the call and for its arguments."""

    def call(ctx: Context, *args: Any, **kwargs: Any) -> Any:
        charge(2 + (len(args) + len(kwargs)) // 4)
        return function(ctx, *args, **kwargs)

    return pass_context(call)


FILTERS = {name: _charged(each) for name, each in _TABLE.items()}
TESTS = {name: _charged(each) for name, each in _TESTS.items()}
