"""Contradictions: workflow code that asks for something else than its journal has."""

from typing import Any, Protocol

from keyrun.runtime.errors import NonDeterminism
from keyrun.runtime.unwinding import Halt


class DecidedRun(Protocol):
    """A run whose pass can be ended by a decision."""

    decision: Any

    @property
    def run_id(self) -> str: ...

    @property
    def key(self) -> str: ...


REMEDY = (
    "restore the call, put the change behind ctx.patched(...), or register the changed code as a "
    "new version"
)
"""What to do about code that contradicts a journal."""


def halt(run: DecidedRun, decision: Any) -> Halt:
    """Decide how the pass ends. The first decision counts."""
    if run.decision is None:
        run.decision = decision
    return Halt()


def contradiction(run: DecidedRun, said: str, ident: str) -> NonDeterminism:
    """Return the error that describes a contradiction."""
    return NonDeterminism(said, run_id=run.run_id, key=run.key, step=ident)
