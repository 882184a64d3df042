"""Histograms with fixed bounds."""

from random import Random

from keyrun._histogram import FOLD, Histogram


def test_values_are_counted_by_the_smallest_bound_that_they_do_not_exceed() -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.1, 5.0, 5.1):
        histogram.add(value)
    assert histogram.count() == 7
    assert histogram.cumulative() == [2, 4, 6, 7]
    assert histogram.sum == 16.7
    histogram.add(1.0)
    assert histogram.cumulative() == [3, 5, 7, 8]


def test_values_that_are_not_counted_yet_are_in_every_answer() -> None:
    random, values = Random(1), []
    histogram = Histogram((0.25, 0.5, 0.75))
    for _ in range(5 * FOLD + 7):
        values.append(random.random())
        histogram.add(values[-1])
        assert len(histogram.kept) < FOLD
        if random.random() < 0.05:
            assert histogram.count() == len(values)
            expected = [sum(each <= bound for each in values) for bound in histogram.bounds]
            assert histogram.cumulative() == [*expected, len(values)]
            assert abs(histogram.sum - sum(values)) < 1e-9
