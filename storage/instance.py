"""Values of classes with fields, as a mapping of their fields: attrs classes, dataclasses,
NamedTuples, TypedDicts and Pydantic models.

A value is rebuilt as `copy` and `pickle` do it, by setting its fields without calling `__init__`:
converters, validators and post-init code did their work when the value was made, and running them
again could make another value of it. So a class may keep nothing outside its fields.
"""

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol, get_origin

from keyrun.storage.classes import is_model, is_named_tuple, is_typed_dict
from keyrun.storage.fields import (
    FieldConverter,
    extra_type_of,
    fields_of,
    items_of,
    model_fields_of,
    parameters_of,
    private_defaults,
    private_types_of,
    rebuild,
)
from keyrun.storage.json_schema import Schema, Schemas, fields_schema
from keyrun.storage.misfit import (
    Misfit,
    Unsupported,
    at_index,
    at_key,
    name_of,
    said_by,
)
from keyrun.storage.plan import Lookup, TypePlan, unexpected

_ORDINARY_SLOTS = frozenset({"__dict__", "__weakref__"})
UNSET, EXTRA, PRIVATE = "(unset)", "(extra)", "(private)"
"""Names, which no field has, for the data that a model has beside its fields: the names of the
fields that were not set but have their default, the extra items, and the private attributes."""


class InstanceConverter(Protocol):
    """Both directions for the values of exactly one class."""

    def lower(self, value: Any) -> dict[str, Any]:
        """Return the fields by name."""

    def lift(self, data: dict[str, Any]) -> Any:
        """Return the instance."""

    def read(self, data: dict[str, Any]) -> Any:
        """Return a new instance for a JSON object. Its constructor checks the fields."""

    def schema(self, schemas: Schemas) -> Schema:
        """Return the schema of the JSON object."""


def instance_plan(
    declared: Any, lookup: Lookup, build_later: Callable[[Callable[[], InstanceConverter]], None]
) -> TypePlan:
    """Return the plan of one class with fields. Values of subclasses are rejected, because they
    would be read as this class.

    The fields are looked up with the first value, because a class may refer to itself.
    `build_later` receives a function that looks them up earlier.
    """
    cls = get_origin(declared) or declared
    kind = _kind_of(cls)
    exactly = dict if kind is _typed_dict else cls
    built: list[InstanceConverter] = []

    def shape() -> InstanceConverter:
        if not built:
            built.append(kind(declared, lookup))
        return built[0]

    def lower(value: Any) -> Any:
        if type(value) is not exactly:
            raise unexpected(declared, value)
        return shape().lower(value)

    def lift(data: Any) -> Any:
        if type(data) is not dict:
            raise unexpected(declared, data)
        return shape().lift(data)

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise Misfit(f"expected an object for {name_of(declared)}, got {data!r}")
        return shape().read(data)

    def schema(schemas: Schemas) -> Schema:
        return schemas.define(declared, lambda: shape().schema(schemas))

    build_later(shape)
    return TypePlan(lower, lift, read, schema)


def _kind_of(cls: type) -> Callable[[Any, Lookup], InstanceConverter]:
    if is_typed_dict(cls):
        return _typed_dict
    if is_named_tuple(cls):
        return _Tuple
    return _Model if is_model(cls) else _Instance


def _typed_dict(declared: Any, lookup: Lookup) -> InstanceConverter:
    return _Items(get_origin(declared) or declared, *items_of(declared), lookup)


class _Instance:
    """An attrs class or a dataclass."""

    __slots__ = ("_cls", "_fields")

    def __init__(self, declared: Any, lookup: Lookup) -> None:
        self._cls = get_origin(declared) or declared
        self._fields = FieldConverter(self._cls, fields_of(declared), lookup)
        _require_rebuildable(self._cls, self._fields.names)

    def lower(self, value: Any) -> dict[str, Any]:
        lowered = self._fields.lower(value)
        if hasattr(value, "__dict__"):
            _refuse_extra_state(value, self._fields.names)
        return lowered

    def lift(self, data: dict[str, Any]) -> Any:
        return rebuild(self._cls, self._fields.lift(data))

    def read(self, data: dict[str, Any]) -> Any:
        return _made(self._cls, self._fields.read(data), parameters_of(self._cls))

    def schema(self, schemas: Schemas) -> Schema:
        return self._fields.schema(schemas)


class _Tuple:
    """A NamedTuple."""

    __slots__ = ("_cls", "_fields")

    def __init__(self, declared: Any, lookup: Lookup) -> None:
        self._cls = get_origin(declared) or declared
        self._fields = FieldConverter(self._cls, fields_of(declared), lookup)

    def lower(self, value: Any) -> dict[str, Any]:
        return self._fields.lower(value)

    def lift(self, data: dict[str, Any]) -> Any:
        return tuple.__new__(self._cls, self._fields.lift(data).values())

    def read(self, data: dict[str, Any]) -> Any:
        return _made(self._cls, self._fields.read(data), {})

    def schema(self, schemas: Schemas) -> Schema:
        return self._fields.schema(schemas)


