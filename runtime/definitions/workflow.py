"""Workflows: async functions that decide the next step of a run, and their registry."""

import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args, overload

from keyrun.actors import checks
from keyrun.runtime.definitions import fingerprint
from keyrun.runtime.definitions.annotations import declared_types, require_storable
from keyrun.runtime.definitions.step import StepFunction
from keyrun.runtime.errors import UnknownWorkflow
from keyrun.runtime.limits import Limits
from keyrun.runtime.policies.retry import Retry
from keyrun.runtime.texts import check_text
from keyrun.runtime.values import UNSET, Failure, Unset

if TYPE_CHECKING:
    from keyrun.runtime.policies.checkpoint import Checkpoint
    from keyrun.runtime.policies.resources import Resources

I = TypeVar("I")  # noqa: E741 (the input)
T = TypeVar("T")
I_contra = TypeVar("I_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)

WhileWaiting = Literal["hold", "yield"]
WhenFull = Literal["queue", "reject"]
CompensateOn = Literal["completed", "attempted"]


class Workflow(Generic[I_contra, T_co]):
    """Hold a workflow with its name, version and options. `@workflow` and `@machine` return a
    workflow, and a `Graph` is one.

    Pass it to `open_runtime(workflows=[...])` and to `rt.submit`. A direct call of a workflow calls
    the plain function, which helps in unit tests."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        version: int,
        limits: Limits,
        retry: Retry | None,
        input_type: Any,
        result_type: Any,
        kind: Literal["function", "machine", "graph"] = "function",
        compensate_on: CompensateOn = "completed",
        while_waiting: WhileWaiting = "hold",
        instances: int | None = None,
        when_full: WhenFull = "queue",
        checkpoint: "Checkpoint | None" = None,
        written: Callable[..., Any] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name or len(check_text(name, "name").encode()) > 200:
            raise ValueError(f"name must be 1 to 200 bytes long, got {name!r}")
        if not checks.is_count(version, 1):
            raise ValueError(f"version must be a whole number of at least 1, got {version!r}")
        if compensate_on not in get_args(CompensateOn):
            raise ValueError(
                f"compensate_on must be 'completed' or 'attempted', got {compensate_on!r}"
            )
        if not isinstance(limits, Limits):
            raise TypeError(f"limits must be Limits, got {limits!r}")
        if retry is not None and not isinstance(retry, Retry):
            raise TypeError(f"retry must be a Retry, got {retry!r}")
        if instances is not None and not checks.is_count(instances, 1):
            raise ValueError(f"instances must be a whole number of at least 1, got {instances!r}")
        if checkpoint is not None:
            from keyrun.runtime.policies.checkpoint import Checkpoint

            if not isinstance(checkpoint, Checkpoint):
                raise TypeError(
                    f"checkpoint must be EverySteps, EverySeconds or Manual, got {checkpoint!r}"
                )
        if when_full not in get_args(WhenFull):
            raise ValueError(f"when_full must be 'queue' or 'reject', got {when_full!r}")
        if while_waiting not in ("hold", "yield"):
            raise ValueError(f"while_waiting must be 'hold' or 'yield', got {while_waiting!r}")
        self.function = function
        self.name = name
        """The stored name."""
        self.version = version
        """The version."""
        self.limits = limits
        self.retry = retry
        self.input_type = input_type
        self.result_type = result_type
        self.kind = kind
        self.compensate_on = compensate_on
        self.while_waiting = while_waiting
        self.instances = instances
        self.when_full = when_full
        self.checkpoint = checkpoint
        self._written = written or function
        self.takes_input = len(inspect.signature(function).parameters) > 1
        self.__doc__ = function.__doc__
        # Not a `cached_property`, which would make each attribute of the workflow slower to read.
        self._fingerprint: bytes | Unset | None = UNSET

    def fingerprint(self) -> bytes | None:
        """Return the fingerprint of the code, or None if its source cannot be read. The source is
        read once."""
        known = self._fingerprint
        if known is UNSET:
            known = self._fingerprint = self._read_fingerprint()
        return known

    def _read_fingerprint(self) -> bytes | None:
        return fingerprint.of_function(self._written)

    def to_undo(self, idents: list[str], failure: Failure | None) -> list[str]:
        """Return which of the steps that have a compensation are undone if the run ends with
        `failure`, or is cancelled."""
        return idents

    def undone_by(self, ident: str) -> StepFunction[..., Any] | None:
        """Return the step with the compensation of `ident`, if it is known without running the
        code."""
        return None

    def require_storable(self, *, resolved: bool = False) -> None:
        """Raise if no input or no result could be stored as it is declared. With `resolved`, all
        classes that the annotations name must be defined."""
        require_storable(self.input_type, f"the input of {self!r}", resolved=resolved)
        require_storable(self.result_type, f"the result of {self!r}", resolved=resolved)

    def registered(self, shared: "Resources | None") -> None:
        """Check the workflow for a runtime whose runs share these resources. Raise if it cannot
        run there."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function, for unit tests of it."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<workflow {self.name} v{self.version}>"


def _check_signature(function: Callable[..., Any]) -> None:
    signature = inspect.signature(function)
    try:
        # The workflow is called with the context, or with the context and the input.
        signature.bind(*[None, None] if len(signature.parameters) > 1 else [None])
    except TypeError:
        raise TypeError(
            f"a workflow must take the context, or the context and one input, but "
            f"{function.__name__} takes {signature}; put several values into a dict, a tuple or a "
            "class"
        ) from None


Function = Callable[[Any, I], Coroutine[Any, Any, T]]
NoInput = Callable[[Any], Coroutine[Any, Any, T]]


class _WorkflowDecorator:
    """The type of what `@workflow(...)` returns."""

    @overload
    def __call__(self, function: Function[I, T], /) -> Workflow[I, T]: ...
    @overload
    def __call__(self, function: NoInput[T], /) -> Workflow[None, T]: ...
    def __call__(self, function: Any, /) -> Any:
        raise AssertionError("only for the type checker")


@overload
def workflow(function: Function[I, T], /) -> Workflow[I, T]: ...
@overload
def workflow(function: NoInput[T], /) -> Workflow[None, T]: ...
@overload
def workflow(
    *,
    name: str | None = ...,
    version: int = ...,
    limits: Limits = ...,
    retry: Retry | None = ...,
    compensate_on: CompensateOn = ...,
    while_waiting: WhileWaiting = ...,
    instances: int | None = ...,
    when_full: WhenFull = ...,
    checkpoint: "Checkpoint | None" = ...,
) -> _WorkflowDecorator: ...
def workflow(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    retry: Retry | None = None,
    compensate_on: CompensateOn = "completed",
    while_waiting: WhileWaiting = "hold",
    instances: int | None = None,
    when_full: WhenFull = "queue",
    checkpoint: "Checkpoint | None" = None,
) -> Any:
    """Make a workflow of `async def f(ctx)` or `async def f(ctx, input)`.

    Keyrun may run the code between the steps again: it makes decisions and must have no effects of
    its own.

    - `name`: the stored name, by default the name of the function.
    - `version`: Register several versions at once to finish old runs with old code.
    - `limits`: limits of the runs. Limits that are not set come from the runtime.
    - `retry`: the retry policy of steps that have none of their own.
    - `compensate_on`: With `"attempted"`, Keyrun also undoes steps that failed or were cut off.
    - `while_waiting`: With `"yield"`, the next run of the key executes while a run waits for a
      timer, a signal, an approval or a child.
    - `instances`: the number of runs that may be under way at once, from start to end. Others wait.
    - `when_full`: With `"reject"`, a submit beyond `instances` raises `Backpressure`.
    - `checkpoint`: `EverySteps`, `EverySeconds` or `Manual`: how often a run waits until its
      outcomes are durable. By default it waits before every step.
    """

    def decorate(function: Callable[..., Any]) -> Workflow[Any, Any]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"@workflow requires an async function, got {function!r}")
        _check_signature(function)
        types = declared_types(function)
        parameters = list(inspect.signature(function).parameters)
        defined: Workflow[Any, Any] = Workflow(
            function,
            name=name or function.__name__,
            version=version,
            limits=limits,
            retry=retry,
            compensate_on=compensate_on,
            input_type=types.get(parameters[1], Any) if len(parameters) > 1 else Any,
            result_type=types.get("return", Any),
            while_waiting=while_waiting,
            instances=instances,
            when_full=when_full,
            checkpoint=checkpoint,
        )
        defined.require_storable()
        return defined

    return decorate if function is None else decorate(function)


