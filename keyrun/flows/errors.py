"""What can go wrong with a node of a flow, and which of it another attempt can mend."""

from keyrun._errors import KeyrunError
from keyrun.runtime.errors import PermanentError, TransientError


class NodeFailed(KeyrunError, PermanentError):
    """A node cannot do what it is told, and another attempt would not change that."""


class NodeUnavailable(KeyrunError, TransientError):
    """What a node depends on does not answer as it should; another attempt may succeed."""


class TemplateFailed(NodeFailed, ValueError):
    """A template cannot be read, or not be filled in; the message names it and the place."""


class CodeFailed(KeyrunError, RuntimeError):
    """The code of a `code` node raised; the message has the end of what it said."""
