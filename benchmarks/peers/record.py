"""The record of a campaign: what was found, on what, and what could not be measured and why.

It holds all that the table, the chart and the page are made from, and can be kept as JSON.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import attrs

from benchmarks.peers.work import Line

FORMAT = 1


@attrs.define(kw_only=True)
class Record:
    """Found so far. Names of peers and tasks are those of the catalogue and of the work."""

    machine: dict[str, Any] = attrs.field(factory=dict)
    isolated: bool = False
    quick: bool = False
    short_turns: bool = False
    seconds: float = 0.0
    load: float = 0.0
    """How many processes wanted to run in the minute before: what else the machine did."""
    sync_ms: list[float] = attrs.field(factory=list)
    """What a small synced write took, before and after."""
    versions: dict[str, dict[str, str]] = attrs.field(factory=dict)
    missing: dict[str, str] = attrs.field(factory=dict)
    """Peers that could not be measured at all."""
    facts: dict[str, dict[str, list[dict[str, float]]]] = attrs.field(factory=dict)
    """By task and peer, one entry per time that it was done."""
    failed: dict[str, dict[str, str]] = attrs.field(factory=dict)
    """By task and peer, what came instead."""

    def add(self, task: str, peer: str, facts: Mapping[str, float]) -> None:
        """A task was done."""
        self.facts.setdefault(task, {}).setdefault(peer, []).append(dict(facts))

    def fail(self, task: str, peer: str, reason: str) -> None:
        """A task was not done."""
        self.failed.setdefault(task, {})[peer] = reason

    def fact(self, task: str, peer: str, name: str) -> float | None:
        """The median of one fact, or nothing if it was not found."""
        found = self.facts.get(task, {}).get(peer, [])
        values = [facts[name] for facts in found if name in facts]
        return median(values) if values else None

    def figure(self, line: Line, peer: str) -> float | None:
        """What stands in a line of the table for a peer."""
        value = self.fact(line.task, peer, line.fact)
        return None if value is None else value * line.scale

    def write(self, path: Path) -> None:
        """Keep it."""
        path.write_text(json.dumps({"format": FORMAT} | attrs.asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Record":
        """What `write` kept."""
        found = json.loads(path.read_text())
        if found.pop("format", None) != FORMAT:
            raise ValueError(f"{path} is no record of these benchmarks; measure again")
        return cls(**found)
