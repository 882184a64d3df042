"""Checks every answer of the HTTP API against the shipped `openapi.json`."""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft202012Validator, FormatChecker

from keyrun.control.openapi import FILE

PROBLEM = "application/problem+json"
JSON = "application/json"
LINES = "application/x-ndjson"
EVENTS = "text/event-stream"

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def _is_time(value: object) -> bool:
    return not isinstance(value, str) or bool(_TIME.fullmatch(value))


_FORMATS = FormatChecker(())
_FORMATS.checkers = {"date-time": (_is_time, ())}


@cache
def _document() -> dict[str, Any]:
    """Return the description. Its objects have no members that it does not name, so that an answer
    with another member fails."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    for name, schema in found["components"]["schemas"].items():
        if name != "Problem":
            schema["additionalProperties"] = False
    return found


@cache
def _paths() -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    return [
        (re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), methods)
        for path, methods in _document()["paths"].items()
    ]


@cache
def _validator(schema: str) -> Draft202012Validator:
    whole = json.loads(schema) | {"components": _document()["components"]}
    return Draft202012Validator(whole, format_checker=_FORMATS)


def check(schema: Mapping[str, Any], value: object) -> None:
    """Raise AssertionError if a value does not match a schema of the description."""
    error = next(_validator(json.dumps(schema)).iter_errors(value), None)
    assert error is None, f"{error.json_path}: {error.message}"


def described(method: str, path: str) -> dict[str, Any] | None:
    """Return the description of a request. None if there is none."""
    for pattern, methods in _paths():
        if pattern.fullmatch(path):
            found: dict[str, Any] | None = methods.get(method.lower())
            return found
    return None


def check_problem(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Raise AssertionError unless an answer is a problem with this status."""
    assert headers["content-type"] == PROBLEM, headers
    problem = json.loads(body)
    check({"$ref": "#/components/schemas/Problem"}, problem)
    assert problem["status"] == status
    assert (status in (429, 503)) == ("retry-after" in headers)


def check_answer(
    method: str, target: str, status: int, headers: Mapping[str, str], body: bytes, root: str = ""
) -> None:
    """Raise AssertionError if an answer is not as the description says."""
    path = target.partition("?")[0]
    if root and unquote(path).startswith(root + "/"):
        path = unquote(path)[len(root) :]
    if method == "HEAD":
        assert body == b""
        return
    if status == 204:
        assert method == "OPTIONS"
        return
    if status == 307 or (status < 400 and (path == "/" or path.startswith("/page/"))):
        return  # a file of the web page
    operation = described(method, path)
    kind = headers["content-type"].partition(";")[0]
    if status != 200 and kind != "text/plain":
        check_problem(status, headers, body)
        return
    assert operation is not None, f"{method} {path} is not in the description"
    content = operation["responses"][str(status)]["content"]
    assert kind in content, f"{kind} is not one of {[*content]}"
    if kind == JSON:
        check(content[JSON]["schema"], json.loads(body))
    elif kind == LINES:
        for line in body.splitlines():
            check(content[LINES]["x-item"], json.loads(line))
    elif kind == EVENTS:
        check_events(content[EVENTS]["x-item"], body)


def check_events(item: Mapping[str, Any], body: bytes) -> None:
    """Raise AssertionError if an event of a stream does not match its schema. The body may stop
    anywhere."""
    for block in body.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        assert fields.keys() <= {"retry", "id", "event", "data"}, fields
        if "data" not in fields:
            continue
        data = json.loads(fields["data"])
        if fields.get("event") == "end":
            assert data == {}
        elif fields.get("event") == "error":
            check({"$ref": "#/components/schemas/Problem"}, data)
        else:
            check(item, data)
