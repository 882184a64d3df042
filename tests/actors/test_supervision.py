import math
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyrun.actors import Directive, Supervision


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": -1}, "base must be at least 0, got -1"),
        ({"factor": 0.5}, "factor must be at least 1, got 0.5"),
        ({"max_delay": math.nan}, "max_delay must be at least 0, got nan"),
        ({"jitter": -0.1}, "jitter must be at least 0, got -0.1"),
        ({"jitter": 1.5}, "jitter must be at most 1, got 1.5"),
        ({"max_restarts": -1}, "max_restarts must be at least 0, got -1"),
        ({"window": 0}, "window must be positive, got 0"),
    ],
)
def test_a_wrong_value_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Supervision(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directives": {"ValueError": Directive.STOP}}, "got 'ValueError'"),
        ({"directives": {ValueError: "stop"}}, r"directives\[ValueError\] must be a Directive"),
        ({"failed_message": "retry"}, "failed_message"),
        ({"max_restarts": 1.5}, "max_restarts must be an integer, got 1.5"),
        ({"base": "1"}, "base must be a number, got '1'"),
    ],
)
def test_a_wrong_type_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Supervision(**options)


def test_a_supervision_cannot_be_changed() -> None:
    directives: dict[type[BaseException], Directive] = {ValueError: Directive.STOP}
    supervision = Supervision(directives=directives)
    directives.clear()
    assert supervision.directive_for(ValueError()) is Directive.STOP
    with pytest.raises(TypeError):
        supervision.directives[KeyError] = Directive.STOP  # type: ignore[index]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        supervision.base = 1.0  # type: ignore[misc]
    assert hash(supervision) == hash(Supervision(directives={ValueError: Directive.STOP}))


def test_the_most_specific_class_decides() -> None:
    supervision = Supervision(directives={LookupError: Directive.STOP, KeyError: Directive.RESTART})
    assert supervision.directive_for(KeyError()) is Directive.RESTART
    assert supervision.directive_for(IndexError()) is Directive.STOP
    assert supervision.directive_for(ValueError()) is Directive.RESTART


def test_an_exception_group_stops_if_any_error_in_it_would() -> None:
    supervision = Supervision(directives={KeyError: Directive.STOP})
    harmless = ExceptionGroup("harmless", [ValueError(), ExceptionGroup("", [TypeError()])])
    mixed = ExceptionGroup("mixed", [ValueError(), ExceptionGroup("", [KeyError()])])
    assert supervision.directive_for(harmless) is Directive.RESTART
    assert supervision.directive_for(mixed) is Directive.STOP


def test_delays_grow_by_the_factor_up_to_the_limit() -> None:
    supervision = Supervision(base=0.5, factor=3.0, max_delay=10.0, jitter=0.0)
    assert [supervision.delay_for("a", n) for n in (1, 2, 3, 4)] == [0.5, 1.5, 4.5, 10.0]
    assert supervision.delay_for("a", 10**6) == 10.0
    assert Supervision(base=0.0).delay_for("a", 10**6) == 0.0


def test_the_delays_of_a_key_are_the_same_in_every_process() -> None:
    assert Supervision().delay_for("customer-42", 3) == pytest.approx(0.385966999)
    assert Supervision().delay_for("customer-42", 3) != Supervision().delay_for("customer-43", 3)


@given(
    key=st.text() | st.integers(),
    restart=st.integers(1, 60),
    jitter=st.floats(0, 1),
    base=st.floats(0, 10),
)
def test_a_delay_stays_within_its_jitter_and_limit(
    key: str | int, restart: int, jitter: float, base: float
) -> None:
    supervision = Supervision(base=base, jitter=jitter, max_delay=20.0)
    exact = base * 2.0 ** (restart - 1)
    delay = supervision.delay_for(key, restart)
    assert (
        min(exact * (1 - jitter), 20.0) * 0.999 <= delay <= min(exact * (1 + jitter), 20.0) + 1e-9
    )


def test_restarts_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="restart must be at least 1, got 0"):
        Supervision().delay_for("a", 0)
