"""`keyrun.logging`: log lines as JSON, and which step a log line of the application comes from."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from keyrun import Context, current_step, step, workflow
from keyrun.logging import JsonFormatter, StepFilter
from keyrun.testing import open_test_runtime

log = logging.getLogger("tests.of.logging")


class Written:
    """What a handler with the filter and the formatter has written."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.handler = logging.StreamHandler(self._stream)
        self.handler.addFilter(StepFilter())
        self.handler.setFormatter(JsonFormatter())

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]

    def of(self, message: str) -> dict[str, Any]:
        """The fields of the only line with a message."""
        (line,) = (line for line in self.lines if line["message"] == message)
        return line


@pytest.fixture
def written() -> Iterator[Written]:
    found, root = Written(), logging.getLogger()
    before = root.level
    root.addHandler(found.handler)
    root.setLevel(logging.INFO)
    yield found
    root.removeHandler(found.handler)
    root.setLevel(before)


async def test_the_lines_of_a_step_say_which_step_it_is(
    written: Written, autojump_clock: Any
) -> None:
    def of_the_application(word: str) -> None:
        log.info("%s", word)

    @step
    async def on_trio() -> None:
        await trio.sleep(1)
        of_the_application("on trio")
        assert current_step().workflow == "job"

    @step
    def in_a_thread() -> None:
        of_the_application("in a thread")

    @workflow
    async def job(ctx: Context) -> None:
        of_the_application("in the workflow")
        await ctx.step(on_trio)
        await ctx.step(in_a_thread)

    async with open_test_runtime(workflows=[job]) as rt:
        await (await rt.submit(job, key="k", run_id="r")).result()
    of_the_application("outside")
    fields = ("run", "key", "workflow", "step", "attempt")
    for message, name in (("on trio", "on_trio"), ("in a thread", "in_a_thread")):
        line = written.of(message)
        assert [line[each] for each in fields] == ["r", "k", "job", name, 1]
        assert line["logger"] == "tests.of.logging"
        assert "event" not in line
    for message in ("in the workflow", "outside"):
        assert not {*fields} & written.of(message).keys()
    ended = next(line for line in written.lines if line.get("event") == "run_succeeded")
    assert ended["run"] == "r"
    assert "step" not in ended


def test_text_formats_can_name_the_fields_in_every_line() -> None:
    record = logging.makeLogRecord({"msg": "hello"})
    assert StepFilter().filter(record)
    assert logging.Formatter("%(message)s %(run)s %(event)s").format(record) == "hello None None"


def test_a_field_that_a_line_has_is_kept() -> None:
    record = logging.makeLogRecord({"msg": "hello", "run": "r", "step": "charge"})
    StepFilter().filter(record)
    assert (record.run, record.step) == ("r", "charge")  # type: ignore[attr-defined]


def test_a_line_is_one_line_of_ascii_with_the_exception_and_extra_values() -> None:
    error = ValueError("two\nlines \udcff ü \x1b[31m")
    record = logging.makeLogRecord(
        {
            "msg": "it\nfailed: %s",
            "args": ("ü\u2028",),
            "name": "shop",
            "levelname": "ERROR",
            "exc_info": (ValueError, error, None),
            "stack_info": "the stack",
            "created": 1_700_000_000.5,
            "order": 7,
            "at": object,
            "level": "not that of the record",
        }
    )
    text = JsonFormatter().format(record)
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text) == {
        "time": "2023-11-14T22:13:20.500Z",
        "level": "ERROR",
        "logger": "shop",
        "message": "it\nfailed: ü\u2028",
        "exception": "ValueError: two\nlines \udcff ü \x1b[31m",
        "stack": "the stack",
        "order": 7,
        "at": "<class 'object'>",
    }
