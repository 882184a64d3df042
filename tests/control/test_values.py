"""Values in JSON: what is sent is the same input as the value in Python, and comes back as it was.

The path of a value that does not fit is in the error.
"""

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import pytest
from pydantic import BaseModel

from keyrun import Context, Workflow, workflow
from keyrun.storage.json_form import LARGEST, to_json
from tests.control.world import Account, Answer, Client, served

JSON = [("content-type", "application/json")]
AT = datetime(2026, 1, 31, 14, tzinfo=UTC)
ID = UUID(int=7)


class Colour(Enum):
    RED = "red"
    PAIR = ("a", 2)
    PRICE = Decimal("1.20")


class Level(IntEnum):
    HIGH = 2


@attrs.frozen
class Line:
    sku: str
    price: Decimal
    count: int = 1


@attrs.frozen
class Order:
    lines: list[Line]
    tags: frozenset[str] = frozenset()
    weight: float = 0.0
    at: datetime | None = None


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Row(TypedDict):
    day: date


class Model(BaseModel):
    at: datetime
    lines: set[int] = set()


def echo(declared: Any) -> Workflow[Any, Any]:
    """Return a workflow whose input and result have a type."""

    async def function(ctx: Context, value: Any) -> Any:
        return value

    function.__annotations__ = {"ctx": Context, "value": declared, "return": declared}
    return workflow(name="echo")(function)


TEXTS: list[tuple[Any, Any, str]] = [
    (Any, None, "null"),
    (Any, True, "true"),
    (Any, 5, "5"),
    (Any, 5.0, "5.0"),
    (Any, 5.0, '{"$float": "5"}'),
    (Any, 0.1, "0.1"),
    (Any, 5e-324, "5e-324"),
    (Any, LARGEST, "9007199254740992"),
    (Any, LARGEST + 1, "9007199254740993"),
    (Any, LARGEST + 1, '{"$int": "9007199254740993"}'),
    (Any, 2**64 - 1, '{"$int": "18446744073709551615"}'),
    (Any, -(2**63), "-9223372036854775808"),
    (Any, float("inf"), '{"$float": "inf"}'),
    (Any, b"\x00\xff", '{"$bytes": "AP8="}'),
    (Any, AT, '{"$datetime": "2026-01-31T14:00:00Z"}'),
    (Any, date(2026, 1, 31), '{"$date": "2026-01-31"}'),
    (Any, Decimal("1.20"), '{"$decimal": "1.20"}'),
    (Any, ID, f'{{"$uuid": "{ID}"}}'),
    (Any, (1, (2,)), '{"$tuple": [1, {"$tuple": [2]}]}'),
    (Any, {"$bytes": "x"}, '{"$dict": {"$bytes": "x"}}'),
    (Any, {"$dict": {}}, '{"$dict": {"$dict": {}}}'),
    (Any, {"$time": "x", "": [{}]}, '{"$time": "x", "": [{}]}'),
    (Any, "\x00ü\U0001f600", '"\\u0000\\u00fc\\ud83d\\ude00"'),
    (dict, {"a": (b"x",)}, '{"a": {"$tuple": [{"$bytes": "eA=="}]}}'),
    (int, LARGEST + 1, "9007199254740993"),
    (int, LARGEST + 1, '{"$int": "9007199254740993"}'),
    (float, 5.0, "5"),
    (float, 1e20, "100000000000000000000"),
    (float, float("-inf"), '{"$float": "-inf"}'),
    (bytes, b"\x00\xff", '"AP8="'),
    (datetime, AT, '"2026-01-31T14:00:00Z"'),
    (
        datetime,
        datetime(2026, 1, 31, 14, tzinfo=timezone(timedelta(hours=1))),
        '"2026-01-31T14:00:00+01:00"',
    ),
    (
        datetime,
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        '"2026-10-25T02:30:00+01:00[Europe/Berlin]"',
    ),
    (date, date(2026, 1, 31), '"2026-01-31"'),
    (Decimal, Decimal("1.20"), '"1.20"'),
    (UUID, ID, f'"{ID}"'),
    (Colour, Colour.RED, '"red"'),
    (Colour, Colour.PAIR, '{"$tuple": ["a", 2]}'),
    (Colour, Colour.PRICE, '"1.20"'),
    (Level, Level.HIGH, "2"),
    (set[int], {3, 1, 2}, "[2, 3, 1]"),
    (frozenset[date], frozenset({date(2026, 1, 31)}), '["2026-01-31"]'),
    (tuple[int, ...], (1, 2), "[1, 2]"),
    (tuple[int, Decimal], (1, Decimal(2)), '[1, "2"]'),
    (list[tuple[int, str]], [(1, "a")], '[[1, "a"]]'),
    (dict[str, bytes], {"a": b"x"}, '{"a": "eA=="}'),
    (Mapping[str, date], {"a": date(2026, 1, 31)}, '{"a": "2026-01-31"}'),
    (Decimal | None, None, "null"),
    (Decimal | None, Decimal(1), '"1"'),
    (Line | Point, Point(1, 2.0), '{"x": 1, "y": 2}'),
    (Literal["a", b"x"], b"x", '{"$bytes": "eA=="}'),
    (Point, Point(1), '{"x": 1}'),
    (Row, Row(day=date(2026, 1, 31)), '{"day": "2026-01-31"}'),
    (
        Order,
        Order([Line("pen", Decimal("2.50"))], frozenset({"b", "a"}), 5.0, AT),
        '{"lines": [{"sku": "pen", "price": "2.50"}], "tags": ["a", "b"], "weight": 5, '
        '"at": "2026-01-31T14:00:00Z"}',
    ),
    (Model, Model(at=AT, lines={2, 1}), '{"at": "2026-01-31T14:00:00Z", "lines": [2, 1]}'),
]


