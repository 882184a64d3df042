"""Templates that try to stall the process or to take its memory.

`python -m tests.flows.hostile_templates` fills in each of them in a process with little memory,
and prints one line of JSON for each: the template, its seconds of CPU time, and the outcome.
"""

import json
import resource
from decimal import Decimal
from pathlib import Path
from time import process_time
from typing import Any

import attrs

MEMORY = 1_500_000_000
"""Bytes of address space that the process may have."""
BIG, HUGE = 10**8, 10**12


@attrs.frozen
class Entry:
    """An input of a type with fields."""

    lines: list[int]


def names() -> dict[str, Any]:
    """What the templates are about: 100,000 items, and texts of a million letters."""
    return {
        "input": {
            "one": [1],
            "many": list(range(100_000)),
            "words": [f"word {at}" for at in range(20_000)],
            "rows": [{"a": {"b": at % 7}, "n": str(at)} for at in range(20_000)],
            "text": "z" * 1_000_000,
            "same": "z" * 999_999 + "y",
            "format": "%(a)s" * 100_000,
            "wide": "%(a)999999999d",
            "dots": "a." * 300_000 + "a",
            "digits": "9" * 900_000,
            "hex": "f" * 900_000,
            "blob": b"x" * 100_000,
            "ten": Decimal("1E+999999999"),
            "deep": _deep(300),
            "n": BIG,
            "entry": Entry(list(range(99_999))),
            "other": Entry([*range(99_998), 0]),
            "map": {str(at): at for at in range(100_000)},
            "like": {str(at): at for at in range(100_000)},
        }
    }


def _deep(depth: int) -> Any:
    value: Any = [0] * 20_000
    for _ in range(depth):
        value = [value]
    return value


_NEST = "{% set a = ['x'] %}" + "{% set a = [a, a] %}" * 40
_OTHER = _NEST.replace(" a ", " b ").replace("[a, a]", "[b, b]")
_TUPLES = "{% set a = ('x',) %}" + "{% set a = (a, a) %}" * 40
_MAPS = "{% set a = {'x': 1} %}" + "{% set a = {'x': a, 'y': a} %}" * 40
_CHAIN = "0 < (" * 40 + "1" + ") < 9" * 40
_PATH = ".".join("0" * 100)
_PATHS = _PATH.replace(".", ",")
_LONG = "[" + ",".join(["1"] * 4000) + "]"

