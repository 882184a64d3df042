"""Shapes: describe what a value in a flow may look like.

One description serves two purposes: it checks a value, and it is the JSON Schema for editors. So an
editor accepts what Keyrun accepts.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import attrs

from keyrun.flows.source import Place
from keyrun.flows.times import TIME, ZONE, timestamp_of
from keyrun.runtime.texts import did_you_mean

Schema = dict[str, Any]

_SHOWN = 60
"""Characters of a wrong value that an error repeats."""


class Fault(NamedTuple):
    """Something that is wrong with a flow, and its place.

    `line` counts the lines below the first line of the text at that place.
    """

    place: Place
    reason: str
    line: int = 0


class WrongField(ValueError):
    """A field of a node has a wrong value. `field` is its name, or the place of a part of it below
    the node. `line` is the line of its text, from 1."""

    def __init__(self, field: str | Place, reason: str, line: int = 1) -> None:
        super().__init__(reason)
        self.place: Place = (field,) if isinstance(field, str) else field
        self.reason = reason
        self.line = line


class Shape(Protocol):
    """The shape of a value."""

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Yield all that is wrong with `value`, which is at `place`."""

    def schema(self) -> Schema:
        """Return the same in JSON Schema."""


@attrs.frozen
class Anything:
    """Any value."""

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Accept every value."""
        return iter(())

    def schema(self) -> Schema:
        """Return the schema of every value."""
        return {}


@attrs.frozen(kw_only=True)
class Text:
    """Text. It must not be empty unless `empty`. With `scalar`, a number is accepted as text."""

    empty: bool = False
    scalar: bool = False

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Reject everything else."""
        if self.scalar and isinstance(value, int | float) and not isinstance(value, bool):
            return
        if not isinstance(value, str):
            yield Fault(place, f"must be text, got {shown(value)}")
        elif not value and not self.empty:
            yield Fault(place, "must not be empty")

    def schema(self) -> Schema:
        """Return the schema of a string."""
        kinds = ["string", "number"] if self.scalar else "string"
        return {"type": kinds} if self.empty else {"type": kinds, "minLength": 1}


@attrs.frozen
class Flag:
    """True or false."""

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Reject everything else."""
        if not isinstance(value, bool):
            yield Fault(place, f"must be true or false, got {shown(value)}")

    def schema(self) -> Schema:
        """Return the schema of a boolean."""
        return {"type": "boolean"}


@attrs.frozen(kw_only=True)
class Number:
    """A number from `least` to `most`, or greater than `above`."""

    whole: bool = False
    least: float | None = None
    above: float | None = None
    most: float | None = None
    unit: str = ""
    """The unit that a text such as "10s" is asked to be in, as in "seconds"."""

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Reject everything else."""
        kind = int if self.whole else int | float
        what = "a whole number" if self.whole else "a number"
        what += f" of {self.unit}" if self.unit else ""
        if isinstance(value, bool) or not isinstance(value, kind):
            yield Fault(place, f"must be {what}, got {shown(value)}")
        elif self.least is not None and value < self.least:
            yield Fault(place, f"must be at least {self.least:g}, got {value}")
        elif self.above is not None and value <= self.above:
            yield Fault(place, f"must be greater than {self.above:g}, got {value}")
        elif self.most is not None and value > self.most:
            yield Fault(place, f"must be at most {self.most:,}, got {value}")

    def schema(self) -> Schema:
        """Return the schema of a number or an integer."""
        limits = {
            "minimum": self.least,
            "exclusiveMinimum": self.above,
            "maximum": self.most,
        }
        kind = "integer" if self.whole else "number"
        return {"type": kind, **{name: at for name, at in limits.items() if at is not None}}


@attrs.frozen
class Choice:
    """One of several words. `instead` has words of other tools, and the words that mean the
    same."""

    words: tuple[str, ...]
    instead: Mapping[str, str] = attrs.field(factory=dict)

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Reject every other value."""
        if value not in self.words:
            meant = did_you_mean(value, self.words)
            if isinstance(value, str) and value in self.instead:
                meant = f"; write {self.instead[value]!r}"
            reason = f"must be one of {', '.join(self.words)}; got {shown(value)}"
            yield Fault(place, reason + meant)

    def schema(self) -> Schema:
        """Return the schema of an enumeration."""
        return {"enum": list(self.words)}


@attrs.frozen
class Either:
    """A word, or another shape."""

    word: str
    shape: Shape

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Check a value that is not the word."""
        if value != self.word:
            yield from self.shape.faults(value, place)

    def schema(self) -> Schema:
        """Return the schema of the word or the shape."""
        return {"anyOf": [{"const": self.word}, self.shape.schema()]}


@attrs.frozen
class Templated:
    """Another shape, or one template that gives such a value when the node runs."""

    shape: Shape

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Check a value that is not one template."""
        if not isinstance(value, str):
            yield from self.shape.faults(value, place)
            return
        # Imported here, because shapes are also needed where Jinja2 is not installed.
        from keyrun.flows.templates import is_whole

        if not is_whole(value):
            first, *_ = self.shape.faults(value, place)
            yield Fault(
                place,
                f'{first.reason}; write a single template, as in "{{{{ input.value }}}}", with '
                "nothing around it if the value is known only when the node runs",
            )

    def schema(self) -> Schema:
        """Return the schema of the shape or of a text with a template."""
        return {"anyOf": [self.shape.schema(), {"type": "string", "pattern": r"^\{\{.*\}\}$"}]}


@attrs.frozen
class TimeShape:
    """A time with a time zone, or text with a template that gives one when the node runs."""

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Check a value that has no template."""
        if not isinstance(value, str):
            yield Fault(place, f"must be a time as text, got {shown(value)}")
            return
        # Imported here, because shapes are also needed where Jinja2 is not installed.
        from keyrun.flows.templates import has_template

        if not has_template(value):
            try:
                timestamp_of(value)
            except ValueError as error:
                yield Fault(place, str(error))

    def schema(self) -> Schema:
        """Return the schema of such a text."""
        return {"type": "string", "pattern": rf"^{TIME}{ZONE}$|\{{[{{%]"}


