"""Compensation as the commands show it: its progress, and the steps that it could not undo."""

from typing import TYPE_CHECKING

from keyrun.runtime.records.journal_entry import COMPENSATION

if TYPE_CHECKING:
    from keyrun import Failure
    from keyrun.status import CompensationProgress


def state_of(state: str, compensating: bool) -> str:
    """Return the state of a run, and "compensating" if a compensation is running."""
    return f"{state}, compensating" if compensating else state


def step_name(step: str) -> str:
    """Return the name of a step, or the name of the step that a compensation is for."""
    inner = step.removeprefix(COMPENSATION)
    return step if inner == step else f"compensation of {inner}"


def progress_of(compensation: "CompensationProgress | None", ended: bool) -> str | None:
    """Return the progress of the compensation as a phrase."""
    if compensation is None:
        return None
    steps = "step" if compensation.total == 1 else "steps"
    text = f"{compensation.done} of {compensation.total} {steps} compensated"
    if compensation.step is not None and not ended:
        text += f", now compensating {compensation.step}"
    return text


def not_compensated(
    failure: "Failure | None", compensation: "CompensationProgress | None" = None
) -> str:
    """Return the names of the steps whose compensation failed; an empty string if none failed."""
    left = () if failure is None else failure.left
    return ", ".join(left or (() if compensation is None else compensation.left))
