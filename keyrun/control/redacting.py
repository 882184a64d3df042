"""Redacting: the values of payloads in the answers of the API, as the option `redact` returns them.

Texts of errors were redacted before they were stored. So this module only looks at payloads. It
makes a copy of an answer, because the runtime may keep the original.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast, get_args, get_origin

import attrs

from keyrun.control.operation import Operation
from keyrun.control.requests import WholeHistory
from keyrun.control.roles import NotAllowed
from keyrun.control.shapes import CODEC, LISTS, UNSTORABLE, Fields, Hook, LargePayload, Shapes
from keyrun.runtime.inspect.workflows import WorkflowInfo
from keyrun.runtime.redaction import Redaction
from keyrun.storage.payload import PayloadCodec

EXPORT = "export"
"""The operation that returns the records of a run with all payloads in them."""


def shown(redaction: Redaction, value: Any) -> Any:
    """Return what may be shown of the value of a payload, which can be encoded."""
    found = redaction.value(value)
    if found is not value:
        try:
            CODEC.encode(found)
        except UNSTORABLE as error:
            return redaction.failed(f"it returned a value that is no payload: {error}")
    return found


class RedactingCodec:
    """Decodes large payloads, which are decoded when they are written."""

    def __init__(self, codec: PayloadCodec, redaction: Redaction) -> None:
        self._codec = codec
        self._redaction = redaction

    def decode(self, data: bytes) -> Any:
        """Return what may be shown of a payload."""
        return shown(self._redaction, self._codec.decode(data))

    def unwrap(self, data: bytes) -> bytes:
        """Return what may be shown of a payload, encoded."""
        return CODEC.encode(self.decode(data))


class Redacting(Shapes):
    """Copies answers with what may be shown of their payloads. It may be used in any thread."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction

    @classmethod
    def of(cls, redaction: Redaction) -> "Redacting | None":
        """Return what redacts answers, or None if everything is shown."""
        return cls(redaction) if redaction.hides else None

    def answer(self, operation: Operation, answer: Any) -> Any:
        """Return what may be shown of the answer of an operation, or of an item of a stream."""
        if operation.name == EXPORT:
            raise NotAllowed(
                "this runtime redacts payloads, and an exported history has all of them; run "
                "`keyrun history STORE RUN --export FILE` where the store is"
            )
        return self.writer(operation.result)(answer)

    @staticmethod
    def time(value: Any) -> Any:
        return value

    @staticmethod
    def member(value: Any) -> Any:
        return value

    # `Shapes` calls it as a method.
    def payload(self, value: Any) -> Any:  # type: ignore[override]
        """Return what may be shown of a payload."""
        if type(value) is LargePayload:
            codec = cast("PayloadCodec", RedactingCodec(value.codec, self._redaction))
            return LargePayload(codec, value.data)
        return shown(self._redaction, value)

    def _make(self, declared: Any) -> Hook:
        origin, inner = get_origin(declared) or declared, get_args(declared)
        if origin is bytes:
            return self._encoded
        if origin is WorkflowInfo:
            return _keep  # its schemas are no payloads
        if origin in LISTS and inner:
            each = self.writer(inner[0])
            # A tuple stays one, because an answer may be compared with its type.
            return lambda value: type(value)(map(each, value)) if type(value) in _COPIED else value
        if origin in (dict, Mapping) and inner:
            each = self.writer(inner[1])
            return lambda value: {key: each(item) for key, item in value.items()}
        return super()._make(declared)

    def _encoded(self, data: bytes) -> bytes:
        """Return what may be shown of an encoded payload. A payload that is encrypted stays so."""
        try:
            value = CODEC.decode(data)
        except UNSTORABLE:
            return data
        return CODEC.encode(shown(self._redaction, value))

    def object(self, fields: Fields) -> Hook:
        writers: list[tuple[str, Callable[[Any], Any]]] = [
            (name, self.writer(declared, name)) for name, declared in fields.types.items()
        ]
        if fields.cls is WholeHistory:
            writers.append(("export", lambda text: None))
        named_tuple = not attrs.has(fields.cls)

        def write(value: Any) -> Any:
            changed = {}
            for name, each in writers:
                before = getattr(value, name)
                after = each(before)
                if after is not before:
                    changed[name] = after
            if not changed:
                return value
            return value._replace(**changed) if named_tuple else attrs.evolve(value, **changed)

        return write


_COPIED = (list, tuple, set, frozenset)


def _keep(value: Any) -> Any:
    return value
