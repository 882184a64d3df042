"""How the commands show compensation: how far it is, and what could not be compensated."""

from typing import TYPE_CHECKING

from keyrun.runtime.records.journal_entry import COMPENSATION

if TYPE_CHECKING:
    from keyrun import Failure
    from keyrun.status import CompensationProgress


def state_of(state: str, compensating: bool) -> str:
    """The state of a run, with the word for its compensation."""
    return f"{state}, compensating" if compensating else state


def step_name(step: str) -> str:
    """The name of a step, or of the step that a compensation is for."""
    inner = step.removeprefix(COMPENSATION)
    return step if inner == step else f"compensation of {inner}"


def progress_of(compensation: "CompensationProgress | None", ended: bool) -> str | None:
    """How far the compensation is, in words."""
    if compensation is None:
        return None
    steps = "step" if compensation.total == 1 else "steps"
    said = f"{compensation.done} of {compensation.total} {steps} compensated"
    if compensation.step is not None and not ended:
        said += f", now {compensation.step}"
    return said


def not_compensated(
    failure: "Failure | None", compensation: "CompensationProgress | None" = None
) -> str:
    """The steps whose compensation failed, in words; empty if there are none."""
    left = () if failure is None else failure.left
    return ", ".join(left or (() if compensation is None else compensation.left))
