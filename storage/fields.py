"""The fields of a declared class: their names, types and defaults, and the plan of all of them.

Annotations that are strings are resolved, and the type variables of generic classes are replaced
by what they stand for, also in the fields that a class inherits.
"""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Generic, Protocol, TypeVar, get_args, get_origin, get_type_hints

import attrs

from keyrun.storage.json_schema import Schema, Schemas, fields_schema
from keyrun.storage.misfit import Misfit, Unresolved, Unsupported, name_of
from keyrun.storage.plan import Hook, Lookup

Default = Callable[[dict[str, Any]], Any]
"""Makes the value of a field that was added after the data was written, of the fields before it."""


@attrs.frozen(kw_only=True)
class FieldPlan:
    """One field."""

    name: str
    type: Any
    default: Default | None


class FieldConverter:
    """Lowers the fields of a value to a mapping by name, and lifts them. It knows nothing of how
    the class is rebuilt of them."""

    __slots__ = ("_cls", "_fields", "_schemas", "names")

    def __init__(self, cls: type, fields: Iterable[FieldPlan], lookup: Lookup) -> None:
        self._cls = cls
        self._fields: list[tuple[str, Hook, Hook, Hook, Default | None]] = []
        self._schemas: dict[str, Callable[[Schemas], Schema]] = {}
        for field in fields:
            try:
                plan = lookup(field.type)
            except Unsupported as misfit:
                raise misfit.inside(f".{field.name}") from None
            self._fields.append((field.name, plan.lower, plan.lift, plan.read, field.default))
            self._schemas[field.name] = plan.schema
        self.names = frozenset(name for name, *_ in self._fields)

    def lower(self, value: Any) -> dict[str, Any]:
        """Return the lowered fields in their order."""
        lowered = {}
        name = ""
        try:
            for name, lower, *_ in self._fields:
                lowered[name] = lower(getattr(value, name))
        except Misfit as misfit:
            raise misfit.inside(f".{name}") from None
        except AttributeError:
            if hasattr(value, name):
                raise
            raise Misfit(f"the field {name!r} of {self._cls.__name__} has no value") from None
        return lowered

    def lift(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the lifted fields in their order. A field that is not stored has its default."""
        lifted: dict[str, Any] = {}
        name = ""
        try:
            for name, _, lift, _, default in self._fields:
                if name in data:
                    lifted[name] = lift(data[name])
                elif default is not None:
                    lifted[name] = default(lifted)
                else:
                    raise self._missing(name)
        except Misfit as misfit:
            raise misfit.inside(f".{name}") from None
        if len(data) > len(self.names) or not data.keys() <= self.names:
            raise Misfit(
                f"{self._cls.__name__} has no field {min(data.keys() - self.names)!r}, which is "
                "in what is stored"
            )
        return lifted

    def read(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that a JSON object has, in their order."""
        given: dict[str, Any] = {}
        name = ""
        try:
            for name, _, _, read, default in self._fields:
                if name in data:
                    given[name] = read(data[name])
                elif default is None:
                    raise Misfit("this field is required")
        except Misfit as misfit:
            raise misfit.inside(f".{name}") from None
        if unknown := sorted(data.keys() - self.names):
            names = ", ".join(name for name, *_ in self._fields)
            raise Misfit(
                f"{self._cls.__name__} has no field {unknown[0]!r}; its fields are {names}"
            )
        return given

    def schema(self, schemas: Schemas) -> Schema:
        """Return the schema of the JSON object that `read` takes."""
        taken = parameters_of(self._cls)
        fields = {
            name: schema(schemas) for name, schema in self._schemas.items() if taken.get(name, name)
        }
        required = [name for name, *_, default in self._fields if default is None]
        return fields_schema(self._cls, fields, required, others=False)

    def _missing(self, name: str) -> Misfit:
        return Misfit(
            f"{self._cls.__name__} needs the field {name!r}, which is not in what is stored; "
            "give it a default"
        )


def fields_of(declared: Any) -> tuple[FieldPlan, ...]:
    """Return the fields of a class. Raise `Unresolved` if its annotations cannot be resolved."""
    cls = get_origin(declared) or declared
    if attrs.has(cls):
        raw = [(f.name, f.type or Any, _attrs_default(cls, f.default)) for f in attrs.fields(cls)]
    elif dataclasses.is_dataclass(cls):
        models = getattr(cls, "__pydantic_fields__", {})
        raw = [
            (f.name, f.type, model_default(models[f.name]) if models else _dataclass_default(f))
            for f in dataclasses.fields(cls)
        ]
    else:
        defaults = cls._field_defaults
        raw = [(name, Any, _constant(defaults, name)) for name in cls._fields]
    hints = _hints(cls)
    arguments = _arguments(declared)
    return tuple(
        FieldPlan(
            name=name,
            type=_fill(hints.get(name, fallback), arguments.get(_declaring_class(cls, name), {})),
            default=default,
        )
        for name, fallback, default in raw
    )


def parameters_of(cls: Any) -> dict[str, str]:
    """Return the fields that the constructor of a class takes under another name. The name is an
    empty text for a field that the constructor does not take."""
    if attrs.has(cls):
        names = {field.name: field.alias if field.init else "" for field in attrs.fields(cls)}
    elif dataclasses.is_dataclass(cls):
        names = {field.name: field.name if field.init else "" for field in dataclasses.fields(cls)}
    else:
        return {}
    return {name: taken for name, taken in names.items() if taken != name}


def items_of(declared: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the types of the items of a TypedDict, and which of them are required."""
    cls = get_origin(declared) or declared
    # Its classes are not among its bases.
    arguments = {
        variable: v for each in _arguments(declared).values() for variable, v in each.items()
    }
    types, required = {}, set(cls.__required_keys__)
    for name, hint in _hints(cls).items():
        # Python does not see a mark in an annotation that is a string.
        while (mark := getattr(get_origin(hint), "_name", None)) in _MARKS:
            if mark != "ReadOnly":
                (required.add if mark == "Required" else required.discard)(name)
            (hint,) = get_args(hint)
        types[name] = _fill(hint, arguments)
    return types, frozenset(required)


def model_fields_of(cls: Any) -> tuple[FieldPlan, ...]:
    """Return the fields of a Pydantic model. Pydantic has resolved their types."""
    if not cls.__pydantic_complete__:
        try:
            cls.model_rebuild()
        except Exception as error:
            raise _unresolved(cls, error) from error
    return tuple(
        FieldPlan(name=name, type=info.annotation, default=model_default(info))
        for name, info in cls.model_fields.items()
    )


def private_types_of(cls: Any) -> dict[str, Any]:
    """Return the types of the private attributes of a Pydantic model."""
    return {name: _annotated(cls, name, Any) for name in cls.__private_attributes__}


def private_defaults(cls: Any) -> dict[str, Any]:
    """Return the defaults of the private attributes of a Pydantic model that have one."""
    undefined = sys.modules["pydantic_core"].PydanticUndefined
    defaults = {name: each.get_default() for name, each in cls.__private_attributes__.items()}
    return {name: value for name, value in defaults.items() if value is not undefined}


def extra_type_of(cls: Any) -> Any:
    """Return the type of the extra items of a Pydantic model."""
    return _annotated(cls, "__pydantic_extra__", dict)


def model_default(info: Any) -> Default | None:
    """Return the default of a field of a Pydantic model."""
    if info.is_required():
        return None
    if getattr(info, "default_factory_takes_validated_data", False):
        return lambda before: info.default_factory(dict(before))
    return lambda _: info.get_default(call_default_factory=True)


_MARKS = frozenset({"Required", "NotRequired", "ReadOnly"})


def _hints(cls: type) -> dict[str, Any]:
    try:
        return get_type_hints(cls, include_extras=True)
    except Exception as error:  # an annotation may be any expression
        raise _unresolved(cls, error) from error


def _unresolved(cls: type, error: Exception) -> Unresolved:
    return Unresolved(
        f"cannot store {name_of(cls)}: its annotations cannot be resolved ({error}); "
        "define the classes they name at the top of a module"
    )


def _attrs_default(cls: type, default: Any) -> Default | None:
    if default is attrs.NOTHING:
        return None
    if not isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # typed as a function
        return lambda _: default
    if default.takes_self:
        return lambda before: default.factory(rebuild(cls, before))
    return lambda _: default.factory()


def _dataclass_default(field: dataclasses.Field[Any]) -> Default | None:
    if field.default is not dataclasses.MISSING:
        return lambda _: field.default
    factory = field.default_factory
    return None if factory is dataclasses.MISSING else lambda _: factory()


def _constant(defaults: dict[str, Any], name: str) -> Default | None:
    return (lambda _: defaults[name]) if name in defaults else None


def _annotated(cls: type, name: str, default: Any) -> Any:
    """Return the type of an attribute that is no field for Pydantic."""
    owner = _declaring_class(cls, name)
    annotation = inspect.get_annotations(owner).get(name, default)
    if owner.__module__.startswith("pydantic.") or annotation is default:
        return default
    holder = SimpleNamespace(__annotations__={name: annotation})
    names = vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else {}
    try:
        return get_type_hints(holder, names)[name]
    except Exception as error:
        raise _unresolved(cls, error) from error


def rebuild(cls: type, fields: dict[str, Any]) -> Any:
    """Make an instance of these fields without running code of its class."""
    value: Any = object.__new__(cls)
    for name, item in fields.items():
        object.__setattr__(value, name, item)  # also where the class is frozen
    return value


def _arguments(declared: Any) -> dict[type, dict[Any, Any]]:
    """Return the types of the type variables of each base class."""
    found: dict[type, dict[Any, Any]] = {}

    def visit(alias: Any, outer: dict[Any, Any]) -> None:
        cls = get_origin(alias) or alias
        if cls in found or cls in (Generic, Protocol) or not isinstance(cls, type):
            return
        values = [_fill(argument, outer) for argument in get_args(alias)]
        found[cls] = dict(zip(getattr(cls, "__parameters__", ()), values, strict=False))
        for base in getattr(cls, "__orig_bases__", cls.__bases__):
            visit(base, found[cls])

    visit(declared, {})
    return found


def _fill(hint: Any, arguments: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return arguments.get(hint, Any)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or (isinstance(hint, type) and get_origin(hint) is None):
        return hint
    return hint[tuple(arguments.get(parameter, Any) for parameter in parameters)]


def _declaring_class(cls: type, name: str) -> type:
    for base in cls.__mro__:
        if name in inspect.get_annotations(base):
            return base
    return cls
