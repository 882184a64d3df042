"""The logger of the runtime. Every record has run, key, workflow, step, attempt and event."""

import logging
from typing import Any

FIELDS = ("run", "key", "workflow", "step", "attempt", "event")
"""The attributes of every record."""


class _SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that drops the exceptions of its handlers, so that Keyrun completes what it is
    doing."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log as `logging.Logger` does, and drop the exceptions of handlers."""
        try:
            # The record names the line of the caller.
            super().log(level, msg, *args, stacklevel=2, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException:
            return

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Set all fields of a record, to None if they do not apply. Formatters rely on them."""
        kwargs["extra"] = {**dict.fromkeys(FIELDS), **(kwargs.get("extra") or {})}
        return msg, kwargs


class _Fields(logging.Filter):
    """Set the fields of a record that has none, to None."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name in FIELDS:
            if not hasattr(record, name):
                setattr(record, name, None)
        return True


# Layers below, which know no runs. A filter of a logger sees the records of this logger only.
for each in ("keyrun.storage", "keyrun.actors"):
    logging.getLogger(each).addFilter(_Fields())

logger = _SafeLogger(logging.getLogger("keyrun.runtime"), {})
