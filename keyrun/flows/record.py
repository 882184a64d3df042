"""Records: the shapes of values with others in them."""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from keyrun.flows.shape import Choice, Problem, Schema, Shape, hint, said
from keyrun.flows.source import Place


@attrs.frozen
class Either:
    """A word, or else a shape."""

    word: str
    shape: Shape

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """What is wrong with a value that is not the word."""
        if value != self.word:
            yield from self.shape.problems(value, place)

    def schema(self) -> Schema:
        """The word, or the shape."""
        return {"anyOf": [{"const": self.word}, self.shape.schema()]}


@attrs.frozen
class ListOf:
    """A list of values of one shape."""

    shape: Shape

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """What is no list, and what is wrong with each of its items."""
        if not isinstance(value, list):
            yield place, f"must be a list, got {said(value)}"
            return
        for at, item in enumerate(value):
            yield from self.shape.problems(item, (*place, at))

    def schema(self) -> Schema:
        """An array."""
        return {"type": "array", "items": self.shape.schema()}


@attrs.frozen(kw_only=True)
class MapOf:
    """A mapping from names to values of one shape."""

    shape: Shape
    some: bool = False
    """Whether it must not be empty."""

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """What is no mapping, and what is wrong with each of its values."""
        if not isinstance(value, dict):
            yield place, f"must be a mapping, got {said(value)}"
            return
        if self.some and not value:
            yield place, "must not be empty"
        for name, item in value.items():
            yield from self.shape.problems(item, (*place, name))

    def schema(self) -> Schema:
        """An object."""
        least = {"minProperties": 1} if self.some else {}
        return {"type": "object", "additionalProperties": self.shape.schema(), **least}


@attrs.frozen
class Field:
    """One field of a record, in words for who writes a flow."""

    shape: Shape
    about: str
    required: bool = False


@attrs.frozen
class Record:
    """A mapping with these fields and no others."""

    fields: Mapping[str, Field]

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """What is missing, what is not known, and what is wrong with each field."""
        if not isinstance(value, dict):
            yield place, f"must be a mapping, got {said(value)}"
            return
        for name, field in self.fields.items():
            if name in value:
                yield from field.shape.problems(value[name], (*place, name))
            elif field.required:
                yield place, f"needs {name!r}: {field.about}"
        for name in value:
            if name not in self.fields:
                yield (*place, name), f"is not known here{hint(name, tuple(self.fields))}"

    def schema(self) -> Schema:
        """An object with properties."""
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
    """A record whose fields depend on the word in one of them, `field`, or on `default` where that
    is not there."""

    field: str
    records: Mapping[str, Record]
    about: str
    default: str | None = None

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """What is wrong with that field, and else with those that come with it."""
        if not isinstance(value, dict):
            yield place, f"must be a mapping, got {said(value)}"
            return
        words = tuple(self.records)
        if self.field not in value and self.default is None:
            yield place, f"needs {self.field!r}, one of {', '.join(words)}"
            return
        word = value.get(self.field, self.default)
        if not isinstance(word, str) or word not in self.records:
            yield from Choice(words).problems(word, (*place, self.field))
            return
        record = self.records[word]
        known = Field(Choice(words), self.about)
        yield from Record({self.field: known, **record.fields}).problems(value, place)

    def schema(self) -> Schema:
        """One of the records."""
        return {"oneOf": [self._schema(word) for word in self.records]}

    def _schema(self, word: str) -> Schema:
        record = Record(
            {self.field: Field(Choice((word,)), self.about), **self.records[word].fields}
        )
        found = record.schema()
        if word != self.default:
            found["required"] = [self.field, *found.get("required", [])]
        return found


@attrs.frozen
class Later:
    """A shape that is described elsewhere, since it contains this one."""

    name: str

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        """What is wrong with it is found by who knows it."""
        if not isinstance(value, dict):
            yield place, f"must be a mapping, got {said(value)}"

    def schema(self) -> Schema:
        """Where it is described."""
        return {"$ref": f"#/$defs/{self.name}"}
