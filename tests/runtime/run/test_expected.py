"""Expected calls: the calls of a journal that the code has not asked for in this pass."""

from keyrun.runtime.run.expected import Expected, label_inside


def test_a_call_is_required_as_soon_as_one_call_inside_it_is() -> None:
    """A `gather` whose first branch lost a race still has to be asked for, because of its second
    branch."""
    expected = Expected(graph=False)
    expected.add("g1.0/sleep()", "sleep()", required=False)
    assert expected.left == 0
    expected.add("g1.1/pay", "pay", required=True)
    assert expected.left == 2
    assert expected.next() == label_inside("g1.1")
    assert expected.ask("", label_inside("g1.1")) == ""
    assert expected.ask("g1.1/", "pay") == ""
    assert expected.left == 0


def test_a_required_call_is_asked_for_before_an_optional_one_behind_it() -> None:
    expected = Expected(graph=False)
    expected.add("one", "one", required=False)
    expected.add("two", "two", required=True)
    expected.add("three", "three", required=False)
    assert expected.ask("", "three") == "two"
    assert expected.ask("", "two") == ""
    assert expected.left == 0
    assert expected.ask("", "three") == ""
