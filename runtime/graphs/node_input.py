"""What a node is told, which is its own: what it changes of that nobody else sees.

Outputs are handed from node to node as they are, and routing looks at them too. A function that
changed them would change what others see, and only until the run is driven again from its journal.
So functions get copies, made of what they look at, anew for each attempt.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from keyrun.runtime.internal_errors import GUARD, from_user
from keyrun.runtime.values import Failure

_FIXED = frozenset({type(None), bool, int, float, str, bytes})
"""Types whose values cannot be changed."""


class Told(NamedTuple):
    """The same as it is, for those who change nothing."""

    run_input: Any
    output: Any
    outputs: Mapping[str, Any]
    port: str | None
    error: Failure | None
    iteration: int


class NodeInput:
    """What a node is told: the input of the run, the output of what triggered it (None for the
    first nodes), the latest output of every node so far, the port it was reached by, the failure
    on a fail edge, and how often it was reached, from 1."""

    __slots__ = ("_own", "told")

    def __init__(
        self,
        run_input: Any = None,
        output: Any = None,
        outputs: Mapping[str, Any] | None = None,
        port: str | None = None,
        error: Failure | None = None,
        iteration: int = 1,
    ) -> None:
        self.told = Told(run_input, output, outputs or {}, port, error, iteration)
        self._own: dict[str, Any] | None = None

    @classmethod
    def of(cls, told: Told) -> "NodeInput":
        """For a function that is about to be called."""
        made = cls.__new__(cls)
        made.told = told
        made._own = None
        return made

    @property
    def run_input(self) -> Any:
        """The input of the run."""
        value = self.told.run_input
        return value if type(value) in _FIXED else self._kept("run_input", value)

    @property
    def output(self) -> Any:
        """The output of what triggered the node; None for the first nodes."""
        value = self.told.output
        return value if type(value) in _FIXED else self._kept("output", value)

    @property
    def outputs(self) -> Mapping[str, Any]:
        """The latest output of every node that had completed, by node."""
        outputs: Mapping[str, Any] = self._kept("outputs", self.told.outputs)
        return outputs

    @property
    def port(self) -> str | None:
        """The port by which the node was reached."""
        return self.told.port

    @property
    def error(self) -> Failure | None:
        """The failure of the node before, on a fail edge."""
        return self.told.error

    @property
    def iteration(self) -> int:
        """How often the node was reached, from 1."""
        return self.told.iteration

    def _kept(self, name: str, value: Any) -> Any:
        with GUARD:
            own = self._own = {} if self._own is None else self._own
            if name not in own:
                own[name] = copied(value)
            return own[name]

    def __repr__(self) -> str:
        return f"NodeInput{self.told!r:.500}".replace("Told", "", 1)


def copied(value: Any) -> Any:
    """The same value, of which nothing that can be changed is shared."""
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is dict:
        return {
            name: each if type(each) in _FIXED else copied(each) for name, each in value.items()
        }
    if kind is list:
        return [each if type(each) in _FIXED else copied(each) for each in value]
    try:
        return deepcopy(value)
    except BaseException as error:
        from_user(error)
        raise
