"""No template stalls the process or takes its memory, whatever it does and whatever it is given."""

import json
import subprocess
import sys
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyrun.flows import filters
from keyrun.flows.errors import TemplateFailed
from keyrun.flows.sandbox import METHODS
from keyrun.flows.templates import renderable
from tests.flows import hostile_templates
from tests.flows.hostile_templates import BIG, FILTERS, HUGE, OPERATORS, TESTS

SECONDS = 10
"""CPU time for one template. The worst takes about 3 s on a busy machine."""
MEGABYTES = 600


def test_every_filter_test_and_method_has_hostile_templates() -> None:
    named = {name for name in filters.FILTERS if "(" not in name}
    assert named == FILTERS.keys()
    signs = {"==", "!=", "<", "<=", ">", ">=", "equalto", "lessthan", "greaterthan"}
    assert filters.TESTS.keys() - signs == TESTS.keys()
    methods = set[str]().union(*(METHODS[kind] for kind in (str, dict, list)))
    assert methods <= hostile_templates.METHODS.keys()


def test_no_hostile_template_takes_long_or_much() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.flows.hostile_templates"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(hostile_templates.every())
    assert [each for each in found if each["seconds"] > SECONDS] == []
    assert [each for each in found if "MemoryError" in each["outcome"]] == []
    assert max(each["peak_mb"] for each in found) < MEGABYTES


ATOMS = st.sampled_from(
    [
        *("1", "0", "-1", "3.5", "none", "true", "'x'", "'%s'", "missing", "'a.b'", "''"),
        *(str(BIG), str(HUGE), "input.n", "input.ten", "input.many", "input.words", "input.rows"),
        *("input.text", "input.same", "input.format", "input.dots", "input.blob", "input.deep"),
        *("input.one", "input", "range(99999)", "[1, 'x']", "('x', 'y')", "{'a': [1]}"),
    ]
)
NAMES = hostile_templates.names()


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    args = st.lists(inner, max_size=3).map(", ".join)
    filtering = st.builds(
        lambda value, name, given: f"({value}) | {name}({given})",
        inner,
        st.sampled_from(sorted(FILTERS)),
        args,
    )
    mapping = st.builds(
        lambda value, name, given: f"({value}) | map('{name}'{', ' if given else ''}{given})",
        inner,
        st.sampled_from(sorted(FILTERS)),
        args,
    )
    testing = st.builds(
        lambda value, name, given: f"(({value}) is {name}({given}))",
        inner,
        st.sampled_from(sorted(TESTS)),
        args,
    )
    choosing = st.builds(
        lambda value, name, given: f"({value}) | select('{name}'{', ' if given else ''}{given})",
        inner,
        st.sampled_from(sorted(TESTS)),
        args,
    )
    calling = st.builds(
        lambda value, name, given: f"({value}).{name}({given})",
        inner,
        st.sampled_from(sorted(hostile_templates.METHODS)),
        args,
    )
    operating = st.builds(
        lambda one, sign, other: f"(({one}) {sign} ({other}))",
        inner,
        st.sampled_from(
            ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", ">=", "in", "not in", "and"]
        ),
        inner,
    )
    slicing = st.builds(lambda value, at: f"({value})[{at}:]", inner, inner)
    return st.one_of(filtering, mapping, testing, choosing, calling, operating, slicing)


EXPRESSIONS = st.recursive(ATOMS, _combined, max_leaves=8)
SHAPES = st.sampled_from(
    [
        "{{{{ {0} }}}}",
        "text {{{{ {0} }}}}",
        "{{% for a in {0} %}}{{{{ {1} }}}}{{% endfor %}}",
        "{{% set a = {0} %}}{{% for b in {1} %}}{{{{ a ~ b }}}}{{% endfor %}}",
        "{{% set a %}}{{{{ {0} }}}}{{{{ {1} }}}}{{% endset %}}{{{{ a | length }}}}",
        "{{% if {0} %}}{{{{ {1} }}}}{{% endif %}}",
    ]
)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(SHAPES, EXPRESSIONS, EXPRESSIONS)
def test_a_random_template_gives_a_value_or_fails_in_time(shape: str, one: str, two: str) -> None:
    template = shape.format(one, two)
    began, said = process_time(), ""
    try:
        renderable(template, "t").render(NAMES)
    except TemplateFailed as error:
        said = str(error)
    assert len(said) < 1000
    assert process_time() - began < SECONDS, template


@pytest.mark.parametrize("expression", OPERATORS)
def test_nothing_is_computed_while_a_template_is_compiled(expression: str) -> None:
    began = process_time()
    renderable(f"{{{{ {expression} }}}}", "t")
    assert process_time() - began < 1


