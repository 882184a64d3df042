"""What the programs of the peers share: they count honestly."""

import os
from pathlib import Path

import pytest

from benchmarks.peers.programs import pace
from benchmarks.peers.programs.evidence import Inbox
from benchmarks.peers.programs.gauge import disk, disk_after_checkpoint, family
from benchmarks.peers.programs.order import Order
from benchmarks.peers.programs.pace import Pace, in_threads
from benchmarks.peers.programs.tally import Count, Tally


def test_an_order_survives_the_command_line() -> None:
    order = Order(act="runs", folder="a folder", at_once=7, seconds=0.5)
    assert Order.parse(order.dump()) == order


@pytest.mark.parametrize(
    ("numbers", "disordered"),
    [([0, 1, 2], 0), ([0, 2, 1], 1), ([0, 1, 1, 2], 1), ([0, 1], 1)],
)
def test_an_inbox_finds_what_came_out_of_order_twice_or_never(
    numbers: list[int], disordered: int
) -> None:
    inbox = Inbox()
    inbox.expect(1, 3)
    for number in numbers:
        inbox.take("key-0", number)
    assert inbox.disordered() == disordered
    assert inbox.complete is (len(numbers) >= 3)


def test_an_actor_notices_a_message_that_is_not_the_next() -> None:
    count = Count()
    tally = Tally(count)
    for number in (0, 1, -1, 3):
        tally.take(number)
    assert (count.handled, count.disordered) == (3, 1)


def paced(monkeypatch: pytest.MonkeyPatch, *runs: tuple[float, float]) -> dict[str, float]:
    """Two seconds after one of warm-up, with runs that began and ended at these moments."""
    moments = iter([0.0, *(ended for _, ended in runs)])
    monkeypatch.setattr(pace, "perf_counter", lambda: next(moments))
    measured = Pace(Order(act="runs", folder="", warm_up=1.0, seconds=2.0))
    for started, _ in runs:
        measured.ran(started)
    assert measured.total == len(runs)
    return measured.facts()


def test_runs_of_the_warm_up_are_done_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = paced(monkeypatch, (0.0, 0.5), (0.9, 1.0), (2.0, 2.5), (2.0, 4.0))
    assert facts["runs"] == 2
    assert facts["mean_runs_per_second"] == 1.0
    assert facts["p99_ms"] == pytest.approx(500)


def test_rate_and_median_are_those_of_the_best_second(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = paced(monkeypatch, (1.0, 1.8), (2.0, 2.1), (2.1, 2.2), (2.2, 2.5))
    assert facts["runs_per_second"] == 3
    assert facts["mean_runs_per_second"] == 2
    assert facts["p50_ms"] == pytest.approx(100)
    assert facts["p99_ms"] == pytest.approx(800)


def test_a_loop_in_which_nothing_ended_gives_no_figure() -> None:
    with pytest.raises(RuntimeError, match="no run ended within 2 seconds"):
        Pace(Order(act="runs", folder="", seconds=2.0)).facts()


def test_a_client_that_fails_ends_the_loop() -> None:
    def run(_: int) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        in_threads(Pace(Order(act="runs", folder="", at_once=3)), run)


def test_the_disk_counts_what_was_written_and_not_what_was_reserved(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    before = disk(str(tmp_path))
    (tmp_path / "inner" / "file").write_bytes(bytes(10_000))
    assert disk(str(tmp_path)) - before == 10_000
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 30)
    assert disk(str(tmp_path)) - before == 10_000
    assert disk_after_checkpoint(str(tmp_path)) - before == 10_000


def test_a_process_is_of_its_own_family() -> None:
    assert os.getpid() in family(os.getpid())
