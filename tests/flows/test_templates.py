"""Templates fill in values, say what is wrong and where, and reach nothing of Python."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
import pytest

from keyrun import PermanentError
from keyrun.flows.errors import TemplateFailed
from keyrun.flows.templates import renderable


@attrs.frozen
class Order:
    id: int
    _hidden: str = "secret"


NAMES: dict[str, Any] = {
    "input": {"id": 7, "name": "Ann", "tags": ["a", "b"], "items": [1, 2], "none": None},
    "output": {"total": 1.5, "text": "{{ input.id }}"},
    "order": Order(3),
    "at": datetime(2026, 1, 31, 14, 0, tzinfo=UTC),
}


def fill(value: Any) -> Any:
    return renderable(value, "nodes.fetch.url").render(NAMES)


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ input.id }}", 7),
        ("{{ output.total }}", 1.5),
        ("{{ input.tags }}", ["a", "b"]),
        ("{{ input.none }}", None),
        ("{{ input.id > 3 }}", True),
        ("{{ input }}", NAMES["input"]),
        ("{{ input.tags | map('upper') }}", ["A", "B"]),
        ("{{ input.tags | length + 1 }}", 3),
        ("{{ range(3) }}", [0, 1, 2]),
        ("{{ at }}", NAMES["at"]),
        ("{{ order.id }}", 3),
        ("{{ '12' }}", "12"),
        ("{{- input.id -}}", 7),
    ],
)
def test_a_template_that_is_one_expression_keeps_the_value_as_it_is(
    template: str, value: Any
) -> None:
    filled = fill(template)
    assert filled == value
    assert type(filled) is type(value)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("order {{ input.id }}", "order 7"),
        ("{{ input.id }}{{ input.id }}", "77"),
        (" {{ input.id }}", " 7"),
        ("{% for tag in input.tags %}{{ loop.index }}{{ tag }} {% endfor %}", "1a 2b "),
        ("{% if input.id == 7 %}seven{% else %}other{% endif %}", "seven"),
        ("{{ input.name | lower }}!", "ann!"),
        ("{{ input | tojson }}.", None),
        ("{{ '%05.1f' | format(output.total) }}", "001.5"),
        ("{{ 'a b&c' | urlencode }}", "a%20b%26c"),
        ("{{ input.name.replace('n', 'm') }}", "Amm"),
        ("{{ at.isoformat() }}.", "2026-01-31T14:00:00+00:00."),
        ("no template }} here", "no template }} here"),
        ("ends with\n{{ 'a line end' }}\n", "ends with\na line end\n"),
    ],
)
def test_every_other_template_gives_text(template: str, text: str | None) -> None:
    filled = fill(template)
    assert isinstance(filled, str)
    if text is not None:
        assert filled == text


def test_templates_are_filled_in_however_deep_they_are() -> None:
    value = {"a": [{"b": "{{ input.id }}"}, 1], "c": ("{{ input.name }}", None), "d": {"e": "f"}}
    assert fill(value) == {"a": [{"b": 7}, 1], "c": ["Ann", None], "d": {"e": "f"}}


def test_a_value_without_templates_is_left_as_it_is() -> None:
    value = {"a": [1, "two", {"three": None}]}
    assert fill(value) is value


def test_what_is_filled_in_is_data_and_never_a_template() -> None:
    assert fill("{{ output.text }}") == "{{ input.id }}"
    assert fill("<{{ output.text }}>") == "<{{ input.id }}>"


def test_an_item_comes_before_a_method_of_the_same_name() -> None:
    assert fill("{{ input.items }}") == [1, 2]


def test_json_in_a_template_is_json_with_what_it_has_no_form_for_as_text() -> None:
    names = {"value": {"at": NAMES["at"], "price": Decimal("1.50"), "text": "<é>", "b": b"x"}}
    said = renderable("{{ value | tojson }}", "t").render(names)
    assert said == '{"at":"2026-01-31T14:00:00+00:00","price":"1.50","text":"<é>","b":"eA=="}'


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ missing }}", "line 1: there is no name 'missing'"),
        ("{{ input.missing }}", "line 1: there is no 'missing' in the mapping"),
        ("a\nb {{ input.missing }}", "line 2: there is no 'missing' in the mapping"),
        ("{{ [1, missing] }}", "there is no name 'missing'"),
        ("{{ missing.deeper }}", "there is no name 'missing'"),
        ("{{ missing() }}", "there is no name 'missing'"),
        ("a\n\nb {{ 1 / 0 }}", "line 3: division by zero"),
        ("{{ input.tags[9] }}", "there is no 9 in the list"),
        ("{{ 'a'.upper }}", "a method, not a value; call it with ()"),
        ("x {{ 'a'.upper }}", "a method, not a value; call it with ()"),
        ("{{ self }}", "a TemplateReference, not a value"),
    ],
)
def test_what_cannot_be_filled_in_is_told_with_the_template_and_the_line(
    template: str, message: str
) -> None:
    ready = renderable({"deep": [template]}, "nodes.fetch.json")
    with pytest.raises(TemplateFailed) as caught:
        ready.render(NAMES)
    assert str(caught.value).startswith("the template nodes.fetch.json.deep[0]")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ input.", "line 1"),
        ("a\nb {{ 1 + }}", "line 2"),
        ("{% if x %}", "line 1"),
        ("{{ x | nothing }}", "No filter named 'nothing'"),
        ("{{ x is nothing }}", "No test named 'nothing'"),
        ("{% nothing %}", "unknown tag 'nothing'"),
        ("{% include '/etc/passwd' %}", "'include' is not allowed"),
        ("{% import 'os' as os %}", "'import' is not allowed"),
        ("{% from 'os' import path %}", "'fromimport' is not allowed"),
        ("{% extends 'x' %}", "'extends' is not allowed"),
        ("{% macro f() %}{% endmacro %}", "'macro' is not allowed"),
        ("{{ " + "(" * 2000 + ")" * 2000 + " }}", "nested too deep"),
    ],
)
def test_a_template_that_cannot_be_read_is_refused_before_it_is_used(
    template: str, message: str
) -> None:
    with pytest.raises(TemplateFailed, match=r"^the template nodes\.fetch\.url") as caught:
        renderable(template, "nodes.fetch.url")
    assert message in str(caught.value)


def test_an_error_of_a_template_is_permanent_since_another_attempt_cannot_mend_it() -> None:
    assert issubclass(TemplateFailed, PermanentError)


ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ input|attr('_' ~ '_class__') }}",
    "{{ input['__cl' ~ 'ass__'] }}",
    "{{ [input] | map(attribute='__class__') | list }}",
    "{{ ['x'] | map('attr', '__class__') | list }}",
    "{{ [''] | groupby('__class__') }}",
    "{{ ['', 'a'] | sort(attribute='__class__') }}",
    "{{ [''] | sum(attribute='__class__') }}",
    "{{ '{0.__class__}'.format(input) }}",
    "{{ '{0.__class__}'.format_map({'0': input}) }}",
    "{{ ['{0.__class__}'] | map('format', input) | list }}",
    "{{ '%s' % input.__class__ }}",
    "{{ ('{0.__class__.__init__.__globals__}' | attr('format'))(input) }}",
    "{{ ''.join.__self__ }}",
    "{{ ''.upper.__func__ }}",
    "{{ range.__globals__ }}",
    "{{ range.__code__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'] }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ dict.__base__ }}",
    "{{ url_for.__globals__ }}",
    "{{ get_flashed_messages.__globals__ }}",
    "{{ config }}",
    "{{ __builtins__ }}",
    "{{ __import__('os') }}",
    "{{ open('/etc/passwd') }}",
    "{{ ().__class__.__bases__[0] }}",
    "{{ (1).__class__ }}",
    "{{ 1.5.__class__ }}",
    "{{ true.__class__ }}",
    "{{ none.__class__ }}",
    "{{ missing.__class__ }}",
    "{{ missing.__init__.__globals__ }}",
    "{{ order.__class__ }}",
    "{{ order.__init__.__globals__ }}",
    "{{ order._hidden }}",
    "{{ order.__attrs_attrs__ }}",
    "{{ at.__reduce__() }}",
    "{{ at.strftime('%s' * 10) }}",
    "{{ input.clear() }}",
    "{{ input.update({'id': 1}) }}",
    "{{ input.pop('id') }}",
    "{{ input.tags.append('c') }}",
    "{{ input.__setitem__('id', 1) }}",
    "{{ (input.tags | map('upper')).gi_frame }}",
    "{{ (input.tags | map('upper')).gi_frame.f_globals }}",
    "{% for x in input.tags %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% for x in input.tags %}{{ loop._iterator }}{% endfor %}",
    "{% for x in input.tags recursive %}{{ loop.__call__.__globals__ }}{% endfor %}",
    "{% set x = ''.__class__ %}{{ x.__mro__ }}",
    "{% with a = ''.__class__ %}{{ a.__mro__ }}{% endwith %}",
    "{{ ''.encode('utf-16').decode.__self__ }}",
    "{{ input.get.__self__ }}",
    "{{ debug() }}",
    "{{ 'x' * 100000000 }}",
    "{{ [0] * 100000000 }}",
    "{{ 100000000 * 'x' }}",
    "{{ 9 ** 99999999 }}",
    "{{ range(100000000) }}",
    "{{ '%0999999999d' | format(1) }}",
    "{{ '%*d' | format(999999999, 1) }}",
    "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
    "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
    "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "{{ 'x' | center(999999999) }}",
    "{{ 'x' | indent(999999999) }}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_no_template_reaches_python_or_takes_all_memory(template: str) -> None:
    before = repr(NAMES)
    for text in (template, f"text {template}"):
        with pytest.raises(TemplateFailed):
            renderable(text, "t").render(NAMES)
    assert repr(NAMES) == before
