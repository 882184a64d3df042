"""Which plan belongs to which declared type.

What stands for another type, such as a NewType, is left to cattrs, which is only imported for that,
as what is about classes is for those. Untyped places are passed on as they are: an instance there
is refused by the packer and never comes back as a dict.
"""

import collections.abc as abc
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    Never,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    is_typeddict,
)
from uuid import UUID

import attrs

from keyrun.storage.misfit import Unsupported, name_of
from keyrun.storage.plan import (
    Hook,
    Plan,
    enum_plan,
    keep,
    literal_plan,
    mapping_plan,
    native_plan,
    optional_plan,
    sequence_plan,
    tuple_plan,
    union_plan,
)

if TYPE_CHECKING:
    from keyrun.storage.aliases import Aliases

# What may stand where a native type is declared: what typing allows, and it stays what it is.
_NATIVE: dict[Any, frozenset[type]] = {
    NoneType: frozenset({NoneType}),
    bool: frozenset({bool}),
    int: frozenset({int, bool}),
    float: frozenset({float, int, bool}),
    str: frozenset({str}),
    bytes: frozenset({bytes}),
    datetime: frozenset({datetime}),
    date: frozenset({date, datetime}),
    Decimal: frozenset({Decimal}),
    UUID: frozenset({UUID}),
    list: frozenset({list}),
    tuple: frozenset({tuple}),
    dict: frozenset({dict}),
    abc.MutableSequence: frozenset({list}),
    **dict.fromkeys((abc.Sequence, abc.Collection, abc.Iterable), frozenset({list, tuple})),
    **dict.fromkeys((abc.Mapping, abc.MutableMapping), frozenset({dict})),
}
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)


class Plans:
    """Finds plans. `inspect` gets every value at an untyped or native place when it is lowered."""

    def __init__(self, inspect: Hook = keep) -> None:
        self._inspect = inspect
        self._plans: dict[Any, Plan] = {}
        self._aliases: Aliases | None = None

    def plan(self, declared: Any) -> Plan:
        """The plan of a declared type; `Unsupported` if no value could be stored as one."""
        try:
            known = self._plans.get(declared)
        except TypeError:  # unhashable, such as Annotated[int, []]
            return self._find(declared)
        if known is None:
            known = self._plans[declared] = self._find(declared)
        return known

    def _find(self, declared: Any) -> Plan:
        origin = get_origin(declared) or declared
        if _is_untyped(declared):
            return Plan(self._inspect, keep)
        if declared is None:
            return self.plan(NoneType)
        if origin in (Union, UnionType):
            return self._find_union(declared)
        if origin is Literal:
            return literal_plan(declared, self.plan)
        if origin is Annotated:
            return self.plan(declared.__origin__)
        if isinstance(origin, type):
            return self._find_class(declared, origin)
        if self._aliases is None:
            from keyrun.storage.aliases import Aliases

            self._aliases = Aliases(self.plan, _refuse)
        return self._aliases.plan(declared)

    def _find_class(self, declared: Any, origin: type) -> Plan:
        if issubclass(origin, Enum):
            return enum_plan(origin, self._inspect)
        if _has_fields(origin):
            from keyrun.storage.instance import instance_plan

            return instance_plan(declared, self.plan)
        if is_typeddict(origin):
            return self.plan(dict)
        allowed = _NATIVE.get(origin)
        if allowed is None:
            raise _unsupported(declared)
        arguments = get_args(declared)
        if not arguments and not hasattr(declared, "__args__"):  # tuple[()] has them
            return native_plan(origin, allowed, self._inspect)
        if origin in _MAPPINGS:
            return mapping_plan(declared, self.plan)
        if origin is tuple and arguments[1:] != (...,):
            return tuple_plan(declared, self.plan)
        return sequence_plan(declared, allowed, self.plan)

    def _find_union(self, declared: Any) -> Plan:
        members = get_args(declared)
        if all(_is_untyped(member) or member in _NATIVE for member in members):
            if any(map(_is_untyped, members)):
                return self.plan(Any)
            allowed = frozenset[type]().union(*(_NATIVE[member] for member in members))
            return native_plan(declared, allowed, self._inspect)
        others = [member for member in members if member is not NoneType]
        if len(others) == 1 and len(members) == 2 and _never_none(others[0]):
            return optional_plan(self.plan(others[0]))
        return union_plan(declared, self.plan)


def _has_fields(cls: type) -> bool:
    """Is it an attrs class or a dataclass?"""
    return attrs.has(cls) or hasattr(cls, "__dataclass_fields__")


def _is_untyped(declared: Any) -> bool:
    return declared in (Any, object, Final) or isinstance(declared, TypeVar)


def _never_none(declared: Any) -> bool:
    """Is no value of it lowered to None?"""
    origin = get_origin(declared) or declared
    if origin is Literal:
        return all(_never_none(type(constant)) for constant in get_args(declared))
    if origin is Annotated:
        return _never_none(declared.__origin__)
    if isinstance(declared, NewType):
        return _never_none(declared.__supertype__)
    if not isinstance(origin, type) or origin is NoneType:
        return False
    if issubclass(origin, Enum):
        return all(member.value is not None for member in origin)
    return origin in _NATIVE or _has_fields(origin) or is_typeddict(origin)


def _unsupported(declared: Any) -> Unsupported:
    return Unsupported(
        f"no value can be stored as {name_of(declared)}; declare one of None, bool, int, float, "
        "str, bytes, list, tuple, dict, datetime, date, Decimal, UUID, an Enum, an attrs class, a "
        "dataclass, or Any"
    )


def _refuse(declared: Any) -> Never:
    raise _unsupported(declared)
