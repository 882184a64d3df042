"""The model: which answers, effects and ends are allowed, given what others were told before."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from math import inf

from keyrun import (
    GateNotWaiting,
    RunCancelled,
    RunEnded,
    RunFailed,
    State,
    UnknownRun,
    UnknownWorkflow,
)
from keyrun.storage import StoreError
from keyrun.testing import EPOCH
from tests.faults.operations.evidence import Call, Effect
from tests.faults.operations.workflows import EXPECTED, SIGNALS
from tests.faults.operations.world import World

EXACT = 1e-4
"""How exactly the wall clock gives the time of Trio's clock."""
EXPECTED_ERRORS: dict[str, tuple[type[Exception], ...]] = {
    "submit": (UnknownWorkflow,),
    "redrive": (RunEnded, UnknownRun, UnknownWorkflow),
    "release_key": (RunEnded, UnknownRun, UnknownWorkflow),
    "forget": (RunEnded, UnknownRun),
    "signal": (RunEnded, UnknownRun),
    "approve": (RunEnded, UnknownRun, GateNotWaiting),
}


class Model:
    """Compares what happened to one run with what may happen."""

    def __init__(self, world: World, run_id: str) -> None:
        self.world = world
        self.run_id = run_id
        self.run = world.script.runs[run_id]
        self.status = world.statuses.get(run_id)
        self.calls = [call for call in world.calls if call.about == run_id]
        self.effects = [effect for effect in world.effects if effect.run_id == run_id]
        self.ends = [end for end in world.ends if end.outcome.run_id == run_id]
        self.wrong: list[str] = []
        submits = [call for call in self.calls if call.op == "submit"]
        self.submitted = min((call.answered for call in submits if call.succeeded), default=inf)
        """When a client first knew that the run exists."""
        self.called = min((call.called for call in submits), default=inf)
        self.forgotten = min((call.called for call in self.of("forget")), default=inf)
        self.gone = min(
            (call.answered for call in self.of("forget") if call.succeeded), default=inf
        )

    def of(self, *ops: str) -> list[Call]:
        return [call for call in self.calls if call.op in ops]

    def say(self, rule: str, what: str) -> None:
        self.wrong.append(f"{rule}: {self.run_id} ({self.run.kind}): {what}")

    def complaints(self) -> list[str]:
        self.errors()
        self.submits()
        self.cancels()
        self.hook()
        self.final()
        self.forgets()
        self.pauses()
        self.redrives()
        self.signals()
        self.approvals()
        self.executions()
        self.results()
        self.looks()
        return self.wrong

    def exists(self, call: Call) -> bool:
        """Whether the run was certainly there, ended or not, during all of a call."""
        return self.submitted < call.called and call.answered < self.forgotten

    def ended_by(self, call: Call, generation: int = 1) -> bool:
        """Whether a generation may have ended when a call was answered."""
        return any(
            end.outcome.generation >= generation and end.outcome.ended_at - EPOCH <= call.at + EXACT
            for end in self.ends
        )

    def generation_at(self, position: int) -> int:
        """The generation that is certain to have begun."""
        redrives = [c.answer for c in self.of("redrive") if c.succeeded and c.answered < position]
        return max(redrives, default=1)

    def errors(self) -> None:
        for call in self.calls:
            expected = (*EXPECTED_ERRORS.get(call.op, ()), StoreError)
            if call.error is not None and not isinstance(call.error, expected):
                self.say("error", f"{call}")
            if isinstance(call.error, UnknownRun) and self.exists(call):
                self.say("error", f"the run was there: {call}")
            registered = not any(session.unregistered for session in self.world.script.sessions)
            if isinstance(call.error, UnknownWorkflow) and registered:
                self.say("error", f"{call}")
            sent = call.op in ("signal", "approve") and self.exists(call)
            ended = self.ended_by(call, self.generation_at(call.called))
            if isinstance(call.error, RunEnded) and sent and not ended:
                self.say("error", f"the run had not ended: {call}")

    def submits(self) -> None:
        submits = self.of("submit")
        new = [call for call in submits if call.succeeded and call.answer.newly_submitted]
        answered = all(call.known and call.error is None for call in submits)
        if len(new) > 1 or (submits and not new and answered):
            self.say("submit", f"submitted {len(new)} times: {submits}")
        if self.submitted < inf and self.status is None and self.forgotten == inf:
            self.say("lost", "an acknowledged run is unknown")

    def cancels(self) -> None:
        cancels = self.of("cancel")
        granted = [call for call in cancels if call.succeeded and call.answer is True]
        for call in granted:
            late = [
                effect
                for effect in self.effects
                if effect.position > call.answered and effect.kind == "begin"
            ]
            if late:
                self.say("cancel", f"{call}, then {late}")
            if self.status is not None and self.status.state is not State.CANCELLED:
                self.say("cancel", f"{call}, but the run ended as {self.status.state}")
        possible = granted or [call for call in cancels if not call.known]
        for end in self.ends:
            cancelled = end.outcome.state is State.CANCELLED and self.forgotten > end.position
            if cancelled and not possible:
                self.say("cancel", f"cancelled, but no cancel was granted: {cancels}")
        for call in cancels:
            if call.succeeded and call.answer is False and self.exists(call):
                compensated = self.run.kind == "trip"
                if not compensated and not self.ended_by(call, self.generation_at(call.called)):
                    self.say("cancel", f"{call}, but the run had not ended")

    def hook(self) -> None:
        """The hook gets one outcome of every generation."""
        outcomes: dict[int, set[tuple[str, float]]] = defaultdict(set)
        for end in self.ends:
            outcomes[end.outcome.generation].add((end.outcome.state.value, end.outcome.ended_at))
        for generation, found in outcomes.items():
            if len(found) > 1:
                self.say("hook", f"generation {generation} ended {len(found)} times: {found}")
        if self.status is not None and self.status.state.terminal:
            expected = set(range(1, self.status.generation + 1))
            if set(outcomes) != expected:
                self.say("hook", f"called for {set(outcomes)}, but expected {expected}")
            last = {state for state, _ in outcomes.get(self.status.generation, ())}
            if last and last != {self.status.state.value}:
                self.say("hook", f"called with {last}, but the status is {self.status.state}")
        granted = [call for call in self.of("cancel") if call.succeeded and call.answer is True]
        # A cancelled run that could not be compensated was quarantined, and had not ended.
        held = self.run.brittle and self.run.kind in ("trip", "tour")
        if granted and self.status is None and not outcomes and not held:
            self.say("hook", f"never called: {granted}")
        for call in self.of("forget"):
            # What had ended when it was forgotten is delivered all the same.
            if call.succeeded and not outcomes and self.has_ended(call):
                self.say("hook", f"never called: {call}")

    def has_ended(self, call: Call) -> bool:
        """Whether the run certainly had ended, other than by this call."""
        seen = [c for c in self.of("status") if c.succeeded and c.answered < call.called]
        return any(c.answer is not None and c.answer.state.terminal for c in seen)

    def final(self) -> None:
        status = self.status
        if status is None or not status.state.terminal:
            return
        kind = self.run.kind
        if status.state is State.SUCCEEDED:
            early = status.result == "early" and self.run.brittle
            expected = EXPECTED.get(kind)
            if not early and expected is not None and status.result != expected:
                self.say("result", f"{status.result}")
            if kind == "trip" and not early:
                self.say("result", f"succeeded with {status.result}")
        elif status.state is State.FAILED and kind not in ("trip", "dies"):
            self.say("result", f"failed: {status.reason}")
        if kind in ("trip", "tour") and status.state is not State.SUCCEEDED:
            done = [e.step for e in self.effects if e.kind == "complete"]
            undone = [e.step for e in self.effects if e.kind == "undo"]
            expected_undone = list(reversed(done))
            # A quarantined run that is cancelled is not compensated any further.
            partly = self.run.brittle and status.state is State.CANCELLED
            allowed = expected_undone[: len(undone)] if partly else expected_undone
            if self.world.script.crashes:
                undone, allowed = sorted(set(undone)), sorted(set(undone) & set(done))
            if undone != allowed:
                self.say("compensation", f"did {done}, undid {undone}")

    def forgets(self) -> None:
        if self.gone == inf:
            return
        if self.status is not None:
            self.say("forget", f"forgotten, but the status is {self.status.state}")
        late = [effect for effect in self.effects if effect.position > self.gone]
        if late:
            self.say("forget", f"forgotten at {self.gone}, then {late}")
        for call in self.calls:
            if call.called > self.gone and call.succeeded:
                if call.op in ("cancel", "pause", "resume") and call.answer is not False:
                    self.say("forget", f"forgotten, then {call}")
                if call.op in ("signal", "approve", "redrive", "forget"):
                    self.say("forget", f"forgotten, then {call}")

    def pauses(self) -> None:
        key = self.run.key
        keys = [call for call in self.world.calls if call.about == key]
        everything = [call for call in self.world.calls if call.op in ("pause_all", "resume_all")]
        for calls, pause, resume in (
            (self.calls, "pause", "resume"),
            (keys, "pause_key", "resume_key"),
            (everything, "pause_all", "resume_all"),
        ):
            for call in calls:
                if call.op != pause or not call.succeeded or call.answer is False:
                    continue
                resumes = [c.called for c in calls if c.op == resume and c.answered > call.called]
                until = min(resumes, default=inf)
                if pause == "pause":
                    # A new generation is not paused.
                    fresh = [
                        c.called
                        for c in self.of("redrive")
                        if c.answered > call.called and (not c.succeeded or c.answer > 1)
                    ]
                    until = min(until, *fresh, inf)
                    until = min(until, self.finishing)
                elif self.finishing < until:
                    until = self.finishing
                late = [
                    effect
                    for effect in self.effects
                    if call.answered < effect.position < until and effect.kind == "begin"
                ]
                if late:
                    self.say("pause", f"{call}, then {late}")

    @property
    def finishing(self) -> int:
        """Where the last session begins, which resumes everything."""
        return self.world.sessions[-1] if self.world.sessions else 0

    def redrives(self) -> None:
        redrives = [call for call in self.of("redrive") if call.succeeded]
        if self.status is not None and redrives:
            most = max(call.answer for call in redrives)
            if self.status.generation < most:
                self.say("redrive", f"{redrives}, but the generation is {self.status.generation}")
        asked = len([call for call in self.of("redrive") if call.error is None or not call.known])
        if self.status is not None and self.status.generation > 1 + asked:
            self.say("redrive", f"generation {self.status.generation} after {self.of('redrive')}")
        counts = Counter(call.answer for call in redrives if call.answer > 1)
        for generation, times in counts.items():
            if times > 1 and not self.run.brittle:  # else it was quarantined in between
                self.say("redrive", f"generation {generation} was started {times} times")

    def signals(self) -> None:
        status = self.status
        if self.run.kind not in SIGNALS or status is None or status.state is not State.SUCCEEDED:
            return
        if status.result == "early":
            return
        taken = list(status.result)
        sent = {call.value: call for call in self.of("signal") if call.error is None}
        unknown = {call.value for call in self.of("signal") if not call.known}
        for payload in taken:
            if payload not in sent and payload not in unknown:
                self.say("signal", f"took {payload}, which was not accepted")
        if len(set(taken)) < len(taken):
            self.say("signal", f"took one twice: {taken}")
        for payload, call in sent.items():
            if not call.succeeded:
                continue
            place = taken.index(payload) if payload in taken else len(taken)
            before = [
                other
                for other in taken[:place]
                if other in sent and call.answered < sent[other].called
            ]
            if before:
                self.say("signal", f"{call} came before {before}, but the run took {taken}")

    def approvals(self) -> None:
        granted = [call for call in self.of("approve") if call.succeeded]
        if len(granted) > 1:
            self.say("approve", f"granted twice: {granted}")
        status = self.status
        if self.run.kind != "gate" or status is None or status.state is not State.SUCCEEDED:
            return
        possible = [call.value for call in granted] or [
            call.value for call in self.of("approve") if not call.known
        ]
        if status.result not in (*possible, "early"):
            self.say("approve", f"the result is {status.result}, but {self.of('approve')}")

    def executions(self) -> None:
        """A step that completed is not executed again, unless its commit was lost in a crash."""
        completed = Counter(e.step for e in self.effects if e.kind == "complete")
        undone = Counter(e.step for e in self.effects if e.kind == "undo")
        for counted in (completed, undone):
            for name, times in counted.items():
                if times > 1 + self.world.script.crashes:
                    self.say("executed", f"{name} {times} times")
        order = [e.step for e in self.effects if e.kind == "complete"]
        if not self.world.script.crashes and order != sorted(order):
            self.say("executed", f"in the order {order}")

    def results(self) -> None:
        ends = {end.outcome.state for end in self.ends}
        for position, run_id, result in self.world.results:
            if run_id != self.run_id:
                continue
            name = type(result).__name__
            if isinstance(result, StoreError) or name == "RunQuarantined":
                continue
            if isinstance(result, UnknownRun):
                if self.forgotten > position:
                    self.say("result", f"{result!r}, but nobody forgot it")
            elif isinstance(result, RunFailed):
                if State.FAILED not in ends:
                    self.say("result", f"{result!r}, but it ended as {ends}")
            elif isinstance(result, RunCancelled):
                if State.CANCELLED not in ends and self.forgotten == inf:
                    self.say("result", f"{result!r}, but it ended as {ends}")
            elif isinstance(result, Exception):
                self.say("result", f"{result!r}")
            elif self.ends and State.SUCCEEDED not in ends:
                self.say("result", f"{result!r}, but it ended as {ends}")

    def looks(self) -> None:
        """What `status` may say, after what others were told."""
        granted = [call for call in self.of("cancel") if call.succeeded and call.answer is True]
        cancelled = min((call.answered for call in granted), default=inf)
        for call in self.of("status"):
            if not call.succeeded:
                continue
            status = call.answer
            if status is None:
                if self.exists(call):
                    self.say("status", f"unknown, but it is there: {call}")
                continue
            state = status.state
            # A run that is to be compensated and whose code does not fit is quarantined.
            allowed = {State.CANCELLING, State.CANCELLED}
            if self.run.brittle or self.world.script.has("bug"):
                allowed.add(State.QUARANTINED)
            if call.called > cancelled and state not in allowed:
                self.say("status", f"{state} after a granted cancel [{call.called}]")
            told = any(end.outcome.state is state for end in self.ends)
            if state.terminal and not told and self.forgotten == inf:
                self.say("status", f"{state}, but the hook was not called with that")


