"""The verdict: what of all that was seen of a random world breaks a promise, when it is over."""

from keyrun import Delivery, FailureKind, RunOutcome, State
from tests.faults.evidence import NEVER, Call, Evidence, Sitting


def judge(evidence: Evidence) -> list[str]:
    """Everything that is wrong."""
    for sitting in evidence.accepted():
        _judge_end(evidence, sitting)
    for life in evidence.heard:
        _judge_signals(evidence, life)
    for key, notes in evidence.notes.items():
        _judge_notes(evidence, key, notes)
    for key in evidence.notes:
        _judge_order(evidence, [one for one in evidence.accepted() if one.life.key == key])
    return evidence.wrong


def _judge_end(evidence: Evidence, sitting: Sitting) -> None:
    told = sitting.told
    if any(outcome != told[0] for outcome in told):
        evidence.complain(f"{sitting} had several ends: {told}")
    if not told:
        if str(sitting.life) not in evidence.forgotten:
            evidence.complain(f"the end of {sitting} was never told")
        return
    outcome = told[0]
    asked = evidence.cancels(sitting)
    if outcome.state is State.CANCELLED:
        if not asked:
            evidence.complain(f"{sitting} was cancelled, and nobody asked for that")
    elif any(call.answer is True and _whole(evidence, sitting, call) for call in asked):
        evidence.complain(f"{sitting} is {outcome.state}, and was cancelled")
    elif outcome.state is State.SUCCEEDED:
        _judge_result(evidence, sitting, outcome)
    else:
        _judge_failure(evidence, sitting, outcome)


def _whole(evidence: Evidence, sitting: Sitting, call: Call) -> bool:
    """Whether a call was made and answered while there was no other generation."""
    following = evidence.sittings[str(sitting.life)][sitting.generation :]
    end = following[0].admitted_after if following else NEVER
    return (sitting.generation == 1 or sitting.admitted_before < call.called) and (
        call.answered < end
    )


def _judge_failure(evidence: Evidence, sitting: Sitting, outcome: RunOutcome) -> None:
    assert outcome.failure is not None
    known = evidence.executions[str(sitting.life), outcome.failure.step or ""]
    mine = [one for one in known if one.sitting is sitting]
    # What may run once may have been cut off when it was about to begin, or was just done.
    interrupted = outcome.failure.kind is FailureKind.INTERRUPTED
    if not interrupted and (not mine or mine[-1].ending == "done"):
        evidence.complain(f"{sitting} failed, and its step did not: {outcome.failure.reason}")


def _judge_result(evidence: Evidence, sitting: Sitting, outcome: RunOutcome) -> None:
    for given in outcome.result:
        step, _, execution = given.rpartition(":")
        known = evidence.executions[str(sitting.life), step]
        if len(known) != int(execution):
            evidence.complain(f"{sitting} has the value of {given}, and ran {step} {len(known)} x")
        elif known[-1].ending != "done":
            evidence.complain(f"{sitting} has the value of {given}, which ended {known[-1].ending}")


def _judge_signals(evidence: Evidence, life: str) -> None:
    """Signals that were acknowledged are heard once each, first in, first out. What a generation
    does not take is gone with it, so only the first one is judged."""
    if len(evidence.sittings[life]) > 1:
        return
    heard = list(evidence.heard[life].values())
    taken = [evidence.calls[said] for said, _ in heard if said is not None]
    if len(set(map(id, taken))) < len(taken):
        evidence.complain(f"{life} heard a signal twice: {heard}")
    for place, call in enumerate(taken):
        if (call.what, call.about) != ("signal", life):
            evidence.complain(f"{life} heard {call}")
        if any(later.answered < call.called for later in taken[place:]):
            evidence.complain(f"{life} heard signals out of order: {heard}")
    kept = [
        call
        for call in evidence.calls
        if (call.what, call.about) == ("signal", life) and isinstance(call.answer, Delivery)
    ]
    for call in kept:
        if call not in taken and any(call.answered < later.called for later in taken):
            evidence.complain(f"{life} did not hear {call}, and later ones: {heard}")
    for place, (said, before) in enumerate(heard):
        if said is None:
            step, _, execution = before.rpartition(":")
            began = evidence.executions[life, step][int(execution) - 1].began
            sooner = [evidence.calls[number] for number, _ in heard[:place] if number is not None]
            if lost := [call for call in kept if call.answered < began and call not in sooner]:
                evidence.complain(f"{life} waited in vain, and was sent {lost}")


def _judge_notes(evidence: Evidence, key: str, notes: list[str]) -> None:
    """The mapping of a key has the last execution of each step that took a note, once."""
    ends = []
    for note in notes:
        life, _, ran = note.partition(" ")
        step, _, execution = ran.rpartition(":")
        ends.append(evidence.executions[life, step][int(execution) - 1].ended)
    if ends != sorted(ends) or len(set(notes)) < len(notes):
        evidence.complain(f"the notes of {key} are out of order: {notes}")
    for sitting in evidence.accepted():
        if sitting.life.key == key and sitting.told and sitting.told[0].result is not None:
            for given in sitting.told[0].result:
                note = f"{sitting.life} {given}"
                if given.startswith("noted") and note not in notes:
                    evidence.complain(f"the note of {note} is not in {notes}")


def _ended_unseen(evidence: Evidence, sitting: Sitting) -> bool:
    """Whether it can have ended at any time, and without a step."""
    if str(sitting.life) in evidence.forgotten:
        return True
    failure = sitting.told[0].failure if sitting.told else None
    return failure is not None and failure.kind is FailureKind.INTERRUPTED


def _judge_order(evidence: Evidence, sittings: list[Sitting]) -> None:
    for first in sittings:
        for second in sittings:
            if first.admitted_before >= second.admitted_after or not second.begins:
                continue
            if first.begins and first.begins[0] > second.begins[0]:
                evidence.complain(f"{second} began before {first}")
            elif not first.begins and not _ended_unseen(evidence, first):
                asked = min((call.called for call in evidence.cancels(first)), default=NEVER)
                if asked > second.begins[0]:
                    evidence.complain(f"{second} began, and {first} had not ended")
