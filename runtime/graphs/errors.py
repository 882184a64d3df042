"""What can be wrong with a graph, each error with the builtin it is and a way out."""

from keyrun.runtime.errors import PermanentError, RuntimeFault


class InvalidGraph(RuntimeFault, ValueError):
    """A graph that cannot be run; `errors` lists all that is wrong with it."""

    def __init__(self, name: str, errors: list[str]) -> None:
        listed = "".join(f"\n  - {error}" for error in errors)
        super().__init__(f"the graph {name!r} cannot be run:{listed}")
        self.errors = tuple(errors)


class ConditionError(RuntimeFault, ValueError):
    """A condition that could not be answered; the message names the edge and the reason."""


class MissingExtra(RuntimeFault, ImportError):
    """A package of an extra is not installed; the message says how to install it."""


class OutputTooLarge(RuntimeFault, PermanentError, ValueError):
    """The output of a node is larger than it may be; the message names both sizes."""
