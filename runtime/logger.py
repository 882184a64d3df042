"""The logger of the runtime. Every record has run, key, workflow, step, attempt and event."""

import logging
from typing import Any

_FIELDS = dict.fromkeys(("run", "key", "workflow", "step", "attempt", "event"))


class _SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose handlers may raise anything. That is no reason to leave what is being done
    half done."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log as `logging.Logger` does, and drop what a handler raises."""
        try:
            # The caller's place in the code, not this one.
            super().log(level, msg, *args, stacklevel=2, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException:
            return

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Give each line all fields, None where they do not apply. Formatters rely on them."""
        kwargs["extra"] = {**_FIELDS, **(kwargs.get("extra") or {})}
        return msg, kwargs


logger = _SafeLogger(logging.getLogger("keyrun.runtime"), {})