def test_the_templates_of_one_value_have_a_limit_together() -> None:
    loop = "{% for a in input.many %}{% endfor %}{{ 1 }}."
    assert renderable([loop] * 15, "t").render(NAMES) == ["1."] * 15
    with pytest.raises(TemplateFailed, match="operations for this data"):
        renderable({"a": [loop] * 15, "b": {"c": [loop] * 15}}, "t").render(NAMES)


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ input.rows | groupby('a.b') | map('first') | list }}", list(range(7))),
        ("{{ ['b', 'A', 'a'] | sort }}", ["A", "a", "b"]),
        ("{{ ['b', 'A', 'a'] | sort(case_sensitive=true, reverse=true) }}", ["b", "a", "A"]),
        ("{{ [{'a': 2}, {'a': 1}] | sort(attribute='a') | map(attribute='a') | list }}", [1, 2]),
        ("{{ ['a', 'A', 'b'] | unique }}", ["a", "b"]),
        ("{{ [3, 1, 2] | min }}", 1),
        ("{{ ['a', 'C', 'b'] | max }}", "C"),
        ("{{ {'b': 1, 'a': 2} | dictsort }}", [("a", 2), ("b", 1)]),
        ("{{ {'b': 1, 'a': 2} | dictsort(by='value', reverse=true) }}", [("a", 2), ("b", 1)]),
        ("{{ [1, 2, 3] | batch(2, 0) }}", [[1, 2], [3, 0]]),
        ("{{ [1, 2, 3] | slice(2, 0) }}", [[1, 2], [3, 0]]),
        ("{{ [1, 2, 3] | sum }}", 6),
        ("{{ [{'a': 1.5}, {'a': 2}] | sum(attribute='a', start=1) }}", 4.5),
        ("{{ [1, 'b', none] | join('-') }}", "1-b-None"),
        ("{{ [{'n': 'a'}, {'n': 'b'}] | join('+', attribute='n') }}", "a+b"),
        ("{{ [] | join('-') }}", ""),
        ("{{ '%s is %05.2f, %d%% of %x' | format('a', 1.5, 20, 255) }}", "a is 01.50, 20% of ff"),
        ("{{ '%(b)s %(a)-4s|' | format(a='x', b=[1]) }}", "[1] x   |"),
        ("{{ 'a.b.a' | replace('a', 'x', 1) }}", "x.b.a"),
        ("{{ [1, {'a': 'é'}] | tojson(indent=2) }}", '[\n  1,\n  {\n    "a": "é"\n  }\n]'),
        ("{{ '42.9' | int }}", 42),
        ("{{ 'ff' | int(0, 16) }}", 255),
        ("{{ 'x' | int(7) }}", 7),
        ("{{ '1.5' | float }}", 1.5),
        ("{{ 2.345 | round(2) }}", round(2.345, 2)),
        ("{{ 2.1 | round(0, 'ceil') }}", 3.0),
        ("{{ 'a b' | urlencode }}", "a%20b"),
        ("{{ {'a': 'b c', 'd': 1} | urlencode }}", "a=b+c&d=1"),
        ("{{ ' x ' | trim }}", "x"),
        ("{{ 'abc def ghi' | truncate(8, leeway=0) }}", "abc..."),
        ("{{ 'one two' | wordcount }}", 2),
        ("{{ [1, 2, 3, 4] | select('even') }}", [2, 4]),
        ("{{ [1, 2, 3, 4] | reject('gt', 2) }}", [1, 2]),
        ("{{ [{'a': 1}, {'a': 0}] | selectattr('a') | list | length }}", 1),
        ("{{ [{'a': 1}, {'a': 2}] | rejectattr('a', 'eq', 1) }}", [{"a": 2}]),
        ("{{ 'abc' | reverse }}", "cba"),
        ("{{ [1, 2] | reverse }}", [2, 1]),
        ("{{ 1 < 2 < 3 }}", True),
        ("{{ 1 < 3 < 2 }}", False),
        ("{{ 'a' in 'abc' and 1 not in [2] }}", True),
        ("{{ ','.join(['a', 'b']) }}", "a,b"),
        ("{{ 'xxabxx'.strip('x') }}", "ab"),
        ("{{ [1, 2, 3][1:] }}", [2, 3]),
        ("{{ 'abc'[::-1] }}", "cba"),
        ("{{ 7 // 2 + 7 % 2 - 2 ** 3 }}", -4),
        ("{{ {'a': 1, 2: 'b'} }}", {"a": 1, 2: "b"}),
        ("{{ 6 is divisibleby(3) }}", True),
        ("{{ missing | default('d') }}", "d"),
        ("{{ '' | d('d', true) }}", "d"),
    ],
)
def test_every_filter_does_what_jinja_says(template: str, value: Any) -> None:
    assert renderable(template, "t").render(NAMES) == value
