"""A power loss takes back no run that was acknowledged, no result, no step whose successor ran."""

import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import trio

from keyrun import State, open_runtime
from tests.faults import runs_with_notes as work
from tests.faults import tracing
from tests.faults.disk import crashes, lay_out
from tests.faults.soaking import amount, shown
from tests.faults.tracing import Event

WILD = amount(0, 12)


def notes_in(events: list[Event]) -> list[list[str]]:
    written = [event.data for event in events if event.path == work.NOTES and event.data]
    return [text.decode().split() for text in written]


def final_steps(notes: list[list[str]]) -> set[str]:
    """Steps whose successor was seen: their outcome was durable, so they must never run again."""
    names = ["add"] + [f"add#{at}" for at in range(2, work.STEPS + 1)]
    after = {(later, earlier) for at, later in enumerate(names) for earlier in names[:at]}
    seen = {(run, step) for kind, run, step in (n for n in notes if n[0] == "step")}
    final = {f"{run} {earlier}" for run, step in seen for later, earlier in after if later == step}
    ended = {note[1] for note in notes if note[0] == "ended"}
    return final | {f"{run} {name}" for run in ended for name in names}


async def go_on(folder: Path, notes: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Open what is left, and hold it against what the world has seen."""
    again: Counter[str] = Counter()
    monkeypatch.setattr(work, "note", lambda text: again.update([text]))
    submitted = {note[1] for note in notes if note[0] == "submitted"}
    async with open_runtime(folder, workflows=[work.sums]) as runtime:
        for run in submitted:
            assert await runtime.status(run) is not None, f"{run} was acknowledged and is gone"
        for note in notes:
            if note[0] == "ended":
                status = await runtime.status(note[1])
                assert status is not None
                assert status.state is State.SUCCEEDED
                assert status.result == int(note[2])
        async with trio.open_nursery() as nursery:
            for key in work.KEYS:
                nursery.start_soon(work.submit_all, runtime, key)
    for run, total in work.expected().items():
        assert again[f"ended {run} {total}"] == 1
    doubled = {step for step in final_steps(notes) if again[f"step {step}"]}
    assert not doubled, f"steps that had an outcome ran again: {doubled}"


@pytest.mark.parametrize("committer", ["inline", "process"])
def test_what_the_world_has_seen_of_a_runtime_holds_after_a_power_loss(
    library: Path,
    tmp_path: Path,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    committer: str,
) -> None:
    folder = tmp_path / "traced"
    folder.mkdir()
    events = tracing.record(library, folder, work.__name__, committer)
    assert {note[1] for note in notes_in(events) if note[0] == "ended"} == work.expected().keys()
    images, seen = 0, set()
    for returned, image in shown(crashes(events, Random(1), WILD), committer):
        image = {path: image[path] for path in image if path.startswith(work.STORE)}
        image.pop(f"{work.STORE}/lock.mdb", None)
        content = hash((len(notes_in(returned)), tuple(sorted(image.items()))))
        if content in seen or not (image or notes_in(returned)):
            continue
        seen.add(content)
        images += 1
        lay_out(image, place)
        trio.run(go_on, place / work.STORE, notes_in(returned), monkeypatch)
        shutil.rmtree(place / work.STORE)
    assert images > 60
