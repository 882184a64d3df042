"""Logging: log lines as JSON, and the fields of Keyrun in the log lines of steps.

    handler = logging.StreamHandler()
    handler.addFilter(keyrun.logging.StepFilter())
    handler.setFormatter(keyrun.logging.JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])

`keyrun serve --json-logs` does this.
"""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from keyrun.runtime.logger import FIELDS
from keyrun.runtime.run.running_step import running
from keyrun.runtime.steps.current_step import CurrentStep

__all__ = ["JsonFormatter", "StepFilter"]

_OWN = {*vars(logging.makeLogRecord({})), "asctime", "message", *FIELDS}
"""The attributes of a record that are not from `extra`, and the fields of Keyrun."""


class StepFilter(logging.Filter):
    """Give every record the attributes `run`, `key`, `workflow`, `step`, `attempt` and `event`.

    In the log lines of a step, the first five say which step it is. An attribute that does not
    apply is None. Add the filter to a handler: a filter of a logger does not see the records of
    other loggers."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the attributes that the record does not have. All records pass."""
        about: dict[str, Any] = dict.fromkeys(FIELDS)
        current = running.get()
        if isinstance(current, CurrentStep):
            about |= {
                "run": current.run_id,
                "key": current.key,
                "workflow": current.workflow,
                "step": current.step,
                "attempt": current.attempt,
            }
        for name, value in about.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


class JsonFormatter(logging.Formatter):
    """Write each record as one line of JSON.

    The line has `time` (RFC 3339, in UTC), `level`, `logger` and `message`. It has `run`, `key`,
    `workflow`, `step`, `attempt` and `event` if they apply, `exception` if there is one, and the
    values of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in FIELDS:
            value = getattr(record, name, None)
            if value is not None:
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        for name, value in vars(record).items():
            if name not in _OWN:
                line.setdefault(name, value)
        return json.dumps(line, default=str)