class Registry:
    """The workflows of a runtime, by name and version."""

    def __init__(
        self, workflows: Iterable[Workflow[Any, Any]], resources: "Resources | None" = None
    ) -> None:
        self._versions: dict[str, dict[int, Workflow[Any, Any]]] = {}
        for each in workflows:
            if not isinstance(each, Workflow):
                raise TypeError(
                    f"workflows must be made with @workflow, @machine or Graph, got {each!r}"
                )
            versions = self._versions.setdefault(each.name, {})
            if versions.get(each.version, each) is not each:
                raise ValueError(
                    f"two workflows are called {each.name!r} version {each.version}; give one of "
                    "them another name or version"
                )
            each.require_storable(resolved=True)
            each.registered(resources)
            # Computed now, because the file may be replaced later.
            each.fingerprint()
            versions[each.version] = each
        self._latest = {name: known[max(known)] for name, known in self._versions.items()}

    def __iter__(self) -> "Iterator[Workflow[Any, Any]]":
        for versions in self._versions.values():
            yield from versions.values()

    def fingerprint(self, name: str, version: int) -> bytes | None:
        """Return the fingerprint of a version. None if it is not registered or has no source."""
        workflow = self.find(name, version)
        return None if workflow is None else workflow.fingerprint()

    def latest(self, wanted: "Workflow[Any, Any] | str") -> Workflow[Any, Any]:
        """Return the highest version of a workflow, which new runs use."""
        if type(wanted) is Workflow and (latest := self._latest.get(wanted.name)) is not None:
            return latest
        name = wanted if isinstance(wanted, str) else getattr(wanted, "name", None)
        latest = self._latest.get(name) if isinstance(name, str) else None
        if latest is None:
            known = ", ".join(sorted(self._versions)) or "none"
            raise UnknownWorkflow(
                f"{name or wanted!r} is not a workflow of this runtime, which has: {known}; "
                "pass it to open_runtime(workflows=[...])"
            )
        return latest

    def find(self, name: str, version: int) -> Workflow[Any, Any] | None:
        """Return one version of a workflow, or None if it is not registered."""
        versions = self._versions.get(name)
        return None if versions is None else versions.get(version)
