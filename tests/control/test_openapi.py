"""The OpenAPI description is that of the table, and it is valid."""

import ast
import json
import re
from pathlib import Path

from keyrun import control
from keyrun.control.openapi import FILE, document, text
from keyrun.control.problems import STATUS
from keyrun.control.table import OPERATIONS
from tests.control.world import served

RAISES = {"Refused", "__init__"}
"""What is called with a status: the error of a refused request, or that of a class below it."""


def test_the_file_is_that_of_the_table() -> None:
    assert FILE.read_text() == text(), "run: python -m website.reference"


def test_the_description_is_valid() -> None:
    from openapi_spec_validator import OpenAPIV31SpecValidator

    OpenAPIV31SpecValidator(document()).validate()


def test_every_operation_is_described() -> None:
    found = {
        each["operationId"]
        for path in document()["paths"].values()
        for each in path.values()
        if "operationId" in each
    }
    assert {name for name, each in OPERATIONS.items() if each.path} <= found


async def test_the_server_answers_the_file(autojump_clock: object) -> None:
    async with served() as client:
        assert await client.good("GET", "/v1/openapi.json") == json.loads(FILE.read_text())


def test_the_page_lists_each_status_that_the_api_answers() -> None:
    answered = {500, *(code for _, code in STATUS)}
    for source in Path(control.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(source.read_text())):
            if (
                isinstance(call, ast.Call)
                and getattr(call.func, "id", getattr(call.func, "attr", None)) in RAISES
                and call.args
                and isinstance(call.args[0], ast.Constant)
                and isinstance(call.args[0].value, int)
            ):
                answered.add(call.args[0].value)
    page = (Path(__file__).parent.parent.parent / "docs/http-api.md").read_text()
    listed = {
        int(code)
        for row in re.findall(r"^\| (\d{3}(?:, \d{3})*) \|", page, re.MULTILINE)
        for code in row.split(", ")
    }
    assert listed == answered