def _order(world: World) -> Iterator[str]:
    """Runs of one key take turns, in the order of their submission."""
    models = {run_id: Model(world, run_id) for run_id in world.script.runs}
    for first, one in models.items():
        for second, other in models.items():
            if first == second or one.run.key != other.run.key:
                continue
            if "polite" in (one.run.kind, other.run.kind) or one.run.delay or other.run.delay:
                continue
            if one.submitted > other.called or one.of("redrive") or other.of("redrive"):
                continue
            begun = [e.position for e in other.effects]
            late = [e for e in one.effects if begun and e.position > begun[0]]
            if late:
                yield f"order: {first} was submitted before {second}, but {late} came later"
    busy: dict[str, Effect] = {}
    sessions = iter(world.sessions)
    until: float = next(sessions, inf)
    for effect in world.effects:
        if effect.position > until:
            busy.clear()
            until = next((end for end in sessions if end > effect.position), inf)
        holder = busy.get(effect.key)
        if effect.kind == "begin":
            if holder is not None and holder.run_id != effect.run_id:
                yield f"order: {effect} while {holder}"
            busy[effect.key] = effect
        elif (
            effect.kind in ("complete", "cut")
            and holder is not None
            and holder.run_id == effect.run_id
        ):
            del busy[effect.key]


def complaints(world: World) -> list[str]:
    """Everything in the log that is not allowed."""
    wrong = list(world.wrong)
    for run_id in world.script.runs:
        wrong += Model(world, run_id).complaints()
    for call in world.calls:
        if call.about not in world.script.runs and call.error is not None:
            expected = (*EXPECTED_ERRORS.get(call.op, ()), StoreError)
            if not isinstance(call.error, expected):
                wrong.append(f"error: {call}")
    return [*wrong, *_order(world)]


def rule(complaint: str) -> str:
    """The name of the rule that a complaint is about."""
    return complaint.partition(":")[0]