FILTERS: dict[str, list[str]] = {
    "abs": ["input.ten | abs | int", "input.digits | abs"],
    "batch": [
        f"input.one | batch({BIG}, 'x') | list | length",
        f"input.one | batch({HUGE}, 'x') | list | length",
        "input.many | batch(1) | list | length",
        "input.many | batch(-1, 'x') | list | length",
    ],
    "capitalize": ["input.text | capitalize | length"],
    "count": ["input.many | count"],
    "d": ["missing | d(input.text) | length"],
    "default": ["missing | default(input.many) | length"],
    "dictsort": ["input | dictsort | length", "input | dictsort(by='value') | length"],
    "first": ["input.many | first", "input.text | first"],
    "float": ["input.digits | float", "input.ten | float", "input.hex | float"],
    "format": [
        "input.format | format(a=input.text) | length",
        "input.wide | format(a=1) | length",
        "'%(a)0999999999d' | format(a=1) | length",
        "'%.999999999f' | format(1.5) | length",
        "'%*d' | format(999999999, 1)",
        "'%d' | format(input.ten)",
        "'%s%s%s' | format(*input.many)",
        "'%r' | format(input.deep) | length",
        "('%999d' * 100000) | format(*input.many) | length",
        "'%x' | format('f' | int(0, 16))",
    ],
    "groupby": [
        "input.rows | groupby('a.b') | length",
        "input.rows | groupby(input.dots) | length",
        "[input.text, input.same] | groupby(0) | length",
        f"(['z'] * 400000) | groupby('{_PATH}') | length",
    ],
    "int": [
        "input.digits | int",
        "input.hex | int(0, 16)",
        "input.ten | int",
        "(input.hex | int(0, 16)) * (input.hex | int(0, 16))",
    ],
    "items": ["input | items | list | length"],
    "join": [
        "input.many | join(input.text) | length",
        "input.words | join(input.deep) | length",
        "input.rows | map(attribute='n') | join(', ') | length",
        "input.rows | join(attribute=input.dots) | length",
        f"(['z'] * 400000) | join(attribute='{_PATH}') | length",
        "([input.text] * 100000) | join | length",
    ],
    "last": ["input.many | last"],
    "length": ["input.many | length"],
    "list": ["input.text | list | length", "input.many | list | length"],
    "lower": ["input.text | lower | length", "input.deep | lower | length"],
    "map": [
        "input.many | map('string') | list | length",
        "input.many | map('join', input.text) | list",
        "input.rows | map(attribute=input.dots) | list",
        "input.many | map('batch', 100000000, 'x') | list",
        "input.words | map('replace', 'w', input.text) | list",
        "input.many | map('turns()', 0) | list",
        "input.many | map('default', input.many) | list | length",
        f"(['z'] * 400000) | map(attribute='{_PATH}') | list | length",
    ],
    "max": ["([input.text, input.same] * 50000) | max | length"],
    "min": ["([input.text, input.same] * 50000) | min | length"],
    "reject": ["input.many | reject('in', input.many) | list"],
    "rejectattr": ["input.rows | rejectattr('n', 'in', input.words) | list | length"],
    "replace": [
        "input.text | replace('z', input.text) | length",
        "input.text | replace('', input.text) | length",
        "input.text | replace(input.same, input.text) | length",
    ],
    "reverse": ["input.many | reverse | list | length", "input.text | reverse | length"],
    "round": [
        "1 | round(1000000000, 'ceil')",
        "1 | round(-1000000000)",
        "1.5 | round(1000000000, 'floor')",
        "input.ten | round(0, 'ceil')",
    ],
    "select": [
        "input.many | select('in', input.many) | list | length",
        "input.many | select('eq', input.many) | list",
        "input.words | select('in', input.text) | list",
        "input.words | select('in', range(99999)) | list",
        "([input.entry] * 99999) | select('eq', input.other) | list",
    ],
    "selectattr": [
        "input.rows | selectattr('n', 'in', input.words) | list",
        "input.rows | selectattr(input.dots, 'none') | list",
        f"(['z'] * 400000) | selectattr('{_PATH}', 'none') | list",
    ],
    "slice": [
        f"input.one | slice({BIG}) | list | length",
        "input.one | slice(30000000) | list | length",
        "input.one | slice(1000000) | list | length",
        f"input.one | slice({HUGE}, 'x') | list | length",
        "input.one | slice(0) | list",
        "input.one | slice(1.5) | list",
    ],
    "sort": [
        "input.many | sort | length",
        "([input.text, input.same] * 50000) | sort | length",
        "input.rows | sort(attribute=input.dots) | length",
        "input.rows | sort(attribute='a.b,n') | length",
        f"(['z'] * 400000) | sort(attribute='{_PATHS}') | length",
    ],
    "string": ["input.many | string | length", "input.ten | string", "input.deep | string"],
    "sum": [
        "input.many | map('list') | sum(start=[])",
        "([[1] * 1000] * 10000) | sum(start=[]) | length",
        "input.rows | sum(attribute=input.dots)",
        "input.many | sum",
    ],
    "title": ["input.text | title | length"],
    "tojson": [
        "input.one | tojson(indent=50000000) | length",
        "input.deep | tojson(indent=16) | length",
        "input.one | tojson(indent=input.text) | length",
        "input | tojson | length",
        "input.many | tojson | length",
    ],
    "trim": ["input.text | trim(('y' * 900000) ~ 'z') | length", "input.text | trim | length"],
    "truncate": [
        "input.text | truncate(1000000000) | length",
        "input.text | truncate(900000, true, input.text) | length",
        "input.text | truncate(-1) | length",
    ],
    "unique": [
        "input.many | unique | list | length",
        "([input.text, input.same] * 50000) | unique | list | length",
        "input.rows | unique(attribute=input.dots) | list",
        f"(['z'] * 400000) | unique(attribute='{_PATH}') | list",
    ],
    "upper": ["input.text | upper | length"],
    "urlencode": [
        "input.text | urlencode | length",
        "input | urlencode | length",
        "[('a', input.text)] * 100000 | urlencode | length",
    ],
    "wordcount": ["input.text | wordcount"],
}

TESTS: dict[str, list[str]] = {
    "boolean": ["input.text is boolean"],
    "defined": ["input.many is defined"],
    "divisibleby": ["'%0999999999d' is divisibleby(2)", "input.ten is divisibleby(3)"],
    "eq": ["input.many is eq(input.many)", "input.many is equalto(input.many)"],
    "even": ["'%0999999999d' is even", "input.ten is even"],
    "false": ["input.text is false"],
    "float": ["input.text is float"],
    "ge": ["input.many is ge(input.many)"],
    "gt": ["input.many is gt(input.many)", "input.many is greaterthan(input.many)"],
    "in": ["-1 is in(input.many)", "input.same is in([input.text] * 1000)"],
    "integer": ["input.n is integer"],
    "iterable": ["input.many is iterable"],
    "le": ["input.many is le(input.many)"],
    "lower": ["input.text is lower", "input.deep is lower"],
    "lt": ["input.many is lt(input.many)", "input.many is lessthan(input.many)"],
    "mapping": ["input is mapping"],
    "ne": ["input.many is ne(input.many)"],
    "none": ["input.many is none"],
    "number": ["input.ten is number"],
    "odd": ["'%0999999999d' is odd"],
    "sequence": ["input.many is sequence"],
    "string": ["input.text is string"],
    "true": ["input.text is true"],
    "undefined": ["missing is undefined"],
    "upper": ["input.text is upper"],
}