async def send(client: Client, text: str, run_id: str = "r") -> Answer:
    body = f'{{"workflow": "echo", "input": {text}, "key": "k", "run_id": "{run_id}"}}'
    return await client.call("POST", "/v1/runs", body=body.encode(), headers=JSON)


@pytest.mark.parametrize(("declared", "value", "text"), TEXTS, ids=lambda each: ascii(each)[:40])
async def test_json_is_the_same_input_as_the_value_and_comes_back_as_it_was(
    declared: Any, value: Any, text: str, autojump_clock: Any
) -> None:
    flow = echo(declared)
    async with served(options={"workflows": [flow]}) as client:
        assert (await send(client, text)).status == 200
        run = await client.rt.submit(flow, value, key="k", run_id="r")
        assert not run.newly_submitted
        result = await run.result()
        assert (result, type(result)) == (value, type(value))
        await client.rt.submit(flow, value, key="k", run_id="s")
        assert not (await send(client, text, "s")).json["newly_submitted"]
        shown = await client.good("GET", "/v1/runs/r/input")
        assert await client.good("GET", "/v1/runs/r/result") == shown
        if declared is not Model:  # its answer has the names of the fields that were not set
            again = await send(client, json.dumps(shown["result"]))
            assert not again.json["newly_submitted"]


async def test_a_nan_is_the_same_input_as_the_value(autojump_clock: Any) -> None:
    flow = echo(float)
    async with served(options={"workflows": [flow]}) as client:
        assert (await send(client, '{"$float": "nan"}')).status == 200
        assert not (await client.rt.submit(flow, float("nan"), key="k", run_id="r")).newly_submitted
        shown = await client.good("GET", "/v1/runs/r/result?wait=5")
        assert shown == {"result": {"$float": "nan"}}


async def test_an_answer_has_no_number_that_javascript_would_round(autojump_clock: Any) -> None:
    flow = echo(Any)
    async with served(options={"workflows": [flow]}) as client:
        for run_id, number in (("a", LARGEST), ("b", LARGEST + 1), ("c", -LARGEST - 1)):
            await client.rt.submit(flow, number, key="k", run_id=run_id)
            shown = (await client.good("GET", f"/v1/runs/{run_id}/result?wait=5"))["result"]
            assert shown == (number if abs(number) <= LARGEST else {"$int": str(number)})


