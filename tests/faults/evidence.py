"""Evidence: what was seen of a random world from outside, and what is wrong at once.

Everything seen has a number, its tick. Where a call was cut off by a crash, the world looks later
what became of it, and tells that.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from keyrun import RunOutcome, State

if TYPE_CHECKING:
    from tests.faults.plan import Life

NEVER = float("inf")


@attrs.define(eq=False)
class Call:
    """Something that was asked for, from the call to the answer; unanswered until it is known."""

    what: str
    about: str
    life: "Life | None"
    called: float
    answered: float = NEVER
    answer: object = None


@attrs.define(eq=False)
class Sitting:
    """One generation of a life: what was seen of it."""

    life: "Life"
    generation: int
    admitted_after: float
    admitted_before: float = NEVER
    begins: list[int] = attrs.Factory(list)
    cut_off: int = 0
    """How many of these there were when a process was last killed. The news of them may be lost."""
    told: list[RunOutcome] = attrs.Factory(list)
    last: str = ""
    """How its last execution ended."""

    def __str__(self) -> str:
        return f"{self.life} generation {self.generation} of {self.life.key}"


@attrs.define(eq=False)
class Execution:
    """One execution of a step."""

    sitting: Sitting
    step: str
    began: int
    ended: float = NEVER
    ending: str = "running"


class Evidence:
    """Collects, and complains of what is wrong already when it is seen."""

    def __init__(self) -> None:
        self.tick = 0
        self.wrong: list[str] = []
        self.sittings: dict[str, list[Sitting]] = {}
        self.executions: dict[tuple[str, str], list[Execution]] = defaultdict(list)
        self.calls: list[Call] = []
        self.forgotten: set[str] = set()
        self.known: set[str] = set()
        """The lives of which a call said that they are there."""
        self._accepted: set[str] = set()
        self._delayed: set[str] = set()
        self.notes: dict[str, list[str]] = {}
        self.heard: dict[str, dict[str, tuple[int | None, str]]] = defaultdict(dict)
        """By life and step: the call that sent the signal, and the step before the wait for it."""
        self._held: dict[str, float] = {}
        self._running: dict[str, list[Execution]] = defaultdict(list)
        self._seen: dict[str, list[Sitting]] = defaultdict(list)
        self._ends: dict[str, list[tuple[float, str]]] = defaultdict(list)

    def now(self) -> int:
        """The next tick."""
        self.tick += 1
        return self.tick

    def complain(self, said: str) -> None:
        """A promise was broken."""
        self.wrong.append(f"[{self.tick}] {said}")

    def expect(self, life: "Life", *, delayed: bool) -> None:
        """A run may be accepted from here on."""
        if str(life) not in self.sittings:
            self.sittings[str(life)] = [Sitting(life, 1, self.now())]
            if delayed:
                self._delayed.add(str(life))

    def submitted(self, life: "Life") -> None:
        """A run was accepted. One that is delayed has no place yet."""
        self._accepted.add(str(life))
        if str(life) not in self._delayed:
            first = self.sittings[str(life)][0]
            first.admitted_before = min(first.admitted_before, self.now())

    def due(self, life: "Life") -> None:
        """A delayed run has its place only from here on."""
        self.sittings[str(life)][0].admitted_after = self.now()

    def placed(self, life: "Life") -> None:
        """A delayed run must have had its place for a while."""
        self.sittings[str(life)][0].admitted_before = self.now()

    def generations(self, life: "Life") -> int:
        """How many are known."""
        return len(self.sittings[str(life)])

    def is_there(self, life: "Life") -> bool:
        """Whether a run was accepted and not forgotten."""
        return str(life) in self._accepted and str(life) not in self.forgotten

    def is_delayed(self, life: "Life") -> bool:
        """Whether a run was submitted with a delay."""
        return str(life) in self._delayed

    def is_lost(self, life: "Life") -> bool:
        """Whether a run that is not there was there before."""
        return str(life) in self.known and str(life) not in self.forgotten

    def asked(self, what: str, life: "Life") -> bool:
        """Whether a call has been made about a run and not been answered."""
        return any(
            call.answered == NEVER and (call.what, call.about) == (what, str(life))
            for call in self.calls
        )

    def has_ended(self, life: "Life") -> bool:
        """Whether the hook was told of its latest generation."""
        return bool(self.sittings[str(life)][-1].told)

    def has_failed(self, life: "Life") -> bool:
        """Whether the latest generation failed, as far as one can see."""
        last = self.sittings[str(life)][-1]
        if last.told:
            return last.told[0].state is State.FAILED
        return last.last in ("permanent", "transient")

    def redriven(self, life: "Life", generation: int, called: float) -> None:
        """A generation was accepted, between the call and this tick."""
        sitting = self._sitting(life, generation, called)
        sitting.admitted_before = min(self.now(), sitting.admitted_before)

    def _sitting(self, life: "Life", generation: int, after: float) -> Sitting:
        sittings = self.sittings[str(life)]
        if generation == len(sittings) + 1:
            sittings.append(Sitting(life, generation, after))
        if generation > len(sittings):
            self.complain(f"{life} is in generation {generation}, after {len(sittings)}")
        return sittings[min(generation, len(sittings)) - 1]

    def begin(self, life: "Life", generation: int, step: str) -> int:
        """A step begins. Returns which execution of it that is."""
        now = self.now()
        sitting = self._sitting(life, generation, self._asked(life))
        known = self.executions[str(life), step]
        self._check_begin(sitting, step, known)
        for other in self._running[life.key]:
            if other.sitting is not sitting:
                self.complain(
                    f"{step} of {sitting} began while {other.step} of {other.sitting} ran"
                )
        sitting.begins.append(now)
        seen = self._seen[life.key]
        if sitting not in seen:
            seen.append(sitting)
        elif seen[-1] is not sitting:
            self.complain(f"{sitting} went on after {seen[-1]} had begun")
        execution = Execution(sitting, step, now)
        known.append(execution)
        self._running[life.key].append(execution)
        return len(known)

    def _asked(self, life: "Life") -> float:
        """When somebody first asked for the generation that is not known yet."""
        asked = [call for call in self.calls if (call.what, call.about) == ("redrive", str(life))]
        return min((call.called for call in asked if call.answered == NEVER), default=NEVER)

    def _check_begin(self, sitting: Sitting, step: str, known: list[Execution]) -> None:
        life = sitting.life
        if str(life) in self.forgotten:
            self.complain(f"{step} of {sitting} began after it was forgotten")
        for held in (f"run {life}", f"key {life.key}", "all"):
            if self._held.get(held, 0):
                self.complain(f"{step} of {sitting} began while {held} was paused")
        for call in self.cancels(sitting):
            # What is accepted before the submit has returned counts, too.
            early = sitting.generation == 1
            if call.answer is True and (early or call.called > sitting.admitted_before):
                self.complain(f"{step} of {sitting} began after it was cancelled")
        if sitting.told:
            self.complain(f"{step} of {sitting} began after its end was told")
        if step.partition("#")[0] == "once" and any(one.sitting is sitting for one in known):
            self.complain(f"{step} of {sitting} began twice")

    def end(self, life: "Life", step: str, execution: int, ending: str) -> None:
        """An execution is over."""
        now = self.now()
        one = self.executions[str(life), step][execution - 1]
        one.ended, one.ending = now, ending
        one.sitting.last = ending
        if one in self._running[life.key]:
            self._running[life.key].remove(one)

    def hear(self, life: "Life", step: str, said: int | None, before: str) -> None:
        """A wait for a signal has returned with what this call sent, or timed out."""
        heard = self.heard[str(life)]
        if heard.setdefault(step, (said, before))[0] != said:
            self.complain(f"{step} of {life} heard {heard[step][0]}, and then {said}")

    def crashed(self, *, killed: bool) -> None:
        """Nothing of before goes on."""
        self._running.clear()
        if killed:
            for sitting in self.accepted():
                sitting.cut_off = len(sitting.begins)

    def told(self, outcome: RunOutcome) -> None:
        """The hook was told."""
        self.now()
        life = self.sittings[f"{outcome.run_id}.{outcome.headers['life']}"][0].life
        sitting = self._sitting(life, outcome.generation, self._asked(life))
        if not sitting.told:
            ends = self._ends[life.key]
            ends.append((outcome.ended_at, str(sitting)))
            if ends != sorted(ends, key=lambda end: end[0]):
                self.complain(f"ends of {life.key} were told out of order: {ends}")
        sitting.told.append(outcome)

    def call(self, what: str, about: str, life: "Life | None") -> Call:
        """Something is asked for."""
        call = Call(what, about, life, self.now())
        self.calls.append(call)
        if what == "resume":
            self._held.pop(about, None)
        return call

    def answer(self, call: Call, answer: object) -> None:
        """It was answered."""
        call.answered, call.answer = self.now(), answer
        if call.what == "pause" and answer is not False:
            resumed = any(
                other.what == "resume"
                and other.about == call.about
                and other.answered > call.called
                for other in self.calls
            )
            if not resumed:
                self._held[call.about] = call.called

    def over(self, life: "Life") -> None:
        """What held it has nothing to hold any more."""
        self._held.pop(f"run {life}", None)

    def accepted(self) -> Iterator[Sitting]:
        """All sittings of runs that were accepted."""
        for life, sittings in self.sittings.items():
            if life in self._accepted:
                yield from sittings

    def cancels(self, sitting: Sitting) -> list[Call]:
        """The calls that may have been about this generation."""
        following = self.sittings[str(sitting.life)][sitting.generation :]
        end = following[0].admitted_before if following else NEVER
        return [
            call
            for call in self.calls
            if (call.what, call.about) == ("cancel", str(sitting.life))
            and (sitting.generation == 1 or call.answered > sitting.admitted_after)
            and call.called < end
        ]
