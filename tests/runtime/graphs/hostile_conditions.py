"""Conditions that try to end or to stall the process, or to take its memory.

`python -m tests.runtime.graphs.hostile_conditions` validates a graph with each of them, and
evaluates it, in a thread with a small stack. It prints one line of JSON for each.
"""

import json
import resource
import sys
import threading
from collections.abc import Iterator
from random import Random
from time import process_time
from typing import Any

from keyrun import Graph, NodeInput
from keyrun.errors import ConditionError, InvalidGraph
from keyrun.runtime.graphs.condition import Condition

STACK = 512 * 1024
"""Bytes of stack, as threads have where there are many of them."""
RANDOM = 1500
"""Random conditions."""

_ATOMS = ["output", "input", "outputs", "error", "1", "'a'", "x", "true", "null", "[]", "{}"]
_PIECES = [
    *_ATOMS,
    *("output.a", "input.l", "input.t", "1u", "1.5", "b'a'", "r'\\d'", "-9223372036854775808"),
    *("99999999999999999999", "1e999", "0x", "'", '"', "'''", '"""', "\\", "`", "//", "\n"),
    *("(", ")", "[", "]", "{", "}", ".", ",", "?", ":", "+", "-", "*", "/", "%", "!", "&&", "||"),
    *("==", "!=", "<", ">=", " in ", "has(", "size(", "string(", "int(", "duration('1s')"),
    *(".all(x,", ".exists(x,", ".map(x,", ".filter(x,", ".matches(", ".contains(", "type("),
    *("\x00", "\ud800", "\U0001f6d2", "é", "\u202e", "\ufeff", "$", "@", "#", ";", "="),
]


def known() -> dict[str, Any]:
    """Return the data of the conditions, in the order of the names."""
    return {
        "output": {"a": 1, "l": list(range(3000)), "t": "z" * 300_000},
        "input": {
            "l": list(range(30_000)),
            "words": [f"w{at}" for at in range(20_000)],
            "t": "z" * 1_000_000,
            "p": "(a|b)" * 200_000,
            "deep": {"a": list(range(20_000))},
        },
        "outputs": {},
        "error": None,
    }


def shaped() -> Iterator[str]:
    """Yield conditions of every shape, as deep and as long as they may be, and longer."""
    for count in (10, 50, 90, 99, 100, 150, 199, 250, 330, 490, 600):
        yield "output" + ".a" * count + " == 1"
        yield "output" + "['a']" * count + " == 1"
        yield "output" + "[0]" * count + " == 1"
        yield "output" + ".a()" * count + " == 1"
        yield "(" * count + "true" + ")" * count
        yield "[" * count + "]" * count + " == []"
        yield "{1:" * count + "1" + "}" * count + " == {}"
        yield "!" * count + "true"
        yield "-" * count + "1 == 1"
        yield "true" + " && true" * count
        yield "false" + " || true" * count
        yield "1" + "+1" * count + " > 0"
        yield "true?" * count + "true" + ":false" * count
        yield "has(" * count + "output.a" + ")" * count
        yield "size(" * count + "output.t" + ")" * count + " > 0"
        yield "output.l" + ".map(x, x)" * count + " == []"
        yield "".join(f"[1].all(v{at}, " for at in range(count)) + "true" + ")" * count
        yield "'" + "a" * count + "' == '" + "\\u0041" * count + "'"
        yield "'" + "\\" * count + "' == ''"
        yield "1" * count + " == 1"
        yield "1." + "1" * count + " == 1.0"
        yield "\x00" * count
        yield "\ud800" * count
        yield "\U0001f6d2" * count
        yield " " * count + "true"
        yield "\n" * count + "true"
        yield "output.a == 1 " + "// comment " * count


SLOW = [
    'input.t.matches("^(z+)+$")',
    r'input.t.matches("(\\w{50}){20}")',
    "input.t.matches(input.p)",
    r'input.words.all(x, x.matches("(\\pL{10}){10}"))',
    "input.words.all(x, x.matches(input.p))",
    "input.words.all(x, input.t.contains(x))",
    "input.words.exists(x, size(input.t) == 0)",
    "input.words.exists(x, input.t == '')",
    "input.l.exists(x, input.deep.b == 1)",
    "input.l.exists(x, input.l[x] < 0)",
    "input.l.exists(x, (input.t + 'a') == '')",
    "input.l.all(x, input.l.all(y, x <= y || y <= x))",
    "size(input.l.map(x, input.l)) == 0",
    "size(input.l.filter(x, x > 0)) == 0",
    "size(" + "+".join(["input.t"] * 120) + ") == 0",
    "size(" + "+".join(["input.l"] * 120) + ") == 0",
    " && ".join(["size(input.deep.a) > 0"] * 40),
    "input.l.all//\n(error, input.l.all//\n(output, error <= output || output <= error))",
    "input.l. // (\nall(x, input.l. // (\nall(y, x <= y || y <= x))",
    "input.l.all (x, input.l . all (y, x <= y || y <= x))",
    "input.l.all(x, ')' == ')' && input.l.all(y, x <= y || y <= x)) // all",
    r"input.l.all(x, '\\' != ')))' && input.l.all(y, x <= y || y <= x))",
    r"input.l.all(x, r'\' != ')' && input.l.all(y, x <= y || y <= x))",
    "input.l.all(x, '''a')''' != '' && input.l.all(y, x <= y || y <= x))",
    "input.words.all(x, x.matches('([a-z]{50}){20}') || true)",
    "input.words.all(x, x.matches//\n('([a-z]{50}){20}') || true)",
]
LARGE = [
    "size(input.l.map(x, input.t + 'a')) == 0",
    "size(input.l.map(x, input.l + [x])) == 0",
    "size(input.l.map(x, input.l.map(y, [x, y]))) == 0",
    "size(input.l.map(x, {'a': [x], 'b': {'c': [x, x]}})) == 0",
    "size([input.t]" + ".map(x, x + x)" * 60 + "[0]) == 0",
    "size([input.l]" + ".map(x, x + x)" * 60 + "[0]) == 0",
    "size(input.l.map(x, bytes(input.t))) == 0",
    "size(input.l.map(x, string(1e300))) == 0",
]


def odd(seed: int = 7) -> Iterator[str]:
    """Yield random conditions."""
    chosen = Random(seed)
    for _ in range(RANDOM):
        yield "".join(chosen.choice(_PIECES) for _ in range(chosen.randint(1, 40)))


async def nothing(given: NodeInput) -> None:
    """Do nothing."""


def outcome_of(condition: str, values: dict[str, Any]) -> str:
    """Validate a graph with this condition, and evaluate the condition."""
    graph = Graph("g")
    graph.node("a", nothing)
    graph.node("b", nothing)
    graph.edge("a", "b", when=condition)
    try:
        graph.validate()
    except InvalidGraph:
        return "invalid"
    try:
        return str(Condition(condition).holds(*values.values()))
    except ConditionError as error:
        return f"refused: {error}"[:200]


def main() -> None:
    """Evaluate all conditions."""
    values = known()
    for condition in [*shaped(), *SLOW, *LARGE, *odd()]:
        began = process_time()
        try:
            outcome = outcome_of(condition, values)
        except BaseException as error:
            outcome = f"escaped: {type(error).__name__}: {error}"[:200]
        taken = process_time() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        said = {"condition": condition[:100], "seconds": taken, "outcome": outcome, "peak_mb": peak}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    threading.stack_size(STACK)
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    sys.exit(0)
