"""Whatever is in a file, it is a flow or it is refused: nothing else is ever raised."""

import json
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keyrun.flows import InvalidFlow, parse
from keyrun.flows.document import DOCUMENT, EDGE, LIMITS
from keyrun.flows.kinds import KINDS
from tests.faults.soaking import SOAK

WORDS = sorted(
    {*DOCUMENT.fields, *LIMITS.fields, *EDGE.fields, *KINDS, "kind"}
    | {name for word, kind in KINDS.items() for name in kind.record(word).fields}
)
TEXTS = st.sampled_from(
    [
        *WORDS,
        "",
        "a",
        "b",
        "{{ input }}",
        "{{ input.",
        "{% if %}",
        "output > 1",
        "output >",
        "none",
        "true",
        "def main(d): return 1",
        "def main(",
        "\ud83d\ude00",
        "'quoted' name",
        "x/y#z()",
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
    | st.text(max_size=8)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=12,
)


@st.composite
def nodes(draw: st.DrawFn, depth: int = 0) -> Any:
    name = draw(st.sampled_from(sorted(KINDS)))
    fields: dict[str, Any] = {"kind": name}
    for field in draw(st.sets(st.sampled_from(sorted(KINDS[name].record(name).fields)))):
        fields[field] = draw(VALUES)
    if KINDS[name].body and depth < 2 and draw(st.booleans()):
        fields["body"] = draw(bodies(depth + 1))
    return fields


@st.composite
def bodies(draw: st.DrawFn, depth: int = 0) -> Any:
    names = st.sampled_from(["a", "b", "c", "a.begin"])
    edge = st.fixed_dictionaries(
        {"from": names | VALUES, "to": names | VALUES},
        optional={name: VALUES for name in sorted(EDGE.fields) if name not in ("from", "to")},
    )
    return {
        "nodes": draw(st.dictionaries(names, nodes(depth) | VALUES, max_size=4) | VALUES),
        "edges": draw(st.lists(edge | VALUES, max_size=5) | VALUES),
    }


@st.composite
def documents(draw: st.DrawFn) -> Any:
    document: dict[str, Any] = {"name": draw(TEXTS), **draw(bodies())}
    for field in draw(st.sets(st.sampled_from(sorted(DOCUMENT.fields)), max_size=4)):
        document.setdefault(field, draw(VALUES))
    return document


async def function(given: Any) -> None: ...


patiently = settings(max_examples=5000 if SOAK else 150)


@patiently
@given(documents() | VALUES)
def test_a_document_is_a_flow_or_is_refused_with_lines(document: Any) -> None:
    text = json.dumps(document)
    refused: InvalidFlow | None = None
    try:
        parse(text, json=True, functions={"a": function, "b": function}).validate()
    except InvalidFlow as error:
        refused = error
    assert refused is None or all(each.message for each in refused.problems)


@patiently
@given(st.text() | st.text(alphabet="{}[]:,&*!|>-?#'\"%@ \n\tab01."))
def test_a_text_is_a_flow_or_is_refused(text: str) -> None:
    for json_ in (False, True):
        with suppress(InvalidFlow):
            parse(text, json=json_)
