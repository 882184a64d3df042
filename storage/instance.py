"""Instances of attrs classes and dataclasses, as a dict of their fields.

A value is rebuilt as `copy` and `pickle` do it, by setting its fields without calling `__init__`:
converters, validators and post-init code did their work when the value was made, and running them
again could make another value of it. So a class may keep nothing outside its fields.
"""

from functools import cached_property
from typing import Any, get_origin

from keyrun.storage.fields import Field, fields_of
from keyrun.storage.misfit import Misfit, Unsupported, name_of
from keyrun.storage.plan import Hook, Lookup, Plan, unexpected

_ORDINARY_SLOTS = frozenset({"__dict__", "__weakref__"})


def instance_plan(declared: Any, lookup: Lookup) -> Plan:
    """One attrs class or dataclass. A subclass of it would come back as this one: refused."""
    cls = get_origin(declared) or declared
    build: list[_Shape] = []

    def shape() -> _Shape:
        # Not before the first value comes: a class may mention itself.
        if not build:
            build.append(_Shape(declared, lookup))
        return build[0]

    def lower(value: Any) -> Any:
        if type(value) is not cls:
            raise unexpected(declared, value)
        return shape().lower(value)

    def lift(data: Any) -> Any:
        if type(data) is not dict:
            raise unexpected(declared, data)
        return shape().lift(data)

    return Plan(lower, lift)


class _Shape:
    __slots__ = ("_cls", "_fields", "_names")

    def __init__(self, declared: Any, lookup: Lookup) -> None:
        self._cls = get_origin(declared) or declared
        self._fields: list[tuple[str, Hook, Hook, Field]] = []
        for field in fields_of(declared):
            try:
                plan = lookup(field.type)
            except Unsupported as misfit:
                raise misfit.inside(f".{field.name}") from None
            self._fields.append((field.name, plan.lower, plan.lift, field))
        self._names = frozenset(name for name, *_ in self._fields)
        _require_rebuildable(self._cls, self._names)

    def lower(self, value: Any) -> dict[str, Any]:
        lowered = {}
        name = ""
        try:
            for name, lower, _, _ in self._fields:
                lowered[name] = lower(getattr(value, name))
        except Misfit as misfit:
            raise misfit.inside(f".{name}") from None
        except AttributeError:
            raise Misfit(f"the field {name!r} of {self._cls.__name__} has no value") from None
        if hasattr(value, "__dict__"):
            _refuse_extra_state(value, self._names)
        return lowered

    def lift(self, data: dict[str, Any]) -> Any:
        value = object.__new__(self._cls)
        set_field = object.__setattr__  # also where the class is frozen
        name = ""
        try:
            for name, _, lift, field in self._fields:
                if name in data:
                    set_field(value, name, lift(data[name]))
                elif field.default is not None:
                    set_field(value, name, field.default(value))
                else:
                    raise self._missing(name)
        except Misfit as misfit:
            raise misfit.inside(f".{name}") from None
        if len(data) > len(self._names) or not data.keys() <= self._names:
            raise Misfit(
                f"{self._cls.__name__} has no field {min(data.keys() - self._names)!r}, which is "
                "in what is stored"
            )
        return value

    def _missing(self, name: str) -> Misfit:
        return Misfit(
            f"{self._cls.__name__} needs the field {name!r}, which is not in what is stored; "
            "give it a default"
        )


def _refuse_extra_state(value: Any, names: frozenset[str]) -> None:
    cls = type(value)
    for name in vars(value):
        # What typing notes and what can be computed again need not be kept.
        if name in names or name == "__orig_class__":
            continue
        if isinstance(getattr(cls, name, None), cached_property):
            continue
        raise Misfit(
            f"the attribute {name!r} is no field of {cls.__name__} and would be lost; "
            "declare it as a field, with init=False if need be"
        )


def _require_rebuildable(cls: type, names: frozenset[str]) -> None:
    try:
        object.__new__(cls)
    except TypeError as error:
        raise Unsupported(
            f"cannot store {name_of(cls)}: it cannot be rebuilt from its fields ({error}); "
            "keep the data in a plain class of its own"
        ) from error
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        extra = {slots} if isinstance(slots, str) else set(slots)
        if "__attrs_attrs__" in base.__dict__:
            # attrs makes slots for cached properties, too, which come back by themselves.
            extra &= {"_attrs_cached_hash"}
        extra -= names | _ORDINARY_SLOTS
        if extra:
            raise Unsupported(
                f"cannot store {name_of(cls)}: its slot {min(extra)!r} is no field and would be "
                "lost; make it a field (or leave out cache_hash)"
            )
