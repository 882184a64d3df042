"""JSON Schema of declared types: the JSON that `TypePlan.read` takes.

Each plan has a `schema` beside its `read`, so that the two cannot disagree. A schema has the forms
that people write, such as a text for a time, and the objects that stand for a value, such as
`{"$float": "nan"}`. `read` takes a bit more: for example `true` for an int.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from types import NoneType
from typing import Any
from uuid import UUID

from keyrun.storage.json_form import to_json
from keyrun.storage.misfit import name_of

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFINITIONS = "#/$defs/"

_TEXT: Schema = {"type": "string"}
_TEXTS: dict[str, Schema] = {
    "$bytes": {"type": "string", "contentEncoding": "base64"},
    "$datetime": _TEXT,
    "$date": {"type": "string", "format": "date"},
    "$decimal": _TEXT,
    "$uuid": {"type": "string", "format": "uuid"},
    "$int": {"type": "string", "pattern": "^-?[0-9]{1,20}$"},
    "$float": {
        "type": "string",
        "pattern": r"^(nan|-?inf|-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?)$",
    },
    "$tuple": {"type": "array"},
}
"""The schema of the value under the key of an object that represents a value."""
_FORMS: dict[Any, tuple[tuple[Schema, ...], tuple[str, ...]]] = {
    NoneType: (({"type": "null"},), ()),
    bool: (({"type": "boolean"},), ()),
    int: (({"type": "integer"},), ("$int",)),
    float: (({"type": "number"},), ("$float", "$int")),
    str: ((_TEXT,), ()),
    bytes: (
        ({"type": "string", "contentEncoding": "base64", "pattern": "^[A-Za-z0-9+/]*={0,2}$"},),
        ("$bytes",),
    ),
    datetime: (
        # The name of a zone may follow the time.
        ({"type": "string", "format": "date-time"}, {"type": "string", "pattern": r"\[.+\]$"}),
        ("$datetime",),
    ),
    date: (({"type": "string", "format": "date"},), ("$date", "$datetime")),
    Decimal: (({"type": "string", "format": "decimal"},), ("$decimal",)),
    UUID: (({"type": "string", "format": "uuid"},), ("$uuid",)),
    tuple: (({"type": "array"},), ("$tuple",)),
}
"""The forms of a value of each native type, and the objects that stand for it."""


class Schemas:
    """Makes the schemas of one document, and keeps the definitions that they refer to."""

    def __init__(self) -> None:
        self._definitions: dict[str, Schema] = {}
        self._names: dict[Any, str] = {}

    def document(self, schema: Schema) -> Schema:
        """Return a schema that stands alone."""
        whole = {"$schema": DIALECT, **schema}
        if self._definitions:
            whole["$defs"] = self._definitions
        return whole

    def define(self, declared: Any, make: Callable[[], Schema]) -> Schema:
        """Return a reference to the schema of a class, which may mention itself."""
        name = self._names.get(declared)
        if name is None:
            name = self._name(name_of(declared))
            self._names[declared] = name
            self._definitions[name] = {}
            self._definitions[name].update(make())
        return {"$ref": _DEFINITIONS + name}

    def adopt(self, made: Schema) -> Schema:
        """Return a schema that another library made. Its definitions become definitions of this
        document, under other names if need be."""
        definitions = made.pop("$defs", {})
        renamed = {_DEFINITIONS + old: self._name(old) for old in definitions}
        for old, schema in definitions.items():
            self._definitions[renamed[_DEFINITIONS + old]] = _with_references(schema, renamed)
        adopted: Schema = _with_references(made, renamed)
        return adopted

    def native(self, declared: Iterable[Any]) -> Schema:
        """Return the schema of values of some native types."""
        forms: list[Schema] = []
        stand: list[str] = []
        for each in declared:
            plain, objects = _FORMS.get(each, (None, ()))
            if plain is None:
                is_mapping = isinstance(each, type) and issubclass(each, Mapping)
                plain = ({"type": "object" if is_mapping else "array"},)
            forms += [form for form in plain if form not in forms]
            stand += [name for name in objects if name not in stand]
        return any_of([*forms, *map(self._object, stand)])

    def _object(self, tag: str) -> Schema:
        """Return a reference to the schema of an object that stands for a value."""
        return self.define(
            tag,
            lambda: {
                "type": "object",
                "properties": {tag: _TEXTS[tag]},
                "required": [tag],
                "additionalProperties": False,
            },
        )

    def _name(self, wanted: str) -> str:
        plain = re.sub(r"[^A-Za-z0-9_.$]+", "_", wanted).strip("_") or "value"
        name, number = plain, 1
        while name in self._definitions:
            number += 1
            name = f"{plain}_{number}"
        self._definitions[name] = {}
        return name


def any_of(schemas: Iterable[Schema]) -> Schema:
    """Return the schema of values that one of the schemas takes."""
    each = list(schemas)
    if len(each) == 1:
        return each[0]
    return {"anyOf": each} if each else {"not": {}}


def array_of(*places: Schema) -> Schema:
    """Return the schema of arrays with one item for each place."""
    # `prefixItems` must not be empty.
    first = {"prefixItems": [*places], "items": False} if places else {}
    return {"type": "array", **first, "minItems": len(places), "maxItems": len(places)}


def constants(values: Iterable[Any]) -> Schema:
    """Return the schema of some plain values."""
    return {"enum": [to_json(value) for value in values]}


def fields_schema(
    cls: type, fields: Mapping[str, Schema], required: Iterable[str], *, others: bool
) -> Schema:
    """Return the schema of an object with fields. `others` says whether it may have more items."""
    schema: Schema = {"type": "object", "title": cls.__name__}
    about = cls.__dict__.get("__doc__") or ""
    # Dataclasses and NamedTuples without a docstring have their signature as one.
    if about and not about.startswith(f"{cls.__name__}("):
        schema["description"] = " ".join(about.strip().partition("\n\n")[0].split())
    schema["properties"] = dict(fields)
    if required := list(required):
        schema["required"] = required
    schema["additionalProperties"] = others
    return schema


def _with_references(schema: Any, renamed: Mapping[str, str]) -> Any:
    """Return a schema whose references have other names."""
    if isinstance(schema, list):
        return [_with_references(item, renamed) for item in schema]
    if not isinstance(schema, dict):
        return schema
    done: Schema = {}
    for name, item in schema.items():
        if name == "$ref" and item in renamed:
            done[name] = _DEFINITIONS + renamed[item]
        elif name == "mapping" and isinstance(item, dict):
            # The `discriminator` of a union of models.
            done[name] = {
                key: _DEFINITIONS + renamed[to] if to in renamed else to for key, to in item.items()
            }
        else:
            done[name] = _with_references(item, renamed)
    return done
