"""Retry policies: how long to wait, how often to try, and what is tried again."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyrun import PermanentError, Retry, TransientError


def test_the_shapes_grow_as_they_say() -> None:
    attempts = range(1, 6)

    def delays(policy: Retry) -> list[float]:
        return [policy.delay_for("r", "s", attempt) for attempt in attempts]

    assert delays(Retry.none()) == [0, 0, 0, 0, 0]
    assert delays(Retry.fixed(delay=2, jitter=0)) == [2, 2, 2, 2, 2]
    assert delays(Retry.linear(step=2, max_delay=7, jitter=0)) == [2, 4, 6, 7, 7]
    assert delays(Retry.exponential(base=1, factor=3, max_delay=30, jitter=0)) == [1, 3, 9, 27, 30]


def test_the_defaults_are_those_of_the_design() -> None:
    assert Retry.none().max_attempts == 1
    assert Retry.exponential() == Retry(
        shape="exponential", max_attempts=3, base=1.0, factor=2.0, max_delay=60.0, jitter=0.25
    )


@given(st.text(max_size=20), st.text(max_size=20), st.integers(1, 10_000))
def test_a_delay_depends_only_on_run_step_and_attempt(run: str, step: str, attempt: int) -> None:
    one = Retry.exponential(base=0.5).delay_for(run, step, attempt)
    assert one == Retry.exponential(base=0.5).delay_for(run, step, attempt)


def test_other_runs_steps_and_attempts_are_spread() -> None:
    policy = Retry.fixed(delay=1)
    delays = {
        policy.delay_for(run, step, attempt)
        for run in ("a", "b")
        for step in ("c", "d")
        for attempt in (1, 2)
    }
    assert len(delays) == 8


@given(
    st.sampled_from(["fixed", "linear", "exponential"]),
    st.floats(0, 1e6),
    st.floats(0, 1),
    st.floats(0, 1e3),
    st.integers(1, 100_000),
)
def test_jitter_stays_within_its_share_and_below_the_cap(
    shape: Any, base: float, jitter: float, cap: float, attempt: int
) -> None:
    policy = Retry(shape=shape, base=base, jitter=jitter, max_delay=cap)
    exact = Retry(shape=shape, base=base, jitter=0, max_delay=float("inf"))
    delay = policy.delay_for("r", "s", attempt)
    middle = exact.delay_for("r", "s", attempt)
    assert 0 <= delay <= cap
    assert delay <= middle * (1 + jitter) * (1 + 1e-9)
    assert delay >= min(cap, middle * (1 - jitter) * (1 - 1e-9))


@pytest.mark.parametrize(
    ("policy", "error", "retried"),
    [
        (Retry.fixed(), TransientError("x"), True),
        (Retry.fixed(), ValueError("x"), True),
        (Retry.fixed(), PermanentError("x"), False),
        (Retry.fixed(retry_on=(OSError,)), ConnectionError("x"), True),
        (Retry.fixed(retry_on=(OSError,)), ValueError("x"), False),
        (Retry.fixed(never_retry_on=(OSError,)), ConnectionError("x"), False),
        (Retry.fixed(retry_on=(OSError,), never_retry_on=(ConnectionError,)), OSError("x"), True),
        (
            Retry.fixed(retry_on=(OSError,), never_retry_on=(ConnectionError,)),
            ConnectionResetError("x"),
            False,
        ),
        (Retry.fixed(retry_on=(PermanentError,)), PermanentError("x"), False),
    ],
)
def test_what_is_tried_again(policy: Retry, error: Exception, retried: bool) -> None:
    assert policy.retries(error) is retried


def test_error_types_may_be_one_type_or_a_list() -> None:
    policy = Retry.fixed(
        retry_on=[OSError],  # type: ignore[arg-type]
        never_retry_on=KeyError,  # type: ignore[arg-type]
    )
    assert policy.retry_on == (OSError,)
    assert policy.never_retry_on == (KeyError,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number of at least 1, got 0"),
        ({"max_attempts": 1.5}, "max_attempts must be a whole number of at least 1, got 1.5"),
        ({"max_attempts": True}, "max_attempts must be a whole number of at least 1, got True"),
        ({"max_attempts": 2**63}, "max_attempts must be a whole number of at least 1"),
        ({"base": -1}, "base must be at least 0, got -1"),
        ({"base": 10**400}, "base must be at least 0, got 1000"),
        ({"base": "1"}, "base must be at least 0, got '1'"),
        ({"factor": 0.5}, "factor must be at least 1, got 0.5"),
        ({"max_delay": float("nan")}, "max_delay must be at least 0, got nan"),
        ({"jitter": 1.5}, "jitter must be between 0 and 1, got 1.5"),
    ],
)
def test_a_bad_argument_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Retry.exponential(**arguments)


def test_what_is_no_exception_type_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="retry_on must be exception types, got 'OSError'"):
        Retry.fixed(retry_on=("OSError",))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inside", "policy", "retried"),
    [
        ([ValueError(), OSError()], Retry.fixed(), True),
        ([ValueError(), PermanentError()], Retry.fixed(), False),
        ([OSError()], Retry.fixed(retry_on=(OSError,)), True),
        ([OSError(), ValueError()], Retry.fixed(retry_on=(OSError,)), False),
        ([ValueError()], Retry.fixed(retry_on=(ExceptionGroup,)), True),
        ([OSError(), ConnectionError()], Retry.fixed(never_retry_on=(ConnectionError,)), False),
        ([ValueError()], Retry.fixed(never_retry_on=(ExceptionGroup,)), False),
    ],
)
def test_of_a_group_counts_what_is_inside(
    inside: list[Exception], policy: Retry, retried: bool
) -> None:
    """Nurseries raise groups, so every error of a step that has one comes in a group."""
    group = ExceptionGroup("a nursery", inside)
    assert policy.retries(group) is retried
    assert policy.retries(ExceptionGroup("a nursery in it", [group])) is retried
