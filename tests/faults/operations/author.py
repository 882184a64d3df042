"""The author: writes scripts at random."""

from math import inf
from random import Random

import attrs

from tests.faults.operations.script import Action, Run, Script, Session

PAUSES = (0.02, 0.1, 0.3, 0.8, 2.5)
GAPS = (0.0, 0.0, 0.001, 0.004, 0.012)
LATENCIES = (0.0, 0.001, 0.005, 0.01, 0.03, 0.1)
KIND_WEIGHTS = {
    "steps": 2,
    "naps": 3,
    "waits": 4,
    "gate": 2,
    "dies": 3,
    "trip": 2,
    "tour": 3,
    "polite": 2,
}
OPS = {
    "submit": 1,
    "cancel": 4,
    "pause": 5,
    "resume": 5,
    "redrive": 8,
    "forget": 2,
    "signal": 4,
    "approve": 2,
    "status": 3,
    "pause_key": 2,
    "resume_key": 3,
    "release_key": 3,
    "pause_all": 0.3,
    "resume_all": 0.6,
    "mend": 3,
    "break": 1,
    "heal": 2,
    "sicken": 1,
    "bug": 0.4,
    "fix": 0.6,
}
ON_KEYS = ("pause_key", "resume_key", "release_key", "bug", "fix")
ON_ALL = ("pause_all", "resume_all", "mend", "break", "heal", "sicken")


class _Author:
    """Writes a script."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        random = self.random
        self.keys = [f"k{n}" for n in range(random.choice((1, 1, 2)))]
        self.runs = {f"r{n}": self.run() for n in range(random.choice((1, 2, 2, 3, 4)))}
        # A forgotten id may be used again, by another run. The model knows one run of each id.
        self.forgettable = {run_id for run_id in self.runs if random.random() < 0.5}
        self.payloads = 0

    def run(self) -> Run:
        random = self.random
        (kind,) = random.choices(list(KIND_WEIGHTS), list(KIND_WEIGHTS.values()))
        delay = random.choice((0.0, 0.0, 0.0, 0.0, 0.5, 3.0))
        return Run(kind, random.choice(self.keys), delay, random.random() < 0.6)

    def script(self, seed: int) -> Script:
        random = self.random
        sessions = [self.first()]
        sessions += [self.later() for _ in range(random.choice((0, 1, 1, 2)))]
        return Script(
            runs=self.runs,
            sessions=tuple(sessions),
            latencies=tuple(random.choice(LATENCIES) for _ in range(random.choice((1, 3, 7)))),
            evict_after=random.choice((0.05, 0.5, inf)),
            drain_timeout=random.choice((0.0, 1.0)),
            hook_takes=random.choice((0.0, 0.0, 0.3)),
            seed=seed,
        )

    def first(self) -> Session:
        random = self.random
        actions = []
        for run_id in self.runs:
            actions.append(Action(random.choice((*GAPS, *PAUSES)), "submit", run_id))
            if random.random() < 0.3:
                actions += self.burst()
        for _ in range(random.choice((0, 0, 1, 3))):
            actions += self.burst()
        return self.session(actions)

    def later(self) -> Session:
        random = self.random
        actions: list[Action] = []
        for _ in range(random.choice((1, 2, 4))):
            actions += self.burst()
        return attrs.evolve(
            self.session(actions),
            broken=random.random() < 0.8,
            unregistered=random.random() < 0.15,
        )

    def session(self, actions: list[Action]) -> Session:
        random = self.random
        return Session(
            actions=tuple(actions),
            lasts=random.choice((0.0, 0.01, 0.5, 3.0)),
            crash_at=random.choice((0, 0, random.randint(1, 30))),
            applied=random.random() < 0.5,
        )

    def burst(self) -> list[Action]:
        """Operations on one run or its key, at about the same time."""
        random = self.random
        run_id = random.choice(list(self.runs))
        wait = random.choice(PAUSES)
        actions = []
        for _ in range(random.choice((1, 2, 3, 4))):
            actions.append(self.action(wait, run_id))
            wait = random.choice(GAPS)
            if random.random() < 0.3:
                actions.append(Action(wait, "status", run_id))
        return actions

    def action(self, after: float, run_id: str) -> Action:
        (op,) = self.random.choices(list(OPS), list(OPS.values()))
        if op == "submit" and run_id in self.forgettable:
            op = "forget"
        elif op == "forget" and run_id not in self.forgettable:
            op = "redrive"
        if op in ON_KEYS:
            return Action(after, op, self.runs[run_id].key)
        if op in ON_ALL:
            return Action(after, op)
        if op in ("signal", "approve"):
            self.payloads += 1
            return Action(after, op, run_id, f"p{self.payloads}")
        return Action(after, op, run_id)


def at_random(seed: int) -> Script:
    """A script."""
    return _Author(seed).script(seed)
