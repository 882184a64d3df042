"""Shapes: how arguments and results look as JSON and on the wire of the Python client.

A shape is derived from a type. An object has the fields of its attrs class or named tuple, and an
enum is its value. The two forms differ in their leaves:

| leaf | JSON, for people and other languages | wire, for Python clients |
|---|---|---|
| a time, such as `ended_at` or `since` | RFC 3339 | seconds since the epoch |
| a payload | the form of `keyrun.storage.json_form` | encoded bytes, or JSON text |
| an enum of numbers | its name | its number |
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from math import isfinite
from types import GenericAlias, NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

from keyrun.storage.json_form import to_json
from keyrun.storage.payload import PayloadCodec, PayloadError, PayloadTypeError

Hook = Callable[[Any], Any]
Schema = dict[str, Any]

TIMES = frozenset({"at", "deadline", "since", "start", "until"})
TIME_ENDS = ("_at", "_until", "_since")
SEVERAL_TIMES = "_times"
"""The end of the name of a field with a list of times."""
LISTS = (list, tuple, set, frozenset, Collection, Iterable, Sequence)
CONTAINERS = {tuple: tuple, set: set, frozenset: frozenset}
ANYTHING: Schema = {"description": "A payload. Values that JSON lacks are objects: see the guide."}
TIME: Schema = {"type": "string", "format": "date-time"}
PLAIN: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    NoneType: {"type": "null"},
    bytes: {"type": "object", "properties": {"$bytes": {"type": "string"}}},
}

_OFFSET = re.compile(r"(?<=:\d\d) (\d\d:\d\d)$")
_VALUE = re.compile(r"(?:the input of the workflow .*?: )?value(?=[.:\[])")
_NAMED = re.compile(r'\["([A-Za-z_]\w*)"\]')

LARGE_PAYLOAD = 32 * 1024
"""Bytes of a payload that takes long to decode."""
UNSTORABLE = (PayloadError, PayloadTypeError)

PLAIN_WORDS = (str, bool, int, float)
"""Types whose values are written as they are, also at a place for another type: the operation says
what it requires."""

CODEC = PayloadCodec()
"""Encodes payloads for the wire. It never encrypts: that is up to the owner of the store."""


class LargePayload:
    """A large payload as it is stored. It is decoded when it is written, which may be in a
    thread."""

    __slots__ = ("codec", "data")

    def __init__(self, codec: PayloadCodec, data: bytes) -> None:
        self.codec = codec
        self.data = data

    @classmethod
    def value(cls, codec: PayloadCodec, data: bytes) -> Any:
        """Return the value, or this object for it if it is large."""
        return codec.decode(data) if len(data) < LARGE_PAYLOAD else cls(codec, data)


class Misplaced(ValueError):
    """Raised if an argument of an operation does not have its type. The message names the place."""


class Payload:
    """A payload that a caller sent, to be read as the type that its place declares."""

    __slots__ = ("_data", "_encoded", "name")

    def __init__(self, name: str, data: Any = None, encoded: bytes | None = None) -> None:
        self.name = name
        """The place, for errors."""
        self._data = data
        self._encoded = encoded

    def on_wire(self) -> bytes | str:
        """Return the encoded value, or JSON as a text: only the owner knows its type."""
        return json.dumps(self._data) if self._encoded is None else self._encoded

    @classmethod
    def from_wire(cls, data: bytes | str) -> "Payload":
        """Return the payload that `on_wire` wrote."""
        if isinstance(data, bytes):
            return cls("payload", encoded=data)
        try:
            return cls("payload", json.loads(data))
        except RecursionError:
            raise Misplaced("payload: nests too deep; flatten it") from None

    @property
    def is_encoded(self) -> bool:
        """Whether a Python client has encoded the value. Otherwise it is JSON."""
        return self._encoded is not None

    def __repr__(self) -> str:
        # For the hash of a write.
        return repr(self._data if self._encoded is None else self._encoded)

    def read(self, declared: Any = Any) -> Any:
        """Return the value. Raise `Misplaced` if it does not have the type."""
        try:
            if self._encoded is not None:
                return CODEC.decode(self._encoded, declared)
            return CODEC.read(self._data, declared)
        except UNSTORABLE as error:
            raise self.misplaced(error) from error

    def check(self, declared: Any = Any) -> Any:
        """Return the value, which can be stored. Raise `Misplaced` if it cannot.

        `read` returns a value that may still be too large, too deep or not Unicode. Storing such a
        value fails, with an error that does not name the argument."""
        value = self.read(declared)
        if self._encoded is None:
            try:
                CODEC.encode(value, declared)
            except UNSTORABLE as error:
                raise self.misplaced(error) from error
        return value

    def misplaced(self, error: Exception) -> Exception:
        """Return the error of a value that cannot be stored, for the caller who sent it."""
        if self._encoded is not None:
            return error
        return misplaced(self.name, error)


def misplaced(name: str, error: Exception) -> Misplaced:
    """Return an error that names the place of a value, as in `input.lines[0].price`."""
    text = str(error)
    found = _VALUE.match(text)
    if found is None:
        return Misplaced(f"{name}: {text}")
    path, colon, said = text[found.end() :].partition(": ")
    place = name + _NAMED.sub(r".\1", path)
    return Misplaced(f"{place}{colon}{said}")


NOTHING = Payload("input")
"""The payload None."""


def is_time(name: str, declared: Any) -> bool:
    """Return whether a field or argument is a time."""
    named = name in TIMES or name.endswith(TIME_ENDS)
    return named and float in (declared, *get_args(declared))


def time_text(seconds: float | None) -> str | None:
    """Return a time in RFC 3339. None for a time that is not known, because its record is
    damaged."""
    if not seconds or not isfinite(seconds):
        return None
    with suppress(OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"
    return None


def read_time(value: object, name: str) -> float | None:
    """Return the seconds since the epoch of a time in RFC 3339, or of a number of seconds."""
    if value is None:
        return None
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            if isfinite(seconds := float(value)):
                return seconds
    if isinstance(value, str):
        with suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is not None:
                return moment.timestamp()
    raise Misplaced(
        f"{name} must be a time with a time zone, such as 2026-01-31T14:00:00Z, got {value!r}"
    )


def names() -> dict[str, Any]:
    """Return names that annotations use and that their modules import for the type checker only."""
    from keyrun.control.names import NAMES

    return NAMES


class Fields(NamedTuple):
    """The fields of a class, with their types."""

    cls: type
    types: dict[str, Any]
    """The fields that the constructor takes."""
    derived: dict[str, Any]
    """The public properties."""
    defaults: dict[str, Any]


def fields_of(cls: Any) -> Fields | None:
    """Return the public fields of an attrs class or a named tuple. None for other types."""
    if not isinstance(cls, type):
        return None
    if attrs.has(cls):
        fields = [each for each in attrs.fields(cls) if not each.name.startswith("_")]
        found = {each.name: each.default for each in fields}
    elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
        given = getattr(cls, "_field_defaults", {})
        found = {name: given.get(name, attrs.NOTHING) for name in cls._fields}
    else:
        return None
    hints = get_type_hints(cls, localns=names())
    derived = {
        name: get_type_hints(each.fget, localns=names()).get("return", Any)
        for name, each in vars(cls).items()
        if isinstance(each, property) and not name.startswith("_") and each.fget is not None
    }
    defaults = {name: value for name, value in found.items() if value is not attrs.NOTHING}
    return Fields(cls, {name: hints[name] for name in found}, derived, defaults)


@cache
def _is_record(cls: Any) -> bool:
    return fields_of(cls) is not None


class Shapes:
    """Writes values of declared types in one form. Writers and schemas are made once."""

    def __init__(self) -> None:
        self._writers: dict[Any, Hook] = {}

    def writer(self, declared: Any, name: str = "") -> Hook:
        """Return the function that writes values of a type, which is that of the field `name`."""
        if is_time(name, declared):
            return self.time
        if name.endswith(SEVERAL_TIMES):
            return lambda value: [self.time(each) for each in value]
        try:
            known = self._writers.get(declared)
        except TypeError:
            return self._make(declared)
        if known is None:
            # A class may contain itself.
            self._writers[declared] = lambda value: self._writers[declared](value)
            known = self._writers[declared] = self._make(declared)
        return known

    @staticmethod
    def time(value: Any) -> Any:
        """Write a time."""
        raise NotImplementedError

    @staticmethod
    def payload(value: Any) -> Any:
        """Write a payload."""
        raise NotImplementedError

    @staticmethod
    def member(value: Any) -> Any:
        """Write a member of an enum, or its value."""
        return value.value if isinstance(value, Enum) else value

    def _make(self, declared: Any) -> Hook:
        origin, inner = get_origin(declared) or declared, get_args(declared)
        if origin in (Union, UnionType):
            return self._union([each for each in inner if each is not NoneType])
        if origin is float:
            return self._number
        if origin in (bool, int, str, bytes, NoneType, Literal):
            return self.payload if origin is bytes else _keep
        if origin in LISTS and inner:
            each = self.writer(inner[0])
            return lambda value: [each(item) for item in value]
        if origin in (dict, Mapping) and inner:
            each = self.writer(inner[1])
            return lambda value: {str(key): each(item) for key, item in value.items()}
        if isinstance(origin, type) and issubclass(origin, Enum):
            return self.member
        fields = fields_of(origin)
        return self.payload if fields is None else self.object(fields)

    @staticmethod
    def _number(value: float) -> float | None:
        return value

    def _union(self, members: list[Any]) -> Hook:
        if Any in members or any(isinstance(each, TypeVar) for each in members):
            return self.payload
        if len(members) == 1:
            one = self.writer(members[0])
            return lambda value: None if value is None else one(value)
        known = {get_origin(each) or each: self.writer(each) for each in members}
        if float in known:
            known.setdefault(int, known[float])
        several = next((each for kind, each in known.items() if kind in LISTS), None)

        def write(value: Any) -> Any:
            if value is None:
                return None
            found = next((known[each] for each in type(value).__mro__ if each in known), None)
            if found is not None:
                return self.one_of(value, found(value))
            if (
                several is not None
                and isinstance(value, Collection | Iterable)
                and type(value) is not str
            ):
                return several(value)
            return value if type(value) in PLAIN_WORDS else self.payload(value)

        return write

    @staticmethod
    def one_of(value: Any, written: Any) -> Any:
        """Write a value at a place for one of several types."""
        return written

    def object(self, fields: Fields) -> Hook:
        """Return the writer of a class."""
        raise NotImplementedError


def is_object(declared: Any) -> bool:
    """Return whether the values of a type are JSON objects, except for None."""
    members = get_args(declared)
    if NoneType in members:
        return all(is_object(each) for each in members if each is not NoneType)
    origin = get_origin(declared) or declared
    return origin in (dict, Mapping) or fields_of(origin) is not None


def _keep(value: Any) -> Any:
    return value


class JsonShapes(Shapes):
    """The form for people and other languages."""

    def __init__(self) -> None:
        super().__init__()
        self.schemas: dict[str, Schema] = {}
        """The schemas of classes, by name."""

    @staticmethod
    def time(value: Any) -> Any:
        return time_text(value)

    @staticmethod
    def payload(value: Any) -> Any:
        return to_json(value.codec.decode(value.data) if type(value) is LargePayload else value)

    @staticmethod
    def member(value: Any) -> Any:
        if not isinstance(value, Enum):
            return value
        return value.name.lower() if isinstance(value, int) else value.value

    @staticmethod
    def _number(value: float) -> float | None:
        return value if isfinite(value) else None

    def object(self, fields: Fields) -> Hook:
        every = fields.types | fields.derived
        writers = [(name, self.writer(declared, name)) for name, declared in every.items()]
        return lambda value: {name: write(getattr(value, name)) for name, write in writers}

    def schema(self, declared: Any, name: str = "") -> Schema:
        """Return the JSON Schema of a type. Classes are named in `schemas`."""
        origin, inner = get_origin(declared) or declared, get_args(declared)
        if is_time(name, declared):
            return {"type": ["string", "null"], "format": "date-time"} if inner else TIME
        if origin in (Union, UnionType):
            return self._union_schema(inner)
        if origin in PLAIN:
            return PLAIN[origin]
        if origin is Literal:
            return {"enum": list(inner)}
        if origin in LISTS and inner:
            each = TIME if name.endswith(SEVERAL_TIMES) else self.schema(inner[0])
            return {"type": "array", "items": each}
        if origin in (dict, Mapping) and inner:
            return {"type": "object", "additionalProperties": self.schema(inner[1])}
        if isinstance(origin, type) and issubclass(origin, Enum):
            return {"type": "string", "enum": [self.member(member) for member in origin]}
        fields = fields_of(origin)
        return ANYTHING if fields is None else self._object_schema(fields)

    def _union_schema(self, members: tuple[Any, ...]) -> Schema:
        if Any in members or any(isinstance(each, TypeVar) for each in members):
            return ANYTHING
        known = [each for each in members if not _is_unset(each)]
        if len(known) == 1:
            return self.schema(known[0])
        return {"anyOf": [self.schema(member) for member in known]}

    def _object_schema(self, fields: Fields) -> Schema:
        name = fields.cls.__name__
        if name not in self.schemas:
            self.schemas[name] = {}  # a class may contain itself
            every = fields.types | fields.derived
            self.schemas[name] = {
                "type": "object",
                **described_class(fields.cls),
                "properties": described(
                    fields.cls,
                    {field: self.schema(declared, field) for field, declared in every.items()},
                ),
                "required": list(every),
            }
        return {"$ref": f"#/components/schemas/{name}"}


class WireShapes(Shapes):
    """The form for Python clients, which also read it. Objects leave out the fields that have their
    default."""

    def __init__(self) -> None:
        super().__init__()
        self._readers: dict[Any, Hook] = {}

    @staticmethod
    def time(value: Any) -> Any:
        return value

    @staticmethod
    def payload(value: Any) -> Any:
        if type(value) is LargePayload:
            return value.codec.unwrap(value.data)
        return value.on_wire() if isinstance(value, Payload) else CODEC.encode(value)

    @staticmethod
    def one_of(value: Any, written: Any) -> Any:
        cls: Any = type(value)
        return [cls.__name__, written] if _is_record(cls) else written

    def object(self, fields: Fields) -> Hook:
        writers = [
            (name, self.writer(declared, name), fields.defaults.get(name, attrs.NOTHING))
            for name, declared in fields.types.items()
        ]

        def write(value: Any) -> Any:
            found = {}
            for name, each, default in writers:
                item = getattr(value, name)
                if item is not default:
                    found[name] = each(item)
            return found

        return write

    def reader(self, declared: Any) -> Hook:
        """Return the function that reads what `writer` has written."""
        try:
            known = self._readers.get(declared)
        except TypeError:
            return self._make_reader(declared)
        if known is None:
            self._readers[declared] = lambda data: self._readers[declared](data)
            known = self._readers[declared] = self._make_reader(declared)
        return known

    def _make_reader(self, declared: Any) -> Hook:
        origin, inner = get_origin(declared) or declared, get_args(declared)
        if origin is Payload:
            return Payload.from_wire
        if origin in (Union, UnionType):
            return self._union_reader([each for each in inner if each is not NoneType])
        if origin in (bool, int, float, str, NoneType, Literal):
            return _keep
        if origin in LISTS and inner:
            each, container = self.reader(inner[0]), CONTAINERS.get(origin, list)
            return lambda data: container([each(item) for item in data])
        if origin in (dict, Mapping) and inner:
            each = self.reader(inner[1])
            return lambda data: {key: each(item) for key, item in data.items()}
        if isinstance(origin, type) and issubclass(origin, Enum):
            return origin
        fields = fields_of(origin)
        return CODEC.decode if fields is None else self._object_reader(fields)

    def _union_reader(self, members: list[Any]) -> Hook:
        if Any in members or any(isinstance(each, TypeVar) for each in members):
            return CODEC.decode
        if len(members) == 1:
            one = self.reader(members[0])
            return lambda data: None if data is None else one(data)
        named = {each.__name__: each for each in members if fields_of(each)}
        readers = {name: self.reader(each) for name, each in named.items()}
        lists = [each for each in members if (get_origin(each) or each) in LISTS]
        enums = [each for each in members if isinstance(each, type) and issubclass(each, Enum)]

        def read(data: Any) -> Any:
            if type(data) is list and not (lists and (not data or data[0] not in readers)):
                return readers[data[0]](data[1])
            if type(data) is list:
                return self.reader(lists[0])(data)
            if enums and isinstance(data, str):
                return enums[0](data)
            return data

        return read

    def _object_reader(self, fields: Fields) -> Hook:
        readers = {name: self.reader(declared) for name, declared in fields.types.items()}
        cls = fields.cls
        return lambda data: cls(**{name: readers[name](item) for name, item in data.items()})


def described_class(cls: type) -> Schema:
    """Return what the docstring of a class says, as a part of its schema."""
    from keyrun.control.field_docs import json_prose

    return {"description": json_prose(one_paragraph(cls.__doc__))}


def described(cls: type, properties: dict[str, Schema]) -> dict[str, Schema]:
    """Return the schemas of the fields of a class, with what their docstrings say."""
    from keyrun.control.field_docs import field_docs

    about = field_docs(cls)
    return {
        name: {**schema, "description": about[name]} if about.get(name) else schema
        for name, schema in properties.items()
    }


def _is_unset(declared: Any) -> bool:
    return getattr(declared, "__name__", "") == "Unset"


def one_paragraph(text: str | None) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


JSON = JsonShapes()
WIRE = WireShapes()


Reader = Callable[[str, Any], Any]
"""Takes the name of a place and JSON data, and returns the value."""

_readers: dict[Any, Reader] = {}


def read_json(name: str, data: Any, declared: Any) -> Any:
    """Return the value of an argument in JSON. Raise `Misplaced` if it does not have the type."""
    return json_reader(name, declared)(name, data)


def json_reader(field: str, declared: Any) -> Reader:
    """Return the function that reads JSON as a type, which is that of an argument or a field."""
    if is_time(field, declared):
        return _read_time
    try:
        known = _readers.get(declared)
    except TypeError:
        return _make_json_reader(declared)
    if known is None:
        # A class may contain itself.
        _readers[declared] = lambda name, data: _readers[declared](name, data)
        known = _readers[declared] = _make_json_reader(declared)
    return known


def _make_json_reader(declared: Any) -> Reader:
    origin, inner = get_origin(declared) or declared, get_args(declared)
    if declared is Payload:
        return Payload
    if declared is str:
        return _read_string
    if origin in LISTS and inner and (inner[0] is Payload or fields_of(inner[0])):
        return _list_reader(inner[0])
    if origin in (dict, Mapping) and inner and inner[1] is Payload:
        return _read_payloads
    fields = fields_of(origin)
    if fields is not None and Payload in fields.types.values():
        return _object_reader(fields)
    if isinstance(origin, type) and issubclass(origin, int) and issubclass(origin, Enum):
        return lambda name, data: _read_member(name, data, origin)
    narrow = _narrow(declared)

    def read(name: str, data: Any) -> Any:
        try:
            return CODEC.read(data, narrow)
        except UNSTORABLE as error:
            raise misplaced(name, error) from error

    return read


def _read_time(name: str, data: Any) -> float | None:
    return read_time(data, name)


def _read_string(name: str, data: Any) -> str:
    if type(data) is not str:
        raise Misplaced(f"{name} must be a string, got {data!r}")
    return data


def _list_reader(declared: Any) -> Reader:
    each = json_reader("", declared)

    def read(name: str, data: Any) -> list[Any]:
        if type(data) is not list:
            raise Misplaced(f"{name} must be a list, got {data!r}")
        return [each(f"{name}[{at}]", item) for at, item in enumerate(data)]

    return read


def _read_payloads(name: str, data: Any) -> dict[str, Payload]:
    if type(data) is not dict:
        raise Misplaced(f"{name} must be an object, got {data!r}")
    return {key: Payload(f"{name}.{key}", item) for key, item in data.items()}


def _object_reader(fields: Fields) -> Reader:
    readers = {field: json_reader(field, each) for field, each in fields.types.items()}
    required = [field for field in fields.types if field not in fields.defaults]
    strings = {field for field, each in fields.types.items() if each in (str, str | None)}
    cls = fields.cls

    def read(name: str, data: Any) -> Any:
        if type(data) is not dict:
            raise Misplaced(f"{name} must be an object, got {data!r}")
        unknown = data.keys() - readers.keys()
        if unknown:
            known = ", ".join(readers)
            raise Misplaced(f"{name} has no field {min(unknown)!r}; its fields are {known}")
        for field in required:
            if field not in data:
                raise Misplaced(f"{name}.{field} is missing")
        values = {}
        for field, item in data.items():
            if type(item) is str and field in strings:
                values[field] = item
            else:
                values[field] = readers[field](f"{name}.{field}", item)
        return cls(**values)

    return read


def _read_member(name: str, data: Any, declared: type[Enum]) -> Enum:
    known = {member.name.lower(): member for member in declared}
    if not isinstance(data, str) or data.lower() not in known:
        raise Misplaced(f"{name} must be one of {', '.join(known)}, got {data!r}")
    return known[data.lower()]


def _narrow(declared: Any) -> Any:
    """Return the type that is read at a place for a wider one, such as a list for an iterable."""
    origin, inner = get_origin(declared) or declared, get_args(declared)
    if isinstance(declared, TypeVar):
        return Any
    if origin in (Union, UnionType):
        return Union[tuple(_narrow(each) for each in inner)]  # noqa: UP007
    if origin is Mapping:
        return GenericAlias(dict, (str, _narrow(inner[1]))) if inner else dict
    if origin in (Collection, Iterable, Sequence):
        return GenericAlias(list, (_narrow(inner[0]),)) if inner else list
    return declared


def read_text(name: str, text: str, declared: Any) -> Any:
    """Return the value of an argument in a query string or in a path."""
    if is_time(name, declared):
        # In a query string, a plus sign that is not encoded is a space.
        return read_time(_OFFSET.sub(r"+\1", text), name)
    kinds = {get_origin(each) or each for each in (declared, *get_args(declared))}
    data: Any = text
    try:
        if bool in kinds:
            data = {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        elif int in kinds:
            data = int(text)
        elif float in kinds:
            data = float(text)
    except (KeyError, ValueError):
        raise Misplaced(f"{name} must be {_said(declared)}, got {text!r}") from None
    return read_json(name, data, declared)


def _said(declared: Any) -> str:
    kinds = [each for each in (declared, *get_args(declared)) if each in PLAIN]
    said = {bool: "true or false", int: "a whole number", float: "a number"}
    return said.get(next(iter(kinds), str), "a text")


def takes_several(declared: Any) -> bool:
    """Return whether an argument of a query string may be repeated."""
    kinds = {get_origin(each) or each for each in (declared, *get_args(declared))}
    return bool(kinds.intersection(LISTS))
