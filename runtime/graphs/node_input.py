"""The input of a node.

Outputs pass from node to node without a copy, and conditions read them, too. If a function changed
an output, other nodes would see the change, but only until the run is replayed from its journal. So
each attempt gets its own copies, made of the parts that it reads.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from keyrun.runtime.graphs.condition import NO_FAILURES
from keyrun.runtime.internal_errors import INTERNAL_CODE, from_user
from keyrun.runtime.values import Failure

_FIXED = frozenset({type(None), bool, int, float, str, bytes})
"""Types whose values cannot be changed."""


class Item(NamedTuple):
    """An item of a map, and its place in the list, from 0."""

    at: int
    value: Any


class NodeInputRecord(NamedTuple):
    """The input of a node without copies, for code that changes nothing."""

    run_input: Any
    output: Any
    outputs: Mapping[str, Any]
    port: str | None
    error: Failure | None
    iteration: int
    failures: Mapping[str, Failure] = NO_FAILURES
    item: Item | None = None
    """The item that the node runs for, in the body of a map."""
    is_stored: bool = True
    """Whether the journal has `output`. The outputs of workflow code and of maps are computed."""


class NodeInput:
    """Hold the input of a node. A node receives this as its argument. Each attempt has copies of
    its own, so a node may change them."""

    __slots__ = ("_own", "record")

    def __init__(
        self,
        run_input: Any = None,
        output: Any = None,
        outputs: Mapping[str, Any] | None = None,
        port: str | None = None,
        error: Failure | None = None,
        iteration: int = 1,
        failures: Mapping[str, Failure] | None = None,
        item: Any = None,
        index: int | None = None,
    ) -> None:
        self.record = NodeInputRecord(
            run_input,
            output,
            outputs or {},
            port,
            error,
            iteration,
            failures or NO_FAILURES,
            None if index is None else Item(index, item),
        )
        self._own: dict[str, Any] | None = None

    @classmethod
    def of(cls, record: NodeInputRecord) -> "NodeInput":
        """Return the input for one call of a function."""
        made = cls.__new__(cls)
        made.record = record
        made._own = None
        return made

    @property
    def run_input(self) -> Any:
        """Return the input of the run."""
        value = self.record.run_input
        return value if type(value) in _FIXED else self._kept("run_input", value)

    @property
    def output(self) -> Any:
        """Return the output of the node that triggered this one. None for the first nodes."""
        value = self.record.output
        return value if type(value) in _FIXED else self._kept("output", value)

    @property
    def outputs(self) -> Mapping[str, Any]:
        """Return the latest output of every node that has completed, by the id of the node."""
        outputs: Mapping[str, Any] = self._kept("outputs", self.record.outputs)
        return outputs

    @property
    def port(self) -> str | None:
        """Return the port by which the node was reached, if any."""
        return self.record.port

    @property
    def error(self) -> Failure | None:
        """Return the failure of the node before, if a fail edge led here."""
        return self.record.error

    @property
    def iteration(self) -> int:
        """Return the number of times that the node was reached, from 1."""
        return self.record.iteration

    @property
    def failures(self) -> Mapping[str, Failure]:
        """Return the failures of the nodes before, by the id of the node. A node that joins several
        nodes sees which of them failed."""
        return dict(self.record.failures)

    @property
    def item(self) -> Any:
        """Return the item that the node is for, in the body of a map. None elsewhere."""
        value = None if self.record.item is None else self.record.item.value
        return value if type(value) in _FIXED else self._kept("item", value)

    @property
    def index(self) -> int | None:
        """Return the place of the item in the list, from 0. None outside of a map."""
        return None if self.record.item is None else self.record.item.at

    def _kept(self, name: str, value: Any) -> Any:
        with INTERNAL_CODE:
            own = self._own = {} if self._own is None else self._own
            if name not in own:
                own[name] = copied(value)
            return own[name]

    def __repr__(self) -> str:
        return f"NodeInput{self.record!r:.500}".replace("NodeInputRecord", "", 1)


def copied(value: Any) -> Any:
    """Return a deep copy of a value. Immutable values are shared."""
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
