"""Scripts: what clients ask for, when, how long commits take, and how processes end. Plain data."""

from math import inf
from typing import Any, NamedTuple

import attrs


class Action(NamedTuple):
    """Something to do `after` the action before it."""

    after: float
    op: str
    about: str = ""
    """The id of a run, or a key."""
    value: Any = None

    def __repr__(self) -> str:
        value = "" if self.value is None else f", {self.value!r}"
        return f"Action({self.after}, {self.op!r}, {self.about!r}{value})"


class Run(NamedTuple):
    """A run that can be submitted."""

    kind: str
    key: str
    delay: float = 0.0
    brittle: bool = False
    """Whether its code contradicts its journal while the world is `broken`."""


@attrs.frozen(kw_only=True)
class Session:
    """One process."""

    actions: tuple[Action, ...]
    lasts: float = 0.0
    """Seconds from the last action to the end of the block."""
    crash_at: int = 0
    """The commit at which the process is killed; 0 for a process that leaves its block."""
    applied: bool = False
    """Whether the commit of the crash is kept."""
    broken: bool = False
    """Whether code contradicts journals at the start."""
    unregistered: bool = False
    """Whether the workflows of brittle runs are missing."""


@attrs.frozen(kw_only=True)
class Script:
    """All that is to happen."""

    runs: dict[str, Run]
    sessions: tuple[Session, ...]
    latencies: tuple[float, ...] = (0.0,)
    """How long commits take, one after the other, again and again."""
    evict_after: float = inf
    drain_timeout: float = 2.0
    hook_takes: float = 0.0
    seed: int = 0
    """Decides which task runs first."""

    @property
    def crashes(self) -> int:
        """How many sessions may lose what they were committing."""
        return sum(session.crash_at > 0 for session in self.sessions)

    def has(self, op: str) -> bool:
        """Whether something is asked for."""
        return any(action.op == op for session in self.sessions for action in session.actions)

    def __str__(self) -> str:
        lines = ["Script("]
        for name in ("latencies", "evict_after", "drain_timeout", "hook_takes", "seed"):
            lines.append(f"    {name}={getattr(self, name)!r},".replace("=inf", "=float('inf')"))
        lines.append("    runs={")
        lines += [f"        {run_id!r}: {run!r}," for run_id, run in self.runs.items()]
        lines.append("    },\n    sessions=(")
        for session in self.sessions:
            lines.append("        Session(\n            actions=(")
            lines += [f"                {action!r}," for action in session.actions]
            lines.append("            ),")
            for name in ("lasts", "crash_at", "applied", "broken", "unregistered"):
                value = getattr(session, name)
                if value:
                    lines.append(f"            {name}={value!r},")
            lines.append("        ),")
        return "\n".join([*lines, "    ),", ")"])
