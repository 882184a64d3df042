"""Redaction: what log lines, spans, the audit log and the HTTP API show of users' data.

The option `redact` is a function that takes a value and returns what may be shown of it. Keyrun
calls it at two places:

1. Where the text of an exception, a reason or a progress message of user code enters the engine. So
   everything that shows the text later, the store included, has what the function returned.
2. Where the HTTP API answers with the value of a payload.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from keyrun._errors import class_name
from keyrun.runtime.logger import logger

Redact: TypeAlias = Callable[[Any], Any]
"""Takes a text or the value of a payload, and returns what may be shown of it."""


class Redaction:
    """Applies the option `redact` of one runtime. With None, everything is shown."""

    __slots__ = ("_function", "_has_failed")

    def __init__(self, function: Redact | None) -> None:
        self._function = function
        self._has_failed = False

    @property
    def hides(self) -> bool:
        """Return whether there is a function."""
        return self._function is not None

    def text(self, text: str) -> str:
        """Return what may be shown of a text."""
        if self._function is None:
            return text
        shown = self.value(text)
        if type(shown) is not str:
            return self.failed(f"it returned {class_name(shown)} for a text")
        # The result is stored, so it must be valid Unicode.
        return shown.encode(errors="backslashreplace").decode()

    def value(self, value: Any) -> Any:
        """Return what may be shown of the value of a payload."""
        if self._function is None or value is None:
            return value
        try:
            return self._function(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self.failed(f"it raised {class_name(error)}")

    def failed(self, why: str) -> str:
        """Return what is shown if the function fails. Log the first failure, without the value and
        without the message of the error, which may have a part of the value."""
        if not self._has_failed:
            self._has_failed = True
            logger.error(
                "the function redact failed, so values are hidden: %s; it has to accept every "
                "value, and to return a str for a str",
                why,
                extra={"event": "redact_failed"},
            )
        return HIDDEN


HIDDEN = "[redact failed]"
"""What is shown in place of a value if the function fails."""
SHOW_ALL = Redaction(None)
"""For tools that show a program its own data."""
