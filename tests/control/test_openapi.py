"""The OpenAPI description is that of the table, and it is valid."""

import json

from keyrun.control.openapi import FILE, document, text
from keyrun.control.table import OPERATIONS
from tests.control.world import served


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
