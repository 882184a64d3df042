"""Answers: the JSON text of what operations answer.

A large answer takes long to write. It is written in a thread, part by part, so that the event loop
continues: Python lets another thread run between two parts, and not within one.
"""

from itertools import islice
from typing import Any

import anyio.to_thread
import attrs

from keyrun.control.json_text import dump
from keyrun.control.operation import Operation
from keyrun.control.redacting import Redacting
from keyrun.control.shapes import LargePayload

FEW = 300
"""Values that are written without a pause."""
SHORT = 32 * 1024
"""Characters or bytes that are written without a pause."""


async def text_of(operation: Operation, answer: Any, redacting: Redacting | None = None) -> bytes:
    """Return the JSON text of what an operation answers, with redacted payloads."""
    # The records that a write answers are small, and looking at them takes time.
    if (operation.writes and attrs.has(type(answer))) or not is_large(answer):
        return _text(operation, answer, redacting)
    return await anyio.to_thread.run_sync(_text_in_parts, operation, answer, redacting)


def _written(operation: Operation, answer: Any, redacting: Redacting | None) -> Any:
    shown = answer if redacting is None else redacting.answer(operation, answer)
    return operation.write_json(shown)


def _text(operation: Operation, answer: Any, redacting: Redacting | None) -> bytes:
    written = _written(operation, answer, redacting)
    return dump(written if operation.answers_object else {"result": written})


def _text_in_parts(operation: Operation, answer: Any, redacting: Redacting | None) -> bytes:
    written = _written(operation, answer, redacting)
    parts: list[bytes] = []
    _add(written if operation.answers_object else {"result": written}, parts)
    return b"".join(parts)


def is_large(value: Any) -> bool:
    """Return whether a value has more than a few values inside."""
    left, count, size = [value], 0, 0
    while left:
        each = left.pop()
        kind = type(each)
        count += 1
        if kind is str or kind is bytes:
            size += len(each)
        elif kind is LargePayload:
            return True
        elif kind is dict:
            count += len(each)
            left += islice(each.values(), FEW)
        elif kind is list or kind is tuple or kind is set or kind is frozenset:
            left += islice(each, FEW)
        elif attrs.has(kind):
            left += [getattr(each, name, None) for name in _names(kind)]
        if count > FEW or len(left) > FEW or size > SHORT:
            return True
    return False


def _names(kind: type[Any]) -> list[str]:
    return [each.name for each in attrs.fields(kind)]


def _add(value: Any, parts: list[bytes]) -> None:
    """Add the text of plain data to parts, each of which is small."""
    kind = type(value)
    if kind is dict and is_large(value):
        before = b"{"
        for name, each in value.items():
            parts += (before, dump(name), b":")
            _add(each, parts)
            before = b","
        parts.append(b"}")
    elif kind is list and is_large(value):
        before = b"["
        for each in value:
            parts.append(before)
            _add(each, parts)
            before = b","
        parts.append(b"]")
    else:
        parts.append(dump(value))
