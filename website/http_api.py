"""The page about the HTTP API, written from the table of operations."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from keyrun.control.openapi import document, prose, sentence
from keyrun.control.operation import Operation
from keyrun.control.roles import Role
from keyrun.control.shapes import one_paragraph
from keyrun.control.table import OPERATIONS

NOTE = "<!-- Generated from the table of operations: python -m website.reference -->"

INTRODUCTION = """\
This page lists every request of the HTTP API. [Operating with curl](curl.md) shows how to use it, and [security](security.md) shows who may use it.
`GET /v1/openapi.json` returns the same as an OpenAPI 3.1 description, for generators of clients.

- Arguments of GET and DELETE are in the query string, and those of POST and PUT in a JSON object. A path has its arguments percent-encoded: the key `a/b` is `a%2Fb`.
- An answer that is not an object is under `result`: `{"result": true}`.
- A client may remove `.` and `..` from a path, also if they are encoded. With curl, use `--path-as-is` for a key that is one of them.
- Times are in RFC 3339. An argument may also be a number of seconds since 1970.
- Values of your application have the form of [values as JSON](values.md#values-as-json).
- A listing returns a page with a `cursor`. Pass it as `cursor` to get the next page. It is null on the last page.
- Errors are problems (RFC 9457): an object with `type`, `title`, `status`, `detail` and `error`, the name of [the error in Python](reference/errors.md).
- `Idempotency-Key` makes a write safe to repeat for an hour. For `POST /v1/runs` without `run_id`, it is the id of the run.
- Each role may do what the roles before it may do: `read`, `submit`, `operate`, `admin`. `metrics` may only read metrics.

| status | meaning |
|---|---|
| 400 | The request is not valid HTTP or JSON. |
| 401, 403 | There is no valid token, or its role does not allow the operation. |
| 404, 405 | There is no such run, workflow, group or path, or the path does not take the method. |
| 408, 413, 415 | The body is too slow, too large, or not JSON. |
| 409 | The state of the run does not allow the operation, a run with the same id has another input, the run whose result was asked for has not ended in time or has failed, or the method of an entity has failed or not returned in time. `error` says which. |
| 414, 431 | The query string is too long, or there are too many headers. |
| 421 | This process only reads the store. Ask the process that owns it. |
| 422 | An argument is not valid. The detail names it. |
| 429, 503 | Too many runs wait to start, the runtime is closing, or a method of an entity raised `TransientError`. Repeat after `Retry-After` seconds. |
| 500 | An error in Keyrun. The log of the process has the details. |
| 507 | The disk or the store is full. |"""

STREAM = """\
The answer is a stream of server-sent events. It sends a comment every 15 seconds, and ends with an event called `end` unless the connection is lost."""


def _type(schema: dict[str, Any]) -> str:
    """Return a short name of a schema."""
    if "$ref" in schema:
        name: str = schema["$ref"].rpartition("/")[2]
        return name
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"array of {_type(schema['items'])}"
    if schema.get("format") == "date-time" or kind == ["string", "number"]:
        return "time"
    if isinstance(kind, list):
        kinds = ["time" if each == "string" and "number" in kind else each for each in kind]
        return " or ".join(each for each in kinds if each not in ("number",) or "time" not in kinds)
    return str(kind)


def _arguments(operation: Operation, described: dict[str, Any]) -> Iterator[str]:
    found = {each["name"]: each["schema"] | each for each in described["parameters"]}
    if "requestBody" in described:
        found |= described["requestBody"]["content"]["application/json"]["schema"]["properties"]
    for each in operation.parameters.values():
        needed = " Required." if each.required and not each.in_path else ""
        yield _line(each.name, found[each.name], needed)


def _entry(operation: Operation, described: dict[str, Any]) -> Iterator[str]:
    yield f"### {operation.name}"
    yield f"```text\n{operation.verb} /v1{operation.path}\n```"
    yield prose(operation)
    arguments = "\n".join(_arguments(operation, described))
    if arguments:
        yield arguments
    content = described["responses"]["200"]["content"]
    if operation.streams:
        item = content["text/event-stream"]["x-item"]
        yield f"{STREAM} The data of the others is: {_type(item)}."
        yield f"Role: `{operation.role}`."
        return
    schema = content["application/json"]["schema"]
    result = schema.get("properties", {}).get("result")
    answer = _type(schema) if result is None else f"`result`: {_type(result)}"
    yield f"Role: `{operation.role}`. Answer: {answer}."


TITLES = {
    "runs": "Runs",
    "batches": "Batches",
    "keys": "Keys",
    "entities": "Entities",
    "groups": "Groups",
    "schedules": "Schedules",
    "bulk": "Bulk operations",
}


def _title(operation: Operation) -> str:
    return TITLES.get(operation.path.split("/")[1], "The runtime")


def page() -> str:
    """Return the page."""
    description = document()
    parts = ["# HTTP API", NOTE, INTRODUCTION]
    order = [*TITLES.values(), "The runtime"]
    operations = sorted(
        (each for each in OPERATIONS.values() if each.path),
        key=lambda each: order.index(_title(each)),
    )
    for title, group in groupby(operations, _title):
        parts.append(f"## {title}")
        for each in group:
            parts += _entry(each, description["paths"][f"/v1{each.path}"][each.verb.lower()])
    parts += ["## Objects", *_objects(description["components"]["schemas"])]
    assert len(Role) == 5, "the introduction names the roles"
    return "\n\n".join(parts) + "\n"


def _objects(schemas: dict[str, Any]) -> Iterator[str]:
    for name, schema in schemas.items():
        yield f"### {name}"
        yield one_paragraph(schema["description"])
        required = set(schema["required"])
        closed = schema.get("additionalProperties") is False
        yield "\n".join(
            _line(field, each, " Required." if closed and field in required else "")
            for field, each in schema["properties"].items()
        )


def _line(name: str, schema: dict[str, Any], needed: str) -> str:
    """Return one argument or field, with what it means."""
    about = f" {sentence(schema['description'])}" if "description" in schema else ""
    return f"- `{name}` ({_type(schema)}):{about}{needed}".rstrip(":")
