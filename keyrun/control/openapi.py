"""The OpenAPI description of the HTTP API, derived from the table of operations.

`python -m keyrun.control.openapi` writes `openapi.json`, which is part of the package.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from keyrun.control.batches import MEDIA_TYPE as LINES
from keyrun.control.field_docs import json_prose
from keyrun.control.operation import Operation, Parameter
from keyrun.control.problems import MEDIA_TYPE
from keyrun.control.requests import NewRun, Session
from keyrun.control.shapes import (
    LISTS,
    JsonShapes,
    Schema,
    described,
    described_class,
    fields_of,
    is_time,
)
from keyrun.control.table import OPERATIONS
from keyrun.runtime.values import Unset

FILE = Path(__file__).with_name("openapi.json")

PROBLEM: Schema = {
    "type": "object",
    "description": "An error (RFC 9457). Errors of some kinds have further members.",
    "properties": {
        "type": {"type": "string", "description": "A URN with the name of the error."},
        "title": {"type": "string", "description": "The meaning of the status code."},
        "status": {"type": "integer", "description": "The status code."},
        "detail": {"type": "string", "description": "What happened, and what to do."},
        "error": {"type": "string", "description": "The name of the error in Python."},
    },
    "required": ["type", "title", "status", "detail", "error"],
}
OPERATION_ID: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
}
WORDS = {"text/plain": {"schema": {"type": "string"}}}


class InputShapes:
    """The schemas of what callers send."""

    def __init__(self, answers: JsonShapes) -> None:
        self._answers = answers
        self.schemas: dict[str, Schema] = {}
        """The schemas of classes, by name."""

    def schema(self, declared: Any, name: str = "") -> Schema:
        """Return the schema of an argument."""
        origin, inner = get_origin(declared) or declared, get_args(declared)
        if is_time(name, declared):
            kinds: list[str] = ["string", "number"]
            return {"type": [*kinds, "null"] if NoneType in inner else kinds}
        if origin in (Union, UnionType):
            members = [self.schema(each) for each in inner if each is not Unset]
            return members[0] if len(members) == 1 else {"anyOf": members}
        if origin in LISTS and inner:
            return {"type": "array", "items": self.schema(inner[0])}
        fields = fields_of(origin)
        if fields is None:
            return self._answers.schema(declared, name)
        title = fields.cls.__name__
        if title not in self.schemas:
            self.schemas[title] = {}
            self.schemas[title] = {
                "type": "object",
                **described_class(fields.cls),
                "properties": described(
                    fields.cls,
                    {field: self.schema(each, field) for field, each in fields.types.items()},
                ),
                "required": [each for each in fields.types if each not in fields.defaults],
                "additionalProperties": False,
            }
        return {"$ref": f"#/components/schemas/{title}"}

    def body(self, parameters: Iterable[Parameter]) -> Schema:
        """Return the schema of an object of arguments."""
        given = list(parameters)
        return {
            "type": "object",
            "properties": {each.name: self.described(each) for each in given},
            "required": [each.name for each in given if each.required],
            "additionalProperties": False,
        }

    def described(self, parameter: Parameter) -> Schema:
        """Return the schema of an argument with its description."""
        found = self.schema(parameter.declared, parameter.name)
        if not parameter.about:
            return found
        return {**found, "description": sentence(parameter.about)}


def sentence(text: str) -> str:
    """Return a text as a sentence."""
    return json_prose(text[:1].upper() + text[1:])


def prose(operation: Operation) -> str:
    """Return the description of an operation without that of its arguments."""
    parts = operation.description.split("\n\n")
    kept = [" ".join(each.split()) for each in parts if not each.startswith("- `")]
    if operation.may_have_no_answer:
        kept.append("Over HTTP, the answer is 404 instead of None.")
    return json_prose("\n\n".join(kept))


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _operation(operation: Operation, answers: JsonShapes, inputs: InputShapes) -> Schema:
    every = operation.parameters.values()
    in_body = [each for each in every if not each.in_path] if operation.verb != "GET" else []
    if operation.verb == "DELETE":
        in_body = []
    plain = [each for each in every if each not in in_body]
    found: Schema = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"{prose(operation)}\n\nRequires the role `{operation.role}`.",
        "parameters": [
            {
                "name": each.name,
                "in": "path" if each.in_path else "query",
                "required": each.in_path or each.required,
                "schema": inputs.schema(each.declared, each.name),
                **({"description": sentence(each.about)} if each.about else {}),
            }
            for each in plain
        ],
    }
    if operation.writes:
        found["parameters"].append(OPERATION_ID)
    if operation.verb in ("POST", "PUT"):
        content = _json(inputs.body(in_body))
        if operation.name == "submit":
            content[LINES] = {
                "schema": {
                    "type": "string",
                    "description": "One run per line, each a JSON object like `NewRun`.",
                }
            }
        required = any(each.required for each in in_body)
        found["requestBody"] = {"content": content, "required": required}
    result = answers.schema(_without_none(operation.result))
    if not operation.answers_object:
        result = {"type": "object", "properties": {"result": result}, "required": ["result"]}
    content = _json(result)
    if operation.streams:
        content = {"text/event-stream": {"schema": {"type": "string"}, "x-item": result}}
        if not operation.answers_object:
            content["text/event-stream"]["x-item"] = result["properties"]["result"]
    if operation.name == "submit":
        problem = {"$ref": "#/components/schemas/Problem"}
        content[LINES] = {"schema": {"type": "string"}, "x-item": {"anyOf": [result, problem]}}
    found["responses"] = {
        "200": {"description": "The answer.", "content": content},
        "default": {"$ref": "#/components/responses/Problem"},
    }
    return found


def _without_none(declared: Any) -> Any:
    members = [each for each in get_args(declared) if each is not NoneType]
    if NoneType in get_args(declared):
        return Union[tuple(members)]  # noqa: UP007
    return declared


def _own(summary: str, schema: Schema, **more: Any) -> Schema:
    return {
        "summary": summary,
        **more,
        "responses": {
            "200": {"description": "The answer.", "content": _json(schema)},
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }


def _probe(name: str, summary: str, other: dict[str, Schema]) -> Schema:
    good = {"description": "`ok`", "content": WORDS}
    return {
        "operationId": name,
        "summary": summary,
        "security": [],
        "responses": {"200": good, **other},
    }


def document() -> Schema:
    """Return the OpenAPI description."""
    answers = JsonShapes()
    inputs = InputShapes(answers)
    inputs.schema(NewRun)
    paths: dict[str, Schema] = {}
    for operation in (each for each in OPERATIONS.values() if each.path):
        described = _operation(operation, answers, inputs)
        paths.setdefault(f"/v1{operation.path}", {})[operation.verb.lower()] = described
    empty: Schema = {"type": "object"}
    paths["/v1/session"] = {
        "get": _own(
            "Return who calls, and what this caller may do.",
            answers.schema(Session),
            operationId="session",
        ),
        "post": _own("Exchange the token for a cookie.", empty, operationId="begin_session"),
        "delete": _own("End the session of the cookie.", empty, operationId="end_session"),
    }
    paths["/v1/openapi.json"] = {
        "get": _own("Return this description.", empty, operationId="openapi")
    }
    paths["/metrics"] = {
        "get": _own("Return the metrics for Prometheus.", {}, operationId="metrics")
    }
    paths["/metrics"]["get"]["responses"]["200"]["content"] = WORDS
    unready = {"503": {"description": "A word that says why not.", "content": WORDS}}
    paths["/livez"] = {"get": _probe("livez", "Answer while the process answers.", {})}
    paths["/readyz"] = {"get": _probe("readyz", "Answer whether work is accepted.", unready)}
    clash = {
        name for name, each in inputs.schemas.items() if answers.schemas.get(name, each) != each
    }
    assert not clash, f"classes that are sent and answered need two schemas: {clash}"
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Keyrun",
            "version": "1",
            "description": "Operate a Keyrun runtime: see the page about the HTTP API.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": dict(
                sorted({**answers.schemas, **inputs.schemas, "Problem": PROBLEM}.items())
            ),
            "responses": {
                "Problem": {
                    "description": "An error.",
                    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
            },
        },
    }


def text() -> str:
    """Return the text of the file."""
    return json.dumps(document(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
