"""The harness takes ratios round by round, and says what got worse."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path

import pytest

from benchmarks import compare, instructions, report
from benchmarks.figure import Bar, Figure, spread
from benchmarks.harness import Bench, Metric


def figure(*samples: float, ratios: list[float] | None = None, bar: Bar | None = None) -> Figure:
    return Figure(
        suite="s",
        name="n",
        unit="x/s",
        samples=list(samples),
        limit="bare" if ratios else None,
        ratios=ratios,
        bar=bar,
    )


def scripted(*values: float) -> Callable[[], float]:
    return iter(values).__next__


def test_ratios_are_taken_within_a_round_so_that_noise_cancels_out() -> None:
    bench = Bench("s", repeat=3)
    bench.group(
        "work",
        {"bare": scripted(0, 10, 100, 1000), "ours": scripted(0, 5, 50, 500)},
        unit="x/s",
        limit="bare",
        bars={"ours": Bar(value=0.4)},
    )
    bare, ours = bench.figures
    assert bare.ratio is None
    assert ours.ratios == [0.5, 0.5, 0.5]
    assert ours.spread == 0
    assert ours.bar is not None
    assert ours.bar.met(ours)


def test_a_survey_gives_each_metric_of_each_case() -> None:
    bench = Bench("s", repeat=2)
    bench.survey(
        "work",
        {"bare": lambda: {"rate": 2.0, "lag": 0.0}, "ours": lambda: {"rate": 1.0, "lag": 3.0}},
        metrics={"rate": Metric(unit="x/s"), "lag": Metric(unit="ms", better="lower")},
        limit="bare",
    )
    found = {f.name: (f.median, f.ratio) for f in bench.figures}
    assert found == {
        "work, rate, bare": (2.0, None),
        "work, rate, ours": (1.0, 0.5),
        "work, lag, bare": (0.0, None),
        "work, lag, ours": (3.0, None),
    }


def test_a_bar_says_whether_it_was_met() -> None:
    assert Bar(value=0.6).met(figure(9, ratios=[0.7]))
    assert not Bar(value=0.6).met(figure(9, ratios=[0.5]))
    assert Bar(value=500, better="lower", absolute=True).met(figure(400, ratios=[7.0]))
    assert "MISSED" in report.table([figure(9, ratios=[0.5], bar=Bar(value=0.6))])
    assert "MISSED" not in report.table([figure(9, ratios=[0.7], bar=Bar(value=0.6))])


def test_the_spread_is_that_of_the_middle_half() -> None:
    assert spread([10.0]) == 0
    assert spread([9.0, 10.0, 10.0, 10.0, 99.0]) == 0
    assert spread([8.0, 9.0, 10.0, 11.0, 12.0]) == 0.2


def test_comparison_counts_as_worse_only_what_exceeds_the_spread(tmp_path: Path) -> None:
    file = tmp_path / "before.json"
    report.write(file, [figure(100, 100, ratios=[0.8, 0.8])])
    text, worse = report.compare([figure(50, 50, ratios=[0.79, 0.8])], file)
    assert not worse, text
    text, worse = report.compare([figure(100, 100, ratios=[0.4, 0.4])], file)
    assert worse
    assert "-50%" in text


def test_a_long_run_does_more_where_there_is_more_to_do() -> None:
    assert Bench("s").size(10, 1, 100) == 10
    assert Bench("s", quick=True, long=True).size(10, 1, 100) == 1
    assert Bench("s", long=True).size(10, 1, 100) == 100
    assert Bench("s", long=True).size(10, 1) == 10


def test_the_interval_of_a_median_lies_between_two_of_the_values() -> None:
    values = [float(n) for n in range(1, 16)]
    assert compare.median_interval(values) == (4.0, 8.0, 12.0)
    assert compare.median_interval(values[:6]) == (1.0, 3.5, 6.0)
    assert compare.median_interval(values[:5]) == (-inf, 3.0, inf)


def test_two_checkouts_are_measured_in_turns(capsys: pytest.CaptureFixture[str]) -> None:
    here = str(Path(__file__).parent.parent)
    compare.main([here, here, "signals", "--pairs", "2", "--scale", "0.01"])
    said = capsys.readouterr().out
    assert "signals" in said
    assert "geometric mean" in said


def test_a_folder_that_is_no_checkout_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is not a checkout of Keyrun"):
        compare.main([str(tmp_path), str(tmp_path)])


def test_a_workload_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare.main([".", ".", "walks"])
    assert "no workload is called 'walks'; there are runs" in capsys.readouterr().err


@pytest.mark.parametrize("name", instructions.WORKLOADS)
def test_a_workload_whose_instructions_are_counted_runs_as_a_whole(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(compare.HERE))
    instructions.WORKLOADS[name].work(64)


def test_the_instructions_of_one_more_unit_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def counted(name: str, units: int, path: Path) -> int:
        return 5000 + units * (100 if path == paths[0] else 125)

    paths: list[Path] = []

    @contextmanager
    def importable(checkout: Path) -> Iterator[Path]:
        paths.append(checkout)
        yield checkout

    monkeypatch.setattr(instructions, "counted", counted)
    monkeypatch.setattr(instructions, "importable", importable)
    assert instructions.main(["old", "new", "runs"]) == 1
    assert "0.800  run of three steps" in capsys.readouterr().out
    assert instructions.main(["new", "new", "runs"]) == 0
