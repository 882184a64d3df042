"""Typed values: find the plan of a declared type.

A name for another type, such as a NewType, is left to cattrs, which is only imported for that,
as what is about classes is for those. Untyped places are passed on as they are: an instance there
is refused by the packer and never comes back as a dict.
"""

import collections.abc as abc
from collections.abc import Callable
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
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
)
from uuid import UUID

from keyrun.storage.classes import has_attributes, is_model, is_named_tuple, is_typed_dict
from keyrun.storage.misfit import Unresolved, Unsupported, name_of
from keyrun.storage.plan import (
    Hook,
    TypePlan,
    enum_plan,
    keep,
    literal_plan,
    mapping_plan,
    native_plan,
    optional_plan,
    sequence_plan,
    set_plan,
    tuple_plan,
    union_plan,
    untyped_plan,
)

if TYPE_CHECKING:
    from keyrun.storage.aliases import Aliases

# The types that a value of a native declared type may have. They are stored unchanged.
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
_SETS: dict[Any, frozenset[type]] = {
    set: frozenset({set}),
    frozenset: frozenset({frozenset}),
    abc.Set: frozenset({set, frozenset}),
    abc.MutableSet: frozenset({set}),
}
# Pydantic puts plain values where these are declared.
_CHECKED: dict[str, type] = {
    **dict.fromkeys(("AwareDatetime", "FutureDatetime", "PastDatetime"), datetime),
    **dict.fromkeys(("FutureDate", "PastDate"), date),
    **dict.fromkeys(("EmailStr",), str),
}


class Plans:
    """Finds plans. `inspect` receives every value at an untyped or native place when it is
    lowered."""

    def __init__(self, inspect: Hook = keep) -> None:
        self._inspect = inspect
        self._plans: dict[Any, TypePlan] = {}
        self._aliases: Aliases | None = None
        self._unbuilt: list[tuple[Any, Callable[[], object]]] = []

    def plan(self, declared: Any) -> TypePlan:
        """Return the plan of a declared type. Raise `Unsupported` if no value of it can be
        stored."""
        try:
            known = self._plans.get(declared)
        except TypeError:  # unhashable, such as Annotated[int, []]
            return self._find(declared)
        if known is None:
            known = self._plans[declared] = self._find(declared)
        return known

    def require(self, declared: Any, *, resolved: bool) -> None:
        """Raise `Unsupported` if no value could be stored as `declared`, because of the classes in
        it, too. With `resolved=False`, their annotations may name what is not defined yet."""
        self.plan(declared)
        while self._unbuilt:
            cls, build = self._unbuilt.pop()
            try:
                build()
            except Unsupported as misfit:
                if resolved or not isinstance(misfit, Unresolved):
                    if misfit.depth:
                        misfit.root = name_of(cls)
                    raise

    def _find(self, declared: Any) -> TypePlan:
        origin = get_origin(declared) or declared
        if _is_untyped(declared):
            return untyped_plan(self._inspect)
        if declared is None:
            return self.plan(NoneType)
        if declared in (Never, NoReturn):
            return native_plan(declared, (), self._inspect)
        if origin in (Union, UnionType):
            return self._find_union(declared)
        if origin is Literal:
            return literal_plan(declared, self.plan)
        if origin is Annotated:
            return self.plan(declared.__origin__)
        if isinstance(origin, type):
            return self._find_class(declared, origin)
        if type(declared).__name__ == "PydanticRecursiveRef":
            raise Unsupported(
                "a generic Pydantic model that mentions itself cannot be stored; make it a model "
                "without type variables, or an attrs class"
            )
        if self._aliases is None:
            from keyrun.storage.aliases import Aliases

            self._aliases = Aliases(self.plan, _refuse)
        return self._aliases.plan(declared)

    def _find_class(self, declared: Any, origin: type) -> TypePlan:
        if issubclass(origin, Enum):
            return enum_plan(origin, self._inspect)
        if _has_fields(origin):
            from keyrun.storage.instance import instance_plan

            return instance_plan(
                declared, self.plan, lambda build: self._unbuilt.append((declared, build))
            )
        if origin in _SETS:
            if any(map(_is_unhashable, get_args(declared))):
                raise Unsupported(
                    f"no value can be stored as {name_of(declared)}, because members must be "
                    "hashable; declare tuples or instances of frozen classes as members, or a list"
                )
            return set_plan(declared, _SETS[origin], self.plan)
        if origin.__module__.startswith("pydantic.") and origin.__name__ in _CHECKED:
            return self.plan(_CHECKED[origin.__name__])
        allowed = _NATIVE.get(origin)
        if allowed is None:
            raise _unsupported(declared)
        arguments = get_args(declared)
        if not arguments and not hasattr(declared, "__args__"):  # tuple[()] has them
            return native_plan(origin, allowed, self._inspect)
        if origin in _MAPPINGS:
            if str not in _plain_kinds(arguments[0]):
                raise Unsupported(
                    f"no value can be stored as {name_of(declared)}, because keys must be str; "
                    "declare str keys, or a list of pairs"
                )
            return mapping_plan(declared, self.plan)
        if origin is tuple and arguments[1:] != (...,):
            return tuple_plan(declared, self.plan)
        return sequence_plan(declared, allowed, self.plan)

    def _find_union(self, declared: Any) -> TypePlan:
        members = get_args(declared)
        if all(_is_untyped(member) or member in _NATIVE for member in members):
            if any(map(_is_untyped, members)):
                return self.plan(Any)
            allowed = frozenset[type]().union(*(_NATIVE[member] for member in members))
            return native_plan(declared, allowed, self._inspect)
        others = [member for member in members if member is not NoneType]
        if len(others) == 1 and len(members) == 2 and NoneType not in _plain_kinds(others[0]):
            return optional_plan(self.plan(others[0]))
        return union_plan(declared, self.plan)


