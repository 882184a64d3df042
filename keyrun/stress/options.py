"""Options of a stress campaign, and the plan of each of its runs."""

from random import Random

import attrs

from keyrun.stress.plan import (
    MAX_ATTEMPTS,
    PlannedFault,
    PlannedPause,
    PlannedRun,
    PlannedStep,
    Stage,
    Way,
)

STEP_LIMIT = 0.1
"""Seconds that steps have which are to run out of time."""
RUN_LIMIT = 0.15
"""Seconds that whole runs have which are to run out of time."""
DOOMED = 0.2
"""Of the share that fails: how many steps fail however often they are tried."""


@attrs.frozen(kw_only=True)
class Options:
    """The options of a campaign. Rates are shares: of attempts that fail or time out, of steps that
    may run once, of runs that are cancelled, delayed, or exceed their time limit, of failed runs
    that are redriven, and of submits that a pause follows. With `crash_every` 0 nothing is
    killed."""

    keys: int = 64
    runs: int = 4000
    steps: int = 5
    fail_rate: float = 0.1
    timeout_rate: float = 0.01
    cancel_rate: float = 0.05
    pause_rate: float = 0.05
    delay_rate: float = 0.03
    once_rate: float = 0.05
    redrive_rate: float = 0.5
    run_timeout_rate: float = 0.02
    crash_every: float = 1.5
    seconds: float = 20.0
    committer: str = "inline"
    seed: int = 0

    def command(self) -> str:
        """Return the command line that repeats this campaign."""
        given = [
            f"--{name.replace('_', '-')} {value}" for name, value in attrs.asdict(self).items()
        ]
        return " ".join(["keyrun stress", *given])

    def plan(self, number: int) -> PlannedRun:
        """Return the plan of run `number`."""
        chance = Random(f"{self.seed}/{number}")
        limited = chance.random()
        # Budgets are exact only where one thing happens after the other.
        budget = chance.randrange(3) if limited < 0.1 else None
        stages: list[Stage] = []
        left = chance.randint(1, self.steps)
        iterations = chance.randint(1, left) if 0.1 <= limited < 0.15 else None
        machine = limited >= 0.85
        hangs = not machine and iterations is None and chance.random() < self.run_timeout_rate
        aside = 0.15 <= limited < 0.85
        first = 0
        while first < left:
            width = 2 if aside and first + 2 <= left and chance.random() < 0.15 else 1
            stages.append(self._stage(chance, first, width))
            first += width
        if machine:
            stages = [_turn(stage) for stage in stages]
        elif hangs:
            stages = _hanging(stages)
        else:
            stages = [self._once(chance, stage) for stage in stages]
        calls = [call for stage in stages for call in stage.calls]
        # What a budget, a kill or a slow machine has a say in would not suffer the same again.
        plain = iterations is None and budget is None and not machine and not hangs
        plain = plain and not any(call.once or call.limit is not None for call in calls)
        redriven = plain and chance.random() < self.redrive_rate
        key = number % self.keys
        ordinal = number // self.keys
        pause = None
        if chance.random() < self.pause_rate:
            pause = PlannedPause(
                number=(ordinal - chance.randint(0, min(3, ordinal))) * self.keys + key,
                whole_key=chance.random() < 0.3,
                seconds=chance.uniform(0.0, 0.1),
            )
        cancelled = chance.random() < self.cancel_rate and not redriven
        delayed = chance.random() < self.delay_rate
        return PlannedRun(
            number=number,
            key=f"key-{key}",
            stages=tuple(stages),
            value=chance.getrandbits(32),
            retry_budget=budget,
            max_iterations=iterations,
            cancel_after=chance.uniform(0.0, 0.15) if cancelled else None,
            pause=pause,
            hook_refuses=chance.random() < 0.01,
            awaited=chance.random() < 0.2 and not redriven,
            machine=machine,
            delay=chance.uniform(0.02, 0.1) if delayed else 0.0,
            run_timeout=RUN_LIMIT if hangs else None,
            redriven=redriven,
        )

    def _stage(self, chance: Random, first: int, width: int) -> Stage:
        calls = []
        for at in range(width):
            way = chance.choices((Way.QUICK, Way.WAIT, Way.THREAD), (5, 4, 1))[0]
            faults = [self._fault(chance, way) for _ in range(MAX_ATTEMPTS)]
            if chance.random() < DOOMED * self.fail_rate:
                faults = [PlannedFault.FAIL] * MAX_ATTEMPTS
            if width > 1:
                faults[-1] = PlannedFault.NONE
                faults = [PlannedFault.FAIL if f is PlannedFault.PERMANENT else f for f in faults]
            calls.append(
                PlannedStep(
                    name=f"step-{first + at}",
                    faults=tuple(faults),
                    way=way,
                    wait=chance.uniform(0.0, 0.01) if way is not Way.QUICK else 0.0,
                    limit=STEP_LIMIT if PlannedFault.TIMEOUT in faults else None,
                    # Of steps side by side only one may hold the state of the key.
                    keeps=at == 0,
                    tolerated=width == 1 and chance.random() < 0.3,
                )
            )
        sleep = chance.uniform(0.001, 0.02) if chance.random() < 0.1 else 0.0
        return Stage(calls=tuple(calls), sleep=sleep)

    def _once(self, chance: Random, stage: Stage) -> Stage:
        """Return the stage. Some steps are `at_most_once`."""
        if len(stage.calls) > 1 or chance.random() >= self.once_rate:
            return stage
        return attrs.evolve(stage, calls=(attrs.evolve(stage.calls[0], once=True),))

    def _fault(self, chance: Random, way: Way) -> PlannedFault:
        drawn = chance.random()
        if drawn < self.timeout_rate:
            # A thread cannot be stopped.
            return PlannedFault.FAIL if way is Way.THREAD else PlannedFault.TIMEOUT
        if drawn < self.timeout_rate + self.fail_rate:
            return PlannedFault.PERMANENT if chance.random() < 0.1 else PlannedFault.FAIL
        return PlannedFault.NONE


def _hanging(stages: list[Stage]) -> list[Stage]:
    """Return the stages of a run that succeeds until its last step, which hangs."""
    good = [
        attrs.evolve(
            stage,
            calls=tuple(
                attrs.evolve(call, faults=(PlannedFault.NONE,) * MAX_ATTEMPTS, limit=None)
                for call in stage.calls
            ),
        )
        for stage in stages
    ]
    (last, *_) = good[-1].calls
    hang = attrs.evolve(last, faults=(PlannedFault.HANG,) * MAX_ATTEMPTS, way=Way.WAIT, wait=0.0)
    return [*good[:-1], attrs.evolve(good[-1], calls=(hang,))]


def _turn(stage: Stage) -> Stage:
    """Return the stage as a turn of a machine: its step runs in the loop, has no timeout of its
    own, and ends the run if it fails."""
    (call,) = stage.calls
    faults = tuple(
        PlannedFault.FAIL if each is PlannedFault.TIMEOUT else each for each in call.faults
    )
    way = Way.QUICK if call.way is Way.QUICK else Way.WAIT
    call = attrs.evolve(call, faults=faults, way=way, limit=None, tolerated=False)
    return attrs.evolve(stage, calls=(call,))