METHODS: dict[str, list[str]] = {
    "capitalize": ["input.text.capitalize() | length"],
    "count": ["input.text.count(input.same)", "input.many.count(input.many)"],
    "endswith": ["input.text.endswith((input.text,) * 100000)"],
    "find": ["input.text.find(input.same)"],
    "get": ["input.get((input.one, input.one))", "input.get('many') | length"],
    "index": ["input.many.index(-1)", "input.words.index(input.text)"],
    "isoformat": ["input.n.isoformat()"],
    "items": ["input.items() | list | length"],
    "join": ["input.text.join(input.words) | length", "','.join(input.words) | length"],
    "keys": ["input.keys() ~ '' | length"],
    "lower": ["input.text.lower() | length"],
    "lstrip": ["input.text.lstrip('y' * 900000 ~ 'z') | length"],
    "removeprefix": ["input.text.removeprefix(input.text)"],
    "removesuffix": ["input.text.removesuffix(input.text)"],
    "replace": ["input.text.replace('z', input.text) | length"],
    "rsplit": [
        "input.text.rsplit('z') | length",
        "input.text.rsplit('zy' ~ input.text[:400000]) | length",
        "input.text.rsplit(sep='zy' ~ input.text[:400000]) | length",
    ],
    "rstrip": ["input.text.rstrip(('y' * 900000) ~ 'z') | length"],
    "split": ["input.text.split('z') | length", "input.text.split(input.same) | length"],
    "splitlines": ["input.text.splitlines() | length"],
    "startswith": ["input.text.startswith(('y',) * 1000000)"],
    "strip": ["input.text.strip(('y' * 900000) ~ 'z') | length"],
    "title": ["input.text.title() | length"],
    "upper": ["input.text.upper() | length"],
    "values": ["input.values() | list | length"],
}

OPERATORS = [
    "'x' * 100000000",
    "input.blob * 100000000",
    "input.blob + input.blob * 10",
    "(1, 2) * 100000000",
    "input.many * 100000",
    "100000000 * input.one",
    "input.n * input.one",
    "9 ** 99999999",
    "9 ** -99999999",
    "2.5 ** 99999",
    "input.ten ** 2",
    "input.ten * input.ten",
    "input.ten // 3",
    "input.ten % 7",
    "input.text % 3",
    "input.blob % 3",
    "input.deep == input.deep",
    "input.many == input.many | list",
    "input.many in [input.many] * 1000",
    "input.same in [input.text] * 1000000",
    "input[input.many]",
    "{input.one: 1}",
    "{(1, (2, 3)): 1}",
    "input.many[::-1] | length",
    "input.text ~ input.text",
    "input.many ~ '' | length",
    "input.deep ~ input.deep | length",
    "1 < 2 < input.n < 10 ** 20",
    _CHAIN,
    "input.entry in input",
    "range(100000000) | list",
    "range(10 ** 30)",
    "range(99999) | list | length",
]