def _has_fields(cls: type) -> bool:
    return has_attributes(cls) or is_typed_dict(cls) or is_named_tuple(cls) or is_model(cls)


def _is_untyped(declared: Any) -> bool:
    return declared in (Any, object, Final) or isinstance(declared, TypeVar)


def _plain_kinds(declared: Any) -> frozenset[type]:
    """Return which of None and str a value of it may be lowered to; both if that is not known."""
    origin = get_origin(declared) or declared
    if origin is Annotated:
        return _plain_kinds(declared.__origin__)
    if isinstance(declared, NewType):
        return _plain_kinds(declared.__supertype__)
    if origin is Literal:
        kinds = (_plain_kinds(type(constant)) for constant in get_args(declared))
        return frozenset[type]().union(*kinds)
    if origin in (Union, UnionType):
        return frozenset[type]().union(*map(_plain_kinds, get_args(declared)))
    if origin in (None, NoneType):
        return frozenset({NoneType})
    if origin is str:
        return frozenset({str})
    if isinstance(origin, type) and origin is not object:
        if issubclass(origin, Enum):
            return frozenset(type(member.value) for member in origin)
        if origin in _NATIVE or origin in _SETS or _has_fields(origin):
            return frozenset()
    return frozenset({NoneType, str})


def _is_unhashable(declared: Any) -> bool:
    """Return whether no value of a type can be a member of a set."""
    origin, arguments = get_origin(declared) or declared, get_args(declared)
    if origin is Annotated:
        return _is_unhashable(declared.__origin__)
    if isinstance(declared, NewType):
        return _is_unhashable(declared.__supertype__)
    if hasattr(origin, "__value__"):  # a `type` statement
        return _is_unhashable(origin.__value__)
    if origin in (Union, UnionType):
        return all(map(_is_unhashable, arguments))
    if origin is tuple and Ellipsis not in arguments:
        return any(map(_is_unhashable, arguments))
    if not isinstance(origin, type) or issubclass(origin, Enum):
        return False
    kinds = _NATIVE.get(origin) or _SETS.get(origin) or (origin,)
    return all(kind.__hash__ is None for kind in kinds)


def _unsupported(declared: Any) -> Unsupported:
    return Unsupported(
        f"no value can be stored as {name_of(declared)}; declare one of None, bool, int, float, "
        "str, bytes, list, tuple, dict, set, frozenset, datetime, date, Decimal, UUID, an Enum, a "
        "NamedTuple, a TypedDict, an attrs class, a dataclass, a Pydantic model, or Any"
    )


def _refuse(declared: Any) -> Never:
    raise _unsupported(declared)
