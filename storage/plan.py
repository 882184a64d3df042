"""Plans: turn values of a declared type into native values (`lower`) and back (`lift`), and read
them from JSON that people or other programs write (`read`), whose form is in `schema`.

One builder per kind of type. `lower` and `lift` check instead of converting: they raise `Misfit`
unless lifting what was lowered gives the same value of the same type. `read` converts: it makes a
`datetime` of a text and an instance of an object. `Lookup` finds the plans of parts.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import date
from enum import Enum
from itertools import repeat
from operator import itemgetter
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from keyrun.storage.json_form import PARSERS, from_json, parse, to_json
from keyrun.storage.json_schema import Schema, Schemas, any_of, array_of, constants
from keyrun.storage.misfit import Misfit, Unsupported, a, at_index, at_key, at_member, name_of
from keyrun.storage.native import canonical

Hook = Callable[[Any], Any]


class TypePlan(NamedTuple):
    """The functions for one declared type."""

    lower: Hook
    lift: Hook
    read: Hook
    schema: Callable[[Schemas], Schema]


Lookup = Callable[[Any], TypePlan]


def keep(value: Any) -> Any:
    """Return the value unchanged: the hook for a value without a declared type."""
    return value


def untyped_plan(inspect: Hook) -> TypePlan:
    """Return the plan for values without a declared type. `inspect` is as in `native_plan`."""
    return TypePlan(inspect, keep, from_json, lambda _: {})


def native_plan(declared: Any, allowed: Collection[type], inspect: Hook) -> TypePlan:
    """Return the plan for values that are native already. `inspect` returns them, or raises if a
    value inside cannot be stored."""

    def check(value: Any) -> Any:
        if type(value) not in allowed:
            raise unexpected(declared, value)
        return value

    def read(data: Any) -> Any:
        kind = type(data)
        if kind is str and str not in allowed:
            return _read_text(declared, allowed, data)
        if kind is int and allowed == _FLOAT:
            return float(data)
        value = from_json(data)
        if type(value) is list and list not in allowed and tuple in allowed:
            value = tuple(value)
        return check(value)

    members = get_args(declared) if get_origin(declared) in (Union, UnionType) else [declared]
    if not allowed:
        members = []
    return TypePlan(
        check if inspect is keep else lambda value: inspect(check(value)),
        check,
        read,
        lambda schemas: schemas.native(members),
    )


_FLOAT = frozenset({float, int, bool})


def _read_text(declared: Any, allowed: Collection[type], text: str) -> Any:
    """Return the value of a text at a place that takes no text."""
    kinds = [kind for kind in PARSERS if kind in allowed]
    if declared is date:
        kinds = [date]
    if not kinds:
        raise unexpected(declared, text)
    for kind in kinds:
        try:
            return parse(kind, text)
        except Misfit:
            if kind is kinds[-1]:
                raise
    raise AssertionError


def enum_plan(declared: type[Enum], inspect: Hook) -> TypePlan:
    """Return the plan for enums: members by value."""

    def lower(value: Any) -> Any:
        if type(value) is not declared:
            raise unexpected(declared, value)
        plain = value._value_
        if declared(plain) is not value or plain != plain:
            raise Misfit(f"{value!r} cannot be found by its value; give it another value")
        return inspect(plain)

    def lift(plain: Any) -> Any:
        try:
            member = declared(plain)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # _missing_ may raise anything
            raise Misfit(f"no member of {name_of(declared)} has the stored value") from error
        if type(member._value_) is not type(plain):
            raise Misfit(f"no member of {name_of(declared)} has the stored value")
        return member

    def read(data: Any) -> Any:
        value = from_json(data)
        for member in declared:
            plain = member._value_
            if plain == value and type(plain) is type(value):
                return member
            if type(value) is str and type(plain) in PARSERS:
                with suppress(Misfit):
                    if parse(type(plain), value) == plain:
                        return member
        names = ", ".join(repr(to_json(member._value_)) for member in declared)
        raise Misfit(f"expected one of {names}, got {data!r}")

    return TypePlan(lower, lift, read, lambda _: constants(member._value_ for member in declared))


def literal_plan(declared: Any, lookup: Lookup) -> TypePlan:
    """Return the plan of a Literal whose members are all native, or all of one Enum."""
    choices = get_args(declared)
    allowed = {(type(constant), constant) for constant in choices}
    enums = {type(constant) for constant in choices if isinstance(constant, Enum)}
    if enums and (len(enums) > 1 or any(kind not in enums for kind, _ in allowed)):
        raise Unsupported(
            f"cannot store {name_of(declared)}: it mixes an Enum with other constants"
        )
    members = lookup(enums.pop()) if enums else untyped_plan(keep)
    plain = [each._value_ if isinstance(each, Enum) else each for each in choices]

    def check(value: Any) -> Any:
        try:
            if (type(value), value) in allowed:
                return value
        except TypeError:  # an unhashable value is not allowed
            pass
        raise unexpected(declared, value)

    return TypePlan(
        lambda value: members.lower(check(value)),
        lambda data: check(members.lift(data)),
        lambda data: check(members.read(data)),
        lambda _: constants(plain),
    )


def sequence_plan(declared: Any, allowed: Collection[type], lookup: Lookup) -> TypePlan:
    """Return the plan for list[T], Sequence[T] and tuple[T, ...]."""
    inner = lookup(get_args(declared)[0])

    def through(hook: Hook) -> Hook:
        def walk(value: Any) -> Any:
            kind = type(value)
            if kind not in allowed:
                raise unexpected(declared, value)
            items = _each(value, repeat(hook))
            return items if kind is list else tuple(items)

        return walk

    def read(data: Any) -> Any:
        items = _read_items(declared, data, inner)
        return items if list in allowed else tuple(items)

    return TypePlan(through(inner.lower), through(inner.lift), read, _array_of(inner))


def set_plan(declared: Any, allowed: Collection[type], lookup: Lookup) -> TypePlan:
    """Return the plan for set[T] as a list and frozenset[T] as a tuple. They are in the order of
    the bytes of the members, because the order of a set differs from process to process."""
    inner = lookup((*get_args(declared), Any)[0])

    def lower(value: Any) -> Any:
        kind = type(value)
        if kind not in allowed:
            raise unexpected(declared, value)
        members = []
        for member in value:
            try:
                lowered = inner.lower(member)
                members.append((canonical(lowered), lowered))
            except Misfit as misfit:
                raise misfit.inside(at_member(member)) from None
        members.sort(key=itemgetter(0))
        return (tuple if kind is frozenset else list)(lowered for _, lowered in members)

    def lift(data: Any) -> Any:
        kind: Any = set if type(data) is list else frozenset if type(data) is tuple else None
        if kind not in allowed:
            raise unexpected(declared, data)
        value = kind(_each(data, repeat(inner.lift)))
        if len(value) != len(data):
            raise Misfit(f"two members of the stored {kind.__name__} are equal")
        return value

    def read(data: Any) -> Any:
        return (set if set in allowed else frozenset)(_read_items(declared, data, inner))

    return TypePlan(lower, lift, read, _array_of(inner))


def tuple_plan(declared: Any, lookup: Lookup) -> TypePlan:
    """Return the plan for tuple[A, B]: one type per element."""
    inner = [lookup(argument) for argument in get_args(declared)]

    def through(hooks: Sequence[Hook]) -> Hook:
        def walk(value: Any) -> Any:
            if type(value) is not tuple:
                raise unexpected(declared, value)
            if len(value) != len(hooks):
                raise Misfit(f"expected {name_of(declared)}, got a tuple of {len(value)}")
            return tuple(_each(value, hooks))

        return walk

    def read(data: Any) -> Any:
        items = _items_of(declared, data)
        if len(items) != len(inner):
            raise Misfit(f"expected {name_of(declared)}, got an array of {len(items)}")
        return tuple(_each(items, [plan.read for plan in inner]))

    lower, lift = ([getattr(plan, name) for plan in inner] for name in ("lower", "lift"))

    def schema(schemas: Schemas) -> Schema:
        return array_of(*(plan.schema(schemas) for plan in inner))

    return TypePlan(through(lower), through(lift), read, schema)


def mapping_plan(declared: Any, lookup: Lookup) -> TypePlan:
    """Return the plan for dict[str, T]. Keys may also be of a type that is lowered to str, such as
    a StrEnum."""
    keys, items = (lookup(argument) for argument in get_args(declared))

    def through(key_hook: Hook, item_hook: Hook, *, lowering: bool) -> Hook:
        def walk(value: Any) -> Any:
            if type(value) is not dict:
                raise unexpected(declared, value)
            result = {}
            for key, item in value.items():
                try:
                    new_key = key_hook(key)
                    if lowering and type(new_key) is not str:
                        raise Misfit(f"this key is {a(type(key))}, and keys must be str")
                    result[new_key] = item_hook(item)
                except Misfit as misfit:
                    raise misfit.inside(at_key(key)) from None
            return result

        return walk

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise unexpected(declared, data)
        return through(keys.read, items.read, lowering=False)(data.get("$dict", data))

    return TypePlan(
        through(keys.lower, items.lower, lowering=True),
        through(keys.lift, items.lift, lowering=False),
        read,
        lambda schemas: {
            "type": "object",
            "propertyNames": keys.schema(schemas),
            "additionalProperties": items.schema(schemas),
        },
    )


def optional_plan(inner: TypePlan) -> TypePlan:
    """Return the plan for T | None, for a T that is never lowered to None."""
    lower, lift, read, schema = inner
    return TypePlan(
        lambda value: None if value is None else lower(value),
        lambda data: None if data is None else lift(data),
        lambda data: None if data is None else read(data),
        lambda schemas: any_of([schema(schemas), {"type": "null"}]),
    )


def union_plan(declared: Any, lookup: Lookup) -> TypePlan:
    """Return the plan of `A | B`: it stores the name of the member that fits, and the value."""
    members = {_tag(member): lookup(member) for member in get_args(declared)}
    if len(members) != len(get_args(declared)):
        raise Unsupported(
            f"cannot store {name_of(declared)}: two of its members have the same name"
        )

    def lower(value: Any) -> Any:
        misfits = []
        for name, member in members.items():
            try:
                return [name, member.lower(value)]
            except Unsupported:
                raise
            except Misfit as misfit:
                misfits.append(misfit)
        # Report the fault of the member whose check got furthest.
        furthest = max(misfits, key=lambda misfit: misfit.depth)
        raise furthest if furthest.depth else unexpected(declared, value)

    def lift(data: Any) -> Any:
        member = None
        if type(data) is list and len(data) == 2 and type(data[0]) is str:
            member = members.get(data[0])
        if member is None:
            raise Misfit(f"what is stored is no member of {name_of(declared)}")
        return member.lift(data[1])

    def read(data: Any) -> Any:
        misfits = []
        if type(data) is list and len(data) == 2 and type(data[0]) is str and data[0] in members:
            # The form that is stored, which answers show.
            try:
                return members[data[0]].read(data[1])
            except Misfit as misfit:
                misfits.append(misfit.inside(at_index(1)))
        for member in members.values():
            try:
                return member.read(data)
            except Misfit as misfit:
                misfits.append(misfit)
        furthest = max(misfits, key=lambda misfit: misfit.depth)
        if furthest.depth:
            raise furthest
        raise Misfit(f"expected {name_of(declared)}, got {data!r}")

    def schema(schemas: Schemas) -> Schema:
        forms = {name: member.schema(schemas) for name, member in members.items()}
        named = (array_of({"const": name}, form) for name, form in forms.items())
        return any_of([*forms.values(), *named])

    return TypePlan(lower, lift, read, schema)


def _array_of(inner: TypePlan) -> Callable[[Schemas], Schema]:
    return lambda schemas: {"type": "array", "items": inner.schema(schemas)}


def _items_of(declared: Any, data: Any) -> list[Any]:
    """Return the items of a JSON array."""
    if type(data) is dict and data.keys() == {"$tuple"}:
        data = data["$tuple"]
    if type(data) is not list:
        raise Misfit(f"expected an array for {name_of(declared)}, got {data!r}")
    items: list[Any] = data
    return items


def _read_items(declared: Any, data: Any, inner: TypePlan) -> list[Any]:
    return _each(_items_of(declared, data), repeat(inner.read))


def _tag(member: Any) -> str:
    # The tag is stored, so it must not contain the constants of a Literal, which may change.
    return "Literal" if get_origin(member) is Literal else name_of(member)


def _each(values: Iterable[Any], hooks: Iterable[Hook]) -> list[Any]:
    done: list[Any] = []
    try:
        for value, hook in zip(values, hooks, strict=False):
            done.append(hook(value))
    except Misfit as misfit:
        raise misfit.inside(at_index(len(done))) from None
    return done


def unexpected(declared: Any, value: Any) -> Misfit:
    """Return the error for a value that is not of the declared type."""
    kind = type(value)
    cls = get_origin(declared) or declared
    if cls in kind.__mro__:
        return Misfit(
            f"expected exactly {name_of(declared)}, got its subclass {kind.__name__}, which would "
            f"come back as {cls.__name__}; declare {kind.__name__} here"
        )
    return Misfit(f"expected {name_of(declared)}, got {a(kind) if value is not None else None}")