TEMPLATES = [
    _NEST + "{{ a }}",
    _NEST + "{{ a | tojson }}",
    _NEST + "{{ a | string | length }}",
    _NEST + "{{ a ~ '' }}",
    _NEST + "{{ [a, a] | sort }}",
    _NEST + "{{ [a, a] | unique | list }}",
    _NEST + "{{ [a] | join }}",
    _NEST + "{{ a | urlencode }}",
    _NEST + _OTHER + "{{ a == b }}",
    _NEST + _OTHER + "{{ a < b }}",
    _NEST + _OTHER + "{{ a in [b] }}",
    _NEST + _OTHER + "{{ [b] | select('eq', a) | list }}",
    _NEST + _OTHER + "{{ [b].index(a) }}",
    _NEST + "{{ input[a] }}",
    _NEST + "{{ '%s' | format(a) }}",
    _NEST + "{{ a is lower }}",
    _TUPLES + "{{ {a: 1} | length }}",
    _TUPLES + "{{ input[a] }}",
    _TUPLES + "{{ input.get(a) }}",
    _TUPLES + "{{ [a] | unique | list | length }}",
    _TUPLES + "{{ a in input }}",
    _TUPLES + "{{ a in input.keys() }}",
    _MAPS + "{{ a }}",
    _MAPS + "{{ a | tojson(indent=2) }}",
    _MAPS + "{{ a | dictsort(by='value') }}",
    "{% set a = 9 ** 60 %}" + "{% set a = a * a %}" * 40 + "{{ a }}",
    "{% set a = 9 ** 60 %}" + "{% set a = a + a %}" * 2000 + "{{ a }}",
    "{% set a = input.text %}" + "{% set a = a ~ a %}" * 40 + "{{ a | length }}",
    "{% set a = [0] %}" + "{% set a = a + a %}" * 40 + "{{ a | length }}",
    "{% set a = 'x' %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 40 + "{{ a | length }}",
    "{% set a = input.words %}" + "{% set a = a | map('upper') %}" * 500 + "{{ a | length }}",
    "{% for a in range(99999) %}{% set b = input.many[:] %}{% endfor %}",
    "{% for a in range(99999) %}{% set b = input.text[1:] %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% set b = " + _LONG + " %}{% endfor %}",
    "{% for a in range(99999) %}{{ input.map.keys() == input.like.keys() }}{% endfor %}",
    "{% for a in range(99999) %}{{ input.map.items() <= input.like.items() }}{% endfor %}",
    "{% for a in range(99999) %}" + "{% set b = input.entry.lines %}" * 60 + "{% endfor %}",
    "{% for a in range(99999) %}" + "{% set b = 'a'.upper() %}" * 60 + "{% endfor %}",
    "{% for a in range(99999) %}{{ 'x'.join(input.words) | length }}{% endfor %}",
    "{% for a in range(99999) %}{{ 'x'.startswith(*[input.many]) }}{% endfor %}",
    "{% for a in range(99999) if input.text in input.same %}{% endfor %}",
    "{% for a in input.text %}{% for b in input.text %}{% endfor %}{% endfor %}",
    "{% for a in input.rows recursive %}{{ loop(input.rows) }}{% endfor %}",
    "{% for a in input.many %}{{ loop.cycle(1, 2) }}{% endfor %}",
    "{% filter replace('z', input.text) %}{{ input.text }}{% endfilter %}",
    "{% filter tojson(indent=99999999) %}{{ input.text }}{% endfilter %}",
    "{% autoescape true %}{{ input.text }}{% endautoescape %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% call(x) y() %}{% endcall %}",
    "{% include input.text %}",
    "{% import 'x' as y %}",
    "{% extends 'x' %}",
    "{% block b %}{{ self.b() }}{% endblock %}",
    "{% for a in b %}" * 50 + "{% endfor %}" * 50,
    "{% if a %}" * 500 + "{% endif %}" * 500,
    "{{ " + "9" * 5000 + " }}",
    "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "{{ " + "-" * 3000 + "1 }}",
    "{{ " + "not " * 3000 + "1 }}",
    "{{ input" + ".a" * 4000 + " }}",
    "{{ 1" + " + 1" * 4000 + " }}",
    "{{ 1" + " ~ 1" * 4000 + " }}",
    "{{ 1" + " < 1" * 4000 + " }}",
    "{{ input.one" + " | list" * 2000 + " }}",
    "{{ 1 }}" * 200_000,
    "{% set a = 1 %}" * 50_000,
    "{{ [" + "1," * 100_000 + "] }}",
    "\ud800{{ '\ud800' }}",
    "{{ '\\ud800' | tojson }}",
    "{{ '\\x00' }}{{ '\x00' }}",
    "{{ 1 if }}",
    "{{ '%' }}{{ '%(' | format }}",
]


def every() -> list[str]:
    """All of them."""
    expressions = [
        each for table in (FILTERS, TESTS, METHODS) for listed in table.values() for each in listed
    ]
    return [f"{{{{ {each} }}}}" for each in [*expressions, *OPERATORS]] + TEMPLATES


def peak_memory() -> int:
    """Return the most bytes that this process had resident at once.

    `ru_maxrss` does not give it: it begins with the peak of the process that started this one.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def main() -> None:
    """Fill in each of them."""
    from keyrun.flows.errors import TemplateFailed
    from keyrun.flows.templates import renderable

    known = names()
    for template in every():
        began = process_time()
        try:
            renderable(template, "t").render(known)
            outcome = "filled"
        except TemplateFailed as error:
            outcome = f"refused: {error}"
        taken = process_time() - began
        peak = peak_memory() // 2**20
        said = {"template": template[:200], "seconds": taken, "outcome": outcome, "peak_mb": peak}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (300, 300))
    main()
