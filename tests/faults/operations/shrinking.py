"""Shrinking: removes from a script that breaks a rule what it does not need for that."""

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import attrs

from tests.faults.operations.script import Action, Script, Session


def shrunk(script: Script, fails: Callable[[Script], bool]) -> Script:
    """The smallest script found that fails."""
    while True:
        for candidate in _smaller(script):
            if fails(candidate):
                script = candidate
                break
        else:
            return script


def _smaller(script: Script) -> Iterator[Script]:
    """Scripts with less in them, those that save most first."""
    sessions = script.sessions
    for at in range(len(sessions)):
        if len(sessions) > 1:
            yield attrs.evolve(script, sessions=sessions[:at] + sessions[at + 1 :])
    for run_id in script.runs:
        fewer = {one: run for one, run in script.runs.items() if one != run_id}
        if fewer:
            yield attrs.evolve(
                script,
                runs=fewer,
                sessions=tuple(
                    attrs.evolve(s, actions=_without(s.actions, run_id)) for s in sessions
                ),
            )
    for at, session in enumerate(sessions):

        def changed(at: int = at, session: Session = session, **values: Any) -> Script:
            new = attrs.evolve(session, **values)
            return attrs.evolve(script, sessions=(*sessions[:at], new, *sessions[at + 1 :]))

        for number in range(len(session.actions)):
            yield changed(actions=_without(session.actions, at=number))
        for name in ("crash_at", "broken", "unregistered"):
            if getattr(session, name):
                yield changed(**{name: type(getattr(session, name))()})
        for number, action in enumerate(session.actions):
            if action.after:
                rest = session.actions[number + 1 :]
                yield changed(
                    actions=(*session.actions[:number], action._replace(after=0.0), *rest)
                )
    simple: dict[str, Any] = {"latencies": (0.0,), "evict_after": inf, "hook_takes": 0.0, "seed": 0}
    for name, value in simple.items():
        if getattr(script, name) != value:
            yield attrs.evolve(script, **{name: value})
    if len(script.latencies) > 1:
        for latency in sorted(set(script.latencies)):
            yield attrs.evolve(script, latencies=(latency,))
    for run_id, run in script.runs.items():
        for simpler in (run._replace(delay=0.0), run._replace(brittle=False)):
            if simpler != run:
                yield attrs.evolve(script, runs={**script.runs, run_id: simpler})


def _without(
    actions: tuple[Action, ...], about: str | None = None, at: int = -1
) -> tuple[Action, ...]:
    """Actions without some, at the same times as before."""
    kept: list[Action] = []
    late = 0.0
    for number, action in enumerate(actions):
        if number == at or action.about == about:
            late += action.after
        else:
            kept.append(action._replace(after=round(action.after + late, 6)))
            late = 0.0
    return tuple(kept)