REFUSED: list[tuple[Any, str, str]] = [
    (Order, '{"lines": [{"sku": "a", "price": "x"}]}', "input.lines[0].price: 'x' is not the text"),
    (Order, '{"lines": [{"sku": "a", "price": 1.5}]}', "input.lines[0].price: expected Decimal"),
    (Order, '{"lines": [{"sku": "a"}]}', "input.lines[0].price: this field is required"),
    (Order, '{"lines": [], "at": "2026-01-31T14:00:00"}', "input.at: "),
    (Order, '{"lines": [], "weight": 1e999}', "input.weight: the number is too large"),
    (Order, '{"lines": [], "skew": 1}', "input: Order has no field 'skew'"),
    (Order, '{"lines": [{"sku": "\\udfff", "price": "1"}]}', "input.lines[0].sku: '\\udfff' has"),
    (Line, '{"sku": "a", "price": "1", "count": 18446744073709551616}', "input.count: the int"),
    (Line, '{"sku": "a", "price": "1", "count": 1.0}', "input.count: expected int, got a float"),
    (Line, '{"sku": 5, "price": "1"}', "input.sku: expected str, got an int"),
    (datetime, '"31.1.2026"', "input: '31.1.2026' is not the text of a datetime"),
    (date, '"tomorrow"', "input: 'tomorrow' is not the text of a date"),
    (UUID, '"7"', "input: '7' is not the text of a UUID"),
    (bytes, '"?"', "input: '?' is not the text of a bytes"),
    (Colour, '"blue"', "input: expected one of 'red'"),
    (set[int], '["a"]', "input[0]: expected int, got a str"),
    (tuple[int, int], "[1]", "input: expected tuple[int, int], got an array of 1"),
    (dict[str, int], '{"a b": "x"}', 'input["a b"]: expected int, got a str'),
    (Model, '{"at": "soon"}', "input.at: Input should be a valid datetime"),
    (Any, '{"a": [18446744073709551616]}', "input.a[0]: the int does not fit into 64 bits"),
    (Any, '{"a": [{"$datetime": "2026-01-31T14:00:00"}]}', 'input.a[0]["$datetime"]: '),
    (Any, '{"a": {"$int": "1.5"}}', "input.a[\"$int\"]: '1.5' is not the text of a int"),
    (Any, '{"a": {"$uuid": 7}}', 'input.a["$uuid"]: expected the text of a uuid, got 7'),
    (Any, '{"\\ud800": 1}', "input: the key '\\ud800' has half of a surrogate pair"),
    (Any, "[" * 70 + "]" * 70, "input[0][0][0]"),
]


@pytest.mark.parametrize(("declared", "text", "says"), REFUSED, ids=lambda each: ascii(each)[:40])
async def test_a_value_that_does_not_fit_is_refused_with_its_path(
    declared: Any, text: str, says: str, autojump_clock: Any
) -> None:
    async with served(options={"workflows": [echo(declared)]}) as client:
        answer = await send(client, text)
        assert answer.status == 422, answer.body
        assert answer.json["detail"].startswith(says)


HUGE = {"a": [2**64]}
RUN = {"workflow": "echo", "key": "k"}


@pytest.mark.parametrize(
    ("method", "target", "data", "place"),
    [
        ("POST", "/v1/batches", {"runs": [{"workflow": "echo", "key": "k", "input": HUGE}]}, None),
        (
            "POST",
            "/v1/runs/r/submit-or-signal",
            {"workflow": "echo", "key": "k", "name": "go", "input": HUGE},
            "input.a[0]",
        ),
        (
            "POST",
            "/v1/runs/r/submit-or-signal",
            {"workflow": "echo", "key": "k", "name": "go", "payload": HUGE},
            "payload.a[0]",
        ),
        ("POST", "/v1/runs/r/signals/go", {"payload": HUGE}, "payload.a[0]"),
        (
            "POST",
            "/v1/groups/g",
            {"members": [RUN, RUN | {"input": HUGE}]},
            "members[1].input.a[0]",
        ),
        (
            "PUT",
            "/v1/schedules/s",
            {"workflow": "echo", "key": "k", "when": {"every": 9}, "input": HUGE},
            "input.a[0]",
        ),
        ("POST", "/v1/entities/Account/ann/deposit", {"args": ["x"]}, "args[0]"),
        ("POST", "/v1/entities/Account/ann/deposit", {"kwargs": {"amount": "x"}}, "kwargs.amount"),
    ],
)
async def test_each_operation_names_the_path_of_a_payload_that_does_not_fit(
    method: str, target: str, data: Any, place: str | None, autojump_clock: Any
) -> None:
    async with served(options={"workflows": [echo(Any)], "entities": [Account]}) as client:
        await client.rt.pause_all()
        if "signals" in target:
            await client.good("POST", "/v1/runs", {"workflow": "echo", "key": "k", "run_id": "r"})
        answer = await client.call(method, target, data)
        if place is None:
            (problem,) = answer.json["result"]
            place = "runs[0].input.a[0]"
        else:
            problem = answer.json
        assert problem["status"] == 422
        assert problem["detail"].startswith(f"{place}: "), problem["detail"]


async def test_a_signal_and_the_answer_of_an_entity_keep_their_values(autojump_clock: Any) -> None:
    async with served() as client:
        await client.good(
            "POST", "/v1/runs", {"workflow": "wait_for_go", "key": "k", "run_id": "r"}
        )
        value = {"raw": b"\x00", "when": AT, "pair": (1, Decimal("2.0")), "big": 2**60}
        await client.good("POST", "/v1/runs/r/signals/go", {"payload": to_json(value)})
        shown = await client.good("GET", "/v1/runs/r/result?wait=5")
        assert shown == {"result": to_json(value)}
        assert await client.rt.run("r").result() == value
