"""No template stops the process for long, whatever it is given."""

from time import process_time
from typing import Any

import pytest

from keyrun.flows.errors import TemplateFailed
from keyrun.flows.templates import renderable

NAMES: dict[str, Any] = {
    "input": {"many": list(range(50_000)), "text": "z" * 500_000, "few": [1, 2]}
}


def fill(template: str) -> Any:
    return renderable(template, "t").render(NAMES)


TOO_LONG = [
    "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "{% for a in input.many %}{% for b in input.many %}{% endfor %}{% endfor %}",
    "{% for a in input.many %}{% for b in input.many %}{{ loop.length }}{% endfor %}{% endfor %}",
    "{% for a in input.many %}{{ input.many | sum }}{% endfor %}",
    "{% for a in input.many %}{% if input.many | sort | first %}{% endif %}{% endfor %}",
    "{% for a in input.many %}{% if -1 in input.many %}{% endif %}{% endfor %}",
    "{% for a in input.many %}{% if input.many == input.many %}{% endif %}{% endfor %}",
    "{% for a in input.many %}{% if input.text.count('y') %}{% endif %}{% endfor %}",
    "{% for a in input.many if input.text in input.text %}{% endfor %}",
    "{% set x %}{% for a in input.many %}{{ input.text }}{% endfor %}{% endset %}{{ x | length }}",
    "{% set x %}{% for a in input.many %}"
    + "z" * 5000
    + "{% endfor %}{% endset %}{{ x | length }}",
    "{% filter upper %}{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}{% endfilter %}",
    "{% set a = input.text %}" + "{% set a = a ~ a %}" * 30 + "{{ a | length }}",
    "{% set a = input.text %}" + "{% set a = a + a %}" * 30 + "{{ a | length }}",
    "{% set a = [0] %}" + "{% set a = a + a %}" * 40 + "{{ a | length }}",
    "{% set a = input.text %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 30 + "{{ a | length }}",
]


@pytest.mark.parametrize("template", TOO_LONG)
def test_what_would_take_too_long_is_refused_soon(template: str) -> None:
    began = process_time()
    with pytest.raises(
        TemplateFailed, match=r"operations for this data|characters or items|characters$"
    ):
        fill(template)
    assert process_time() - began < 10


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{% for a in input.few %}{{ loop.index }}/{{ loop.length }} {% endfor %}", "1/2 2/2 "),
        ("{% for a in [] %}{% else %}none{% endfor %}", "none"),
        ("{% for a in input.few if a > 1 %}{{ a }}{% endfor %}", "2"),
        ("{% for a, b in {'x': 1}.items() %}{{ a }}{{ b }}{% endfor %}", "x1"),
        ("{% set x %}{{ 1 }}-{{ 2 }}{% endset %}{{ x }}!", "1-2!"),
        ("{% set x | upper %}a{% endset %}{{ x }}!", "A!"),
        ("{{ 1 + 2 }}", 3),
        ("{{ [1] + [2] }}", [1, 2]),
        ("{{ 'a' ~ 1 ~ 'b' }}", "a1b"),
        ("{{ 2 in input.few }}", True),
        ("{{ input.many | sum }}", 1_249_975_000),
        ("{{ input.many | map('string') | select('in', ['7']) | list }}", ["7"]),
        ("{% for a in input.many %}{% endfor %}done", "done"),
    ],
)
def test_what_is_within_the_limit_is_as_ever(template: str, value: Any) -> None:
    assert fill(template) == value


def test_each_template_has_a_limit_of_its_own() -> None:
    loop = "{% for a in input.many %}{% endfor %}{{ 1 }}."
    assert renderable([loop] * 30, "t").render(NAMES) == ["1."] * 30
