"""Figures are held against Keyrun's, and only what is comparable is judged."""

from benchmarks.peers.comparison import BARS, Cell, cells, lines, verdicts
from benchmarks.peers.record import Record
from benchmarks.peers.work import LINES, Line
from tests.peers.recorded import recorded

BY_NAME = {line.name: line for line in LINES}


def cell(record: Record, line: str, peer: str) -> Cell:
    (found,) = [cell for cell in cells(record, BY_NAME[line]) if cell.peer == peer]
    return found


def test_the_figure_of_keyrun_is_the_median_of_its_turns_and_counts_steps() -> None:
    own = cell(recorded(), "W1-256", "keyrun")
    assert own.value == 300.0
    assert own.ratio == 1


def test_a_peer_is_given_as_a_ratio_to_keyrun() -> None:
    assert cell(recorded(), "W1-256", "restate").ratio == 0.1
    assert cell(recorded(), "W2", "restate").ratio == 10


def test_a_missing_peer_has_a_reason_and_no_figure() -> None:
    found = cell(recorded(), "W1-256", "dramatiq")
    assert found.value is None
    assert found.state == "missing"
    assert found.why == "missing: Redis is not installed"


def test_a_task_that_failed_has_a_reason_and_no_figure() -> None:
    found = cell(recorded(), "W1-64", "langgraph")
    assert found.value is None
    assert found.state == "failed"
    assert "longer than 90 seconds" in found.why


def test_what_a_peer_has_no_way_to_do_is_said_and_not_a_failure() -> None:
    found = cell(recorded(), "W5", "langgraph")
    assert found.state == "lacking"
    assert found.why == "no durable timer"


def test_a_figure_that_was_come_by_wrongly_says_so() -> None:
    assert cell(recorded(), "W3", "dbos").why == "49 keys out of order"
    assert cell(recorded(), "W4", "huey").why == "2000 runs lost"
    assert cell(recorded(), "W3", "restate").why == ""


def test_what_keyrun_does_in_two_ways_is_beside_the_same_figures_of_the_others() -> None:
    assert cell(recorded(), "W3", "restate").ratio == 0.1
    assert cell(recorded(), "W3-runs", "restate").value == 10.0
    assert cell(recorded(), "W3-runs", "restate").ratio == 0.2
    assert cell(recorded(), "W3-runs", "dbos").why == "49 keys out of order"


def test_memory_with_fewer_runs_asleep_says_so() -> None:
    assert cell(recorded(), "W5", "dbos").why == "with 1,000 asleep instead of 10,000"
    assert cell(recorded(), "W5", "restate").why == ""


def test_actors_and_durable_peers_are_in_tables_of_their_own() -> None:
    durable = {found.peer for found in cells(recorded(), BY_NAME["W1-256"])}
    actors = {found.peer for found in cells(recorded(), BY_NAME["A1"])}
    assert "pykka" not in durable
    assert actors == {"keyrun-actors", "asyncio", "pykka", "thespian"}


def test_a_bar_is_held_against_the_best_peer() -> None:
    record = recorded()
    record.add("messages", "huey", {"messages_per_second": 20.0, "disordered": 0})
    judged = {verdict.line.name: verdict for verdict in verdicts(record)}
    assert judged["W3"].best == "Huey, SQLite"
    assert judged["W3"].reached == 5
    assert not judged["W3"].met
    assert judged["W2"].reached == 0.1
    assert judged["W2"].met


def test_what_is_not_comparable_is_shown_and_not_judged() -> None:
    judged = {verdict.line.name: verdict for verdict in verdicts(recorded())}
    assert cell(recorded(), "W5", "huey").state == "unlike"
    assert judged["W5"].best == "Restate"
    assert judged["W5"].reached == 0.5


def test_a_peer_that_lost_everything_is_no_rival() -> None:
    judged = {verdict.line.name: verdict for verdict in verdicts(recorded())}
    assert judged["W4"].best == "Restate"
    assert judged["W4"].reached == 4
    assert not judged["W4"].met


def test_bars_without_a_rival_are_held_against_the_figure_itself() -> None:
    judged = {verdict.line.name: verdict for verdict in verdicts(recorded())}
    assert judged["W5-disk"].reached == 1000
    assert judged["W5-disk"].met
    assert judged["W4-again"].met
    record = recorded()
    record.facts["killed"]["keyrun"][0]["again"] = 1
    judged = {verdict.line.name: verdict for verdict in verdicts(record)}
    assert not judged["W4-again"].met


def test_every_bar_is_that_of_a_line() -> None:
    assert set(BARS) <= set(BY_NAME)


def test_lines_that_nobody_was_asked_for_are_left_out() -> None:
    record = Record()
    record.add("tell", "keyrun-actors", {"messages_per_second": 1.0})
    shown: list[Line] = lines(record)
    assert [line.name for line in shown] == ["A1"]
    assert verdicts(record) == []
