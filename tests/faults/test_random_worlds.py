"""The promises, checked on what happened in random worlds: everything that may be asked of a
runtime is asked while it is left, killed and reopened, with hardly anything kept in memory.

`KEYRUN_SOAK=1` plays many more worlds, `KEYRUN_SEED=n` just one.
"""

import os
from collections import Counter
from random import Random

import pytest
import trio
from trio.testing import MockClock

from keyrun import Priority, State
from keyrun.runtime.queue.key_queue import KeyQueue
from keyrun.runtime.queue.outbox import Outbox
from keyrun.runtime.run.run import Run
from keyrun.runtime.tuning import Tuning
from keyrun.storage import MemoryStore
from keyrun.storage.batch import Tables
from tests.faults.simulated.simulation import seeded
from tests.faults.world import World

SEEDS = range(3000 if os.environ.get("KEYRUN_SOAK") else 32)

SMALL = {
    "gate_slack": (0, 2),
    "gate_window": (0, 2),
    "queue_window": (1, 3),
    "startup_page": (1, 4),
    "startup_markers": (1, 4),
}
"""What keeps little in memory, and reads little at once: as if there were very much."""


def played(seed: int, monkeypatch: pytest.MonkeyPatch) -> World:
    random = Random(seed)
    with monkeypatch.context() as patch:
        patch.setattr("keyrun.runtime.inspect.slices.FIRST", random.randint(1, 4))
        sizes = Tuning(
            **{name: random.randint(least, most) for name, (least, most) in SMALL.items()}
        )
        world = World(seed, sizes)
        with seeded(seed):
            trio.run(world.play, clock=MockClock(autojump_threshold=0))
    return world


@pytest.mark.parametrize("part", range(4))
def test_the_promises_hold_in_random_worlds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: int
) -> None:
    seed = os.environ.get("KEYRUN_SEED")
    for number in SEEDS[part::4] if seed is None else [int(seed)]:
        caplog.clear()
        wrong = played(number, monkeypatch).evidence.wrong
        wrong += [
            record.getMessage()
            for record in caplog.records
            if record.__dict__.get("event") in ("key_crashed", "run_quarantined")
        ]
        assert not wrong, f"KEYRUN_SEED={number}:\n" + "\n".join(wrong)


def test_a_seed_plays_the_same_world_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> list[tuple[str, str, float, float]]:
        calls = played(7, monkeypatch).evidence.calls
        return [(call.what, call.about, call.called, call.answered) for call in calls]

    assert seen() == seen()


def test_the_worlds_are_rich_enough_to_mean_something(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    for seed in range(10):
        evidence = played(seed, monkeypatch).evidence
        seen.update(call.what for call in evidence.calls if call.answer is not False)
        for sittings in evidence.sittings.values():
            seen.update(str(one.told[0].state) for one in sittings if one.told)
            seen["redriven"] += len(sittings) - 1
        seen["heard"] += sum(map(len, evidence.heard.values()))
        seen["early"] += sum(
            call.called < evidence.sittings[str(call.life)][0].admitted_before
            for call in evidence.calls
            if call.life is not None and call.what != "submit"
        )
    calls = (
        *("submit", "cancel", "signal", "pause", "resume", "redrive", "forget", "status"),
        *("redriven", "heard", "early"),
    )
    ends = [str(state) for state in State if state.terminal]
    assert all(seen[name] > 2 for name in (*calls, *ends)), seen


def _deaf(run: Run) -> bool:
    """As `Run.is_stopped`, but whoever pauses a run or a key is not heard."""
    return run.status.cancel_requested or run.partition.stopped


def _late(line: KeyQueue, place: int, number: int, priority: Priority) -> None:
    """As `Line.found`, but the latest comes first."""
    line.window.insert(0, (place, number, None))


async def _show_early(store: MemoryStore, tables: Tables) -> None:
    """As `MemoryStore._commit`, but a batch can be read before its commit has returned."""
    store._publish(tables)
    await trio.sleep(store.latency)


async def _lose(outbox: Outbox, cursor: bytes) -> None:
    """Like `Outbox.next_key`, but finds no end that an earlier process did not deliver."""


@pytest.mark.parametrize(
    ("broken", "by", "said"),
    [
        ("keyrun.runtime.run.run.Run.is_stopped", _deaf, "was paused"),
        ("keyrun.runtime.queue.key_queue.KeyQueue.found", _late, "began before"),
        ("keyrun.runtime.queue.outbox.Outbox.next_key", _lose, "was never told"),
        ("keyrun.storage.MemoryStore._commit", _show_early, "began after it was cancelled"),
    ],
)
def test_a_broken_engine_is_found_out(
    monkeypatch: pytest.MonkeyPatch, broken: str, by: object, said: str
) -> None:
    monkeypatch.setattr(broken, by)
    monkeypatch.setattr("tests.faults.world.LONG", 500.0)
    assert any(
        said in wrong for seed in range(60) for wrong in played(seed, monkeypatch).evidence.wrong
    )