@attrs.frozen
class ListOf:
    """A list of values of one shape. It must not be empty if `some`. Errors show the `example`."""

    shape: Shape
    some: bool = attrs.field(default=False, kw_only=True)
    example: str = attrs.field(default="", kw_only=True)

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Check the list and each of its items."""
        if not isinstance(value, list):
            example = f"; write {self.example!r} for each item" if self.example else ""
            yield Fault(place, f"must be a list, got {shown(value)}{example}")
            return
        if self.some and not value:
            yield Fault(place, "must not be empty")
        for at, item in enumerate(value):
            yield from self.shape.faults(item, (*place, at))

    def schema(self) -> Schema:
        """Return the schema of an array."""
        least = {"minItems": 1} if self.some else {}
        return {"type": "array", "items": self.shape.schema(), **least}


@attrs.frozen(kw_only=True)
class MapOf:
    """A mapping from names to values of one shape. It must not be empty if `some`."""

    shape: Shape
    some: bool = False

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Check the mapping and each of its values."""
        if not isinstance(value, dict):
            yield Fault(place, f"must be a mapping, got {shown(value)}")
            return
        if self.some and not value:
            yield Fault(place, "must not be empty")
        for name, item in value.items():
            yield from self.shape.faults(item, (*place, name))

    def schema(self) -> Schema:
        """Return the schema of an object."""
        least = {"minProperties": 1} if self.some else {}
        return {"type": "object", "additionalProperties": self.shape.schema(), **least}


@attrs.frozen
class Field:
    """One field of a record, with a description for the author of a flow."""

    shape: Shape
    about: str
    required: bool = False


@attrs.frozen
class Record:
    """A mapping with these fields and no others. `what` names it in errors. `instead` says what to
    write for fields that other tools have."""

    fields: Mapping[str, Field]
    what: str
    instead: Mapping[str, str] = attrs.field(factory=dict)

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Report missing fields, unknown fields, and what is wrong with each field."""
        if not isinstance(value, dict):
            yield Fault(
                place, f"must be a mapping with the fields of {self.what}, got {shown(value)}"
            )
            return
        for name, field in self.fields.items():
            if name in value:
                yield from field.shape.faults(value[name], (*place, name))
            elif field.required:
                yield Fault(place, f"requires the field {name!r}: {field.about}")
        for name in value:
            if name not in self.fields:
                yield Fault((*place, name), f"unknown field{self._meant(name)}")

    def _meant(self, name: str) -> str:
        if name in self.instead:
            return f"; {self.instead[name]}"
        known = tuple(self.fields)
        return did_you_mean(name, known) or f"; the fields of {self.what} are {', '.join(known)}"

    def schema(self) -> Schema:
        """Return the schema of an object with properties."""
        required = [name for name, field in self.fields.items() if field.required]
        return {
            "type": "object",
            "properties": {
                name: {**field.shape.schema(), "description": field.about}
                for name, field in self.fields.items()
            },
            "additionalProperties": False,
            **({"required": required} if required else {}),
        }


@attrs.frozen
class Variants:
    """A record whose fields depend on the word in one field, `field`. Without that field, the word
    is `default`. `instead` has words of other tools, and the words that mean the same."""

    field: str
    records: Mapping[str, Record]
    about: str
    default: str | None = None
    instead: Mapping[str, str] = attrs.field(factory=dict)

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Check that field, and then the fields that belong to its word."""
        words = tuple(self.records)
        if not isinstance(value, dict):
            yield Fault(place, f"must be a mapping, got {shown(value)}")
            return
        if self.field not in value and self.default is None:
            yield Fault(place, f"requires the field {self.field!r}: one of {', '.join(words)}")
            return
        word = value.get(self.field, self.default)
        if not isinstance(word, str) or word not in self.records:
            yield from Choice(words, self.instead).faults(word, (*place, self.field))
            return
        record = self.records[word]
        fields = {self.field: Field(Choice(words), self.about), **record.fields}
        yield from attrs.evolve(record, fields=fields).faults(value, place)

    def schema(self) -> Schema:
        """Return the schema of one of the records."""
        return {"oneOf": [self._schema(word) for word in self.records]}

    def _schema(self, word: str) -> Schema:
        chosen = self.records[word]
        fields = {self.field: Field(Choice((word,)), self.about), **chosen.fields}
        found = attrs.evolve(chosen, fields=fields).schema()
        if word != self.default:
            found["required"] = [self.field, *found.get("required", [])]
        return found


@attrs.frozen
class SchemaReference:
    """A shape that is described elsewhere under `name`, because it contains this one."""

    name: str

    def faults(self, value: Any, place: Place) -> Iterator[Fault]:
        """Check that it is a mapping. The code that knows the shape checks the rest."""
        if not isinstance(value, dict):
            yield Fault(place, f"must be a mapping, got {shown(value)}")

    def schema(self) -> Schema:
        """Return a reference to the description."""
        return {"$ref": f"#/$defs/{self.name}"}


def shown(value: Any) -> str:
    """Return a value as an error shows it."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}...")
        case dict():
            return "a mapping"
        case list():
            return "a list"
    return repr(value)
