"""The errors of nodes. Their base classes decide whether a node is tried again."""

from keyrun._errors import KeyrunError
from keyrun.runtime.errors import PermanentError, TransientError


class NodeFailed(KeyrunError, PermanentError):
    """Raised if a node failed and another attempt cannot succeed."""


class NodeUnavailable(KeyrunError, TransientError):
    """Raised if a service that a node calls does not answer as expected. Another attempt may
    succeed."""


class TemplateFailed(NodeFailed, ValueError):
    """Raised if a template cannot be parsed or rendered. The message names the template."""

    def __init__(self, where: str, reason: str, line: int | None = None) -> None:
        at = "" if line is None else f", line {line}"
        super().__init__(f"the template {where}{at}: {reason}")
        self.reason = reason
        """The message without the name of the template and the line."""
        self.line = line
        """The line in the template, from 1. None if the error is not on one line."""


class CodeFailed(KeyrunError, RuntimeError):
    """Raised if the code of a `code` node raised an exception or ended without a result."""