class _Items:
    """The items of a mapping by name. As with a TypedDict, there may be items of other names. They
    are untyped."""

    __slots__ = ("_cls", "_other", "_plans", "_required")

    def __init__(
        self, cls: type, types: dict[str, Any], required: frozenset[str], lookup: Lookup
    ) -> None:
        self._cls = cls
        self._required = required
        self._other = lookup(Any)
        self._plans = {}
        for item, declared in types.items():
            try:
                self._plans[item] = lookup(declared)
            except Unsupported as misfit:
                raise misfit.inside(at_key(item)) from None

    def lower(self, value: dict[str, Any]) -> dict[str, Any]:
        self._require_all(value)
        done, name = {}, ""
        try:
            for name, item in value.items():
                done[name] = self._plans.get(name, self._other).lower(item)
        except Misfit as misfit:
            raise misfit.inside(at_key(name)) from None
        return done

    def lift(self, data: dict[str, Any]) -> dict[str, Any]:
        self._require_all(data)
        done, name = {}, ""
        try:
            for name, item in data.items():
                done[name] = self._plans.get(name, self._other).lift(item)
        except Misfit as misfit:
            raise misfit.inside(at_key(name)) from None
        return done

    def read(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return a mapping for a JSON object."""
        self._require_all(data)
        done, name = {}, ""
        try:
            for name, item in data.items():
                done[name] = self._plans.get(name, self._other).read(item)
        except Misfit as misfit:
            raise misfit.inside(at_key(name)) from None
        return done

    def schema(self, schemas: Schemas) -> Schema:
        """Return the schema of the JSON object."""
        items = {name: plan.schema(schemas) for name, plan in self._plans.items()}
        return fields_schema(self._cls, items, sorted(self._required), others=True)

    def _require_all(self, items: dict[str, Any]) -> None:
        if not self._required <= items.keys():
            missing = min(self._required - items.keys())
            raise Misfit(f"{name_of(self._cls)} requires the item {missing!r}, which is missing")


class _Model:
    """A model of Pydantic."""

    __slots__ = ("_cls", "_extra", "_fields", "_private")

    def __init__(self, declared: Any, lookup: Lookup) -> None:
        self._cls = declared
        self._fields = FieldConverter(declared, model_fields_of(declared), lookup)
        self._extra = lookup(extra_type_of(declared))
        private = private_types_of(declared)
        self._private = _Items(declared, private, frozenset(), lookup)

    def lower(self, value: Any) -> dict[str, Any]:
        lowered = self._fields.lower(value)
        _refuse_extra_state(value, self._fields.names)
        extra, given = value.__pydantic_extra__ or {}, value.__pydantic_fields_set__
        unset = [name for name in (*lowered, *extra) if name not in given]
        if unset:
            lowered[UNSET] = unset
        if extra:
            lowered[EXTRA] = self._extra.lower(extra)
        if private := value.__pydantic_private__:
            lowered[PRIVATE] = self._private.lower(dict(sorted(private.items())))
        return lowered

    def lift(self, data: dict[str, Any]) -> Any:
        fields = dict(data)
        unset, private = fields.pop(UNSET, ()), fields.pop(PRIVATE, {})
        extra = self._extra.lift(fields.pop(EXTRA, {}))
        takes_extra = self._cls.model_config.get("extra") == "allow"
        private = private_defaults(self._cls) | self._private.lift(private)
        value = object.__new__(self._cls)
        value.__setstate__(
            {
                "__dict__": self._fields.lift(fields),
                "__pydantic_fields_set__": {*fields, *extra}.difference(unset),
                "__pydantic_extra__": extra if extra or takes_extra else None,
                "__pydantic_private__": private or None,
            }
        )
        return value

    def read(self, data: dict[str, Any]) -> Any:
        """Return a model that Pydantic has validated. It reads JSON by its own rules."""
        try:
            return self._cls.model_validate_json(json.dumps(data))
        except ValueError as error:
            (first, *_) = error.errors()  # type: ignore[attr-defined]  # pydantic.ValidationError
            misfit = Misfit(first["msg"])
            for step in reversed(first["loc"]):
                misfit.inside(at_index(step) if isinstance(step, int) else f".{step}")
            raise misfit from None

    def schema(self, schemas: Schemas) -> Schema:
        """Return the schema that Pydantic has for the model."""
        try:
            return schemas.adopt(self._cls.model_json_schema())
        except Exception:  # a type of the user, or one that Pydantic has no schema for
            return {"type": "object", "title": self._cls.__name__}


def _made(cls: Any, fields: dict[str, Any], parameters: dict[str, str]) -> Any:
    """Return a new instance. `parameters` has the names of those fields that the constructor
    takes under other names."""
    for name in fields:
        if not parameters.get(name, name):
            raise Misfit(f"{cls.__name__} sets the field {name!r} itself; leave it out")
    try:
        return cls(**{parameters.get(name, name): value for name, value in fields.items()})
    except KeyboardInterrupt:
        raise
    except Exception as error:  # validators are code of the user
        raise Misfit(f"{cls.__name__} rejects these fields: {said_by(error)}") from error


def _refuse_extra_state(value: Any, names: frozenset[str]) -> None:
    cls = type(value)
    for name in vars(value):
        # Attributes of typing, and values that can be computed again, are not stored.
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
