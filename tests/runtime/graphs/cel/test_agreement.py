"""The compiler gives the same values and errors as the CEL library, for random expressions."""

from typing import Any

import cel
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from keyrun.runtime.graphs.cel.compiler import Compiler
from keyrun.runtime.graphs.cel.errors import InvalidExpression, MissingKey, Unanswerable
from keyrun.runtime.graphs.cel.values import LEFT, plain
from keyrun.runtime.graphs.condition import BUDGET, NAMES

INVALID, MISSING, UNANSWERABLE = "invalid", "missing", "unanswerable"


def ours(source: str, data: dict[str, Any]) -> Any:
    """Return what the compiler makes of an expression."""
    try:
        compiler = Compiler(source, NAMES)
    except InvalidExpression:
        return (INVALID,)
    frame = [*(data.get(name) for name in NAMES), BUDGET, *[None] * compiler.variables]
    try:
        return comparable(compiler.evaluate(frame))
    except MissingKey as error:
        return MISSING, str(error.key).replace("True", "true").replace("False", "false")
    except Unanswerable as error:
        # The library adds the keys of a map to a list, in any order.
        assume("'+' is not defined for list and map" not in str(error))
        return (UNANSWERABLE,)


def theirs(source: str, data: dict[str, Any]) -> Any:
    """Return what the library makes of it."""
    try:
        program = cel.compile(source)
    except ValueError:
        return (INVALID,)
    try:
        return comparable(program.execute({name: data.get(name) for name in NAMES}))
    except KeyError as error:
        return MISSING, str(error.args[0])
    except Exception:
        return (UNANSWERABLE,)


def comparable(value: Any) -> Any:
    """Return a value with its type, so that 1, 1.0 and true differ, and so that NaN is itself."""
    value = plain([None] * LEFT + [BUDGET], value)
    if isinstance(value, list):
        return [comparable(each) for each in value]
    if isinstance(value, dict):
        return {comparable(key): comparable(each) for key, each in value.items()}
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return "int", int(value)
    return type(value).__name__, repr(value)


_numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30]),
    st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.5, 9007199254740992.0, 1e300]),
    st.sampled_from([float("inf"), float("nan")]),
)
_texts = st.sampled_from(["", "a", "ab", "b'", "é", "1", "-7", "2.5", "x y", "\U0001f6d2"])
_scalars = st.one_of(st.none(), st.booleans(), _numbers, _texts, st.just(b"a"))
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
        st.dictionaries(st.integers(0, 2), inner, max_size=2),
    ),
    max_leaves=6,
)
_data = st.fixed_dictionaries(
    {
        "output": st.dictionaries(st.sampled_from(["a", "b", "c"]), _values, max_size=3),
        "input": _values,
        "outputs": st.just({}),
        "error": st.none(),
    }
)
_literals = st.sampled_from(
    [
        *("0", "1", "2", "-1", "- 1", "9223372036854775807", "-9223372036854775808", "0x1F", "007"),
        *("0u", "1u", "2u", "18446744073709551615u", "1.0", "0.5", "-1.5", "1e3", ".5", "2E-1"),
        *("''", "'a'", '"b"', r"'\n'", r"'\u00e9'", r"r'\d'", "'''a'b'''", "b'a'", r"b'\xff'"),
        *("true", "false", "null", "[]", "{}", "[1, 2]", "[1, 'a', 1.0]", "{'a': 1}", "{1: 'a'}"),
        *(
            "[[1], [2]]",
            "{'a': {'b': [1]}}",
            "duration('90s')",
            "timestamp('2024-01-07T05:06:07Z')",
        ),
    ]
)
_paths = st.sampled_from(
    ["output", "input", "output.a", "output.b", "output.a.b", "input.a", "input[0]", "output['a']"]
)
_binary = st.sampled_from(
    ["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "in", "&&", "||", "&&", "||"]
)
_functions = st.sampled_from(
    ["size", "int", "uint", "double", "bytes", "dyn", "timestamp", "duration", "string"]
)
_macros = st.sampled_from(["all", "exists", "exists_one", "filter", "map"])
_methods = st.sampled_from(["contains", "startsWith", "endsWith"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    items = st.one_of(
        inner, st.sampled_from(["x", "x == 1", "x > 0", "x.a", "x + x", "x in input"])
    )
    return st.one_of(
        st.builds("{} {} {}".format, inner, _binary, inner),
        st.builds("({} {} {})".format, inner, _binary, inner),
        st.builds("({}) {} ({})".format, inner, _binary, inner),
        st.builds("({}) ? {} : {}".format, inner, st.one_of(_paths, _literals), inner),
        st.builds("!{}".format, inner),
        st.builds("!({})".format, inner),
        st.builds("-({})".format, inner),
        st.builds("--({})".format, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{{'a': {}}}".format, inner),
        st.builds("({})[{}]".format, inner, inner),
        st.builds("({}).a".format, inner),
        st.builds("has(({}).a)".format, inner),
        st.builds("{}({})".format, _functions, inner),
        st.builds("({}).{}({})".format, inner, _methods, inner),
        st.builds("({}).{}(x, {})".format, inner, _macros, items),
        st.builds("({}).map(x, {}, {})".format, inner, items, items),
    )


_expressions = st.recursive(st.one_of(_literals, _paths, _paths), _larger, max_leaves=6)


@settings(max_examples=1000, deadline=None)
@given(_expressions, _data)
@example("!!1", {})
@example("-(-9223372036854775808)", {})
@example("true || 1 / 0 == 1", {})
@example("1 && false", {})
@example("size(input)", {"input": "é"})
@example("string(duration('1h2m3.5s')) + string(duration('20ms')) + string(duration('7us'))", {})
@example("string(timestamp('2024-01-07T05:06:07.250+02:00'))", {})
def test_the_compiler_agrees_with_the_library(source: str, data: dict[str, Any]) -> None:
    if "(x," in source:
        # The library iterates over the keys of a map in any order.
        data = _with_single_keys(data)
    one, other = ours(source, data), theirs(source, data)
    if any(mark in source for mark in ("&&", "||", "With(", "contains(")):
        # Several operands can fail. Which of their errors is reported is not part of the language.
        one, other = _any_failure(one), _any_failure(other)
    assert one == other


def _with_single_keys(data: dict[str, Any]) -> dict[str, Any]:
    def first(value: Any) -> Any:
        if isinstance(value, list):
            return [first(each) for each in value]
        if isinstance(value, dict):
            return {key: first(each) for key, each in list(value.items())[:1]}
        return value

    return {name: first(value) for name, value in data.items()}


def _any_failure(found: Any) -> Any:
    failed = isinstance(found, tuple) and found[0] in (MISSING, UNANSWERABLE)
    return (UNANSWERABLE,) if failed else found


_atoms = st.sampled_from(
    [
        *("a", "b", "1", "é", ".", "[a-c]", "[^a]", "[]a]", "[a-]", r"[\d_]", r"\d", r"\w", r"\s"),
        *(
            r"\W",
            r"\.",
            r"\n",
            r"\x61",
            r"\pL",
            r"\p{Nd}",
            "^",
            "$",
            r"\b",
            r"\B",
            r"\A",
            r"\z",
            "",
        ),
    ]
)
_patterns = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("{}|{}".format, inner, inner),
        st.builds("({})".format, inner),
        st.builds("(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "*?"])),
        st.builds("(?P<n>{}){{0,2}}".format, inner),
        st.builds(
            "{}{}".format, inner, st.sampled_from(["*", "+", "?", "{2,1}", "{", "}", ")", "("])
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=1000, deadline=None)
@given(_patterns, st.text("abc1_é .\n", max_size=6), st.booleans())
def test_matches_agrees_with_the_library(pattern: str, text: str, folds: bool) -> None:
    data = {"input": text.upper(), "output": "(?i)" + pattern} if folds else {}
    data = data or {"input": text, "output": pattern}
    assert ours("input.matches(output)", data) == theirs("input.matches(output)", data)
