"""Types for annotations: the objects that decorators make and contexts return.

No program creates these objects itself.
"""

from keyrun.runtime.definitions.step import StepFunction
from keyrun.runtime.execution.context import DurableCall
from keyrun.runtime.machines import TurnSignal
from keyrun.runtime.run.scope import FailAfter, MoveOnAfter
from keyrun.runtime.steps.current_step import CurrentStep
from keyrun.runtime.waiting.receive import Approval

__all__ = [
    "Approval",
    "CurrentStep",
    "DurableCall",
    "FailAfter",
    "MoveOnAfter",
    "StepFunction",
    "TurnSignal",
]
