"""The parser reports faults with their position."""

import pytest

from keyrun.runtime.graphs.cel.errors import InvalidExpression
from keyrun.runtime.graphs.cel.syntax import DEEPEST, LONGEST
from keyrun.runtime.graphs.condition import Condition


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "line 1, column 1: expected a value, found the end"),
        ("output.a ==", "line 1, column 12: expected a value, found the end"),
        ("(output.a", "line 1, column 10: expected ')', found the end"),
        ("output.a\n  = 1", "line 2, column 3: write '==' instead of '='"),
        ("output.a == 'x", "line 1, column 13: the string is not closed; add ' at its end"),
        ("output.a 1", "line 1, column 10: expected an operator or the end, found '1'"),
        ("[1 2] == []", "line 1, column 4: expected ',' or ']', found '2'"),
        ("{1} == {}", "line 1, column 3: expected ':', found '}'"),
        ("output.in", "line 1, column 8: expected a field name, found 'in'"),
        ("output.a == '\ud800'", "line 1, column 14: a lone surrogate"),
        ("while", "line 1, column 1: 'while' is a reserved word"),
        (r"output.a == '\z'", r"line 1, column 13: unknown escape sequence '\\z'"),
        (r"output.a == '\ud800'", "is not a character"),
        ("9223372036854775808 > 1", "9223372036854775808 is out of the range of an int"),
        ("99999999999999999999u > 1", "99999999999999999999u is too large for a uint"),
        ("1e999 > 1.0", "1e999 is too large for a double"),
        ("has(output)", "line 1, column 5: has() requires a field, as in has(output.status)"),
        ("output.all(x.y, true)", "line 1, column 12: all() requires a variable name first"),
        ("output.all(x)", "wrong number of arguments for all(): 1"),
        ("lower(output.a)", "line 1, column 1: there is no function 'lower'"),
        ("output.lower()", "line 1, column 8: there is no method 'lower'"),
        ("size(1, 2)", "size() takes 1 argument, got 2"),
        ("output.a.matches('(')", "line 1, column 10: the pattern '(' has an unclosed '('"),
        ("output.a.matches('(?=a)')", "has a group that is not supported"),
        ("output.a.matches('(a{99}){99}')", "needs more than 2,000 states"),
        ("status == level", "there is no name 'status'; a condition can use output"),
        ("status == level", "there is no name 'level'"),
        ("true" + " " * LONGEST, "the expression has 1,004 characters; at most 1,000 are allowed"),
        ("[" * 30 + "]" * 30, f"brackets are nested more than {DEEPEST} deep"),
    ],
)
def test_a_fault_has_a_position_and_a_reason(source: str, said: str) -> None:
    with pytest.raises(InvalidExpression) as caught:
        Condition(source)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1 + 2 * 3 == 7 // a comment", True),
        ("10 - 2 - 3 == 5", True),
        ("false || true && false", False),
        ("false ? false : true ? true : false", True),
        ("1 in [1] == true", True),
        ("[1, 2,] == [1, 2] && {'a': 1,} == {'a': 1}", True),
        ("'''a'b''' == \"a'b\" && r'\\n' == '\\\\n'", True),
        ("'\\x41\\u0042\\103' == 'ABC'", True),
        ("-1 == 0 - 1 && --1 == 1", True),
        ("[[1]].all(x, x.all(x, x == 1))", True),
        ("[1].exists(output, output == 1)", True),
    ],
)
def test_expressions_are_read_as_cel(source: str, value: bool) -> None:
    assert Condition(source).holds(None, None, {}) is value


@pytest.mark.parametrize("depth", [1, DEEPEST])
def test_brackets_may_be_nested(depth: int) -> None:
    assert Condition("(" * depth + "true" + ")" * depth).holds(None, None, {})
