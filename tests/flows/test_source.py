"""The source of a flow: plain values with their lines, and no way to hurt whoever reads it."""

from pathlib import Path
from typing import Any

import pytest

from keyrun.flows import source
from keyrun.flows.source import Unreadable, read_file, read_json, read_yaml


def test_yaml_gives_plain_values_with_the_line_of_each() -> None:
    read = read_yaml("name: a\nnodes:\n  b:\n    list:\n      - 1\n      - {c: d}\n")
    assert read.value == {"name": "a", "nodes": {"b": {"list": [1, {"c": "d"}]}}}
    assert read.line(("name",)) == 1
    assert read.line(("nodes", "b")) == 3
    assert read.line(("nodes", "b", "list", 1)) == 6
    assert read.line(("nodes", "b", "list", 1, "c", "beyond")) == 6
    assert read.line(("missing",)) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("no", "no"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("'~'", "~"),
        ('"12"', "12"),
        ("12", 12),
        ("-7", -7),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", 17),
        ("1_000", "1_000"),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("2026-01-31", "2026-01-31"),
        ("12:30:00", "12:30:00"),
        ("=", "="),
    ],
)
def test_a_scalar_is_what_yaml_1_2_says(text: str, value: Any) -> None:
    found = read_yaml(f"a: {text}").value["a"]
    assert found == value
    assert type(found) is type(value)


def test_names_are_always_text() -> None:
    assert read_yaml("on: 1\n1: 2\nnull: 3\n").value == {"on": 1, "1": 2, "null": 3}


def test_an_alias_stands_for_what_its_anchor_has() -> None:
    read = read_yaml("a: &x {b: [1]}\nc: *x\n")
    assert read.value == {"a": {"b": [1]}, "c": {"b": [1]}}
    assert read.line(("c", "b", 0)) == 2


def test_json_is_read_with_the_line_of_each_value() -> None:
    read = read_json('{\n\t"a": [1, 2.5,\n\t"x\\u00e9\\ud83d\\ude00\\/\\\\ud83d"],\n"on": true}')
    assert read.value == {"a": [1, 2.5, "xé😀/\\ud83d"], "on": True}
    assert read.line(("a", 2)) == 3
    assert read.line(("on",)) == 4


LAUGHS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (LAUGHS, 5, "more than 100,000 values, including aliases"),
        ("a: &a\n  b: *a", 2, "alias *a inside of the value that it stands for"),
        ("a: 1\nb: *nothing", 2, "no value has the anchor &nothing"),
        ("[" * 100_000, 1, "nested more than 50 levels deep"),
        ("{a: " * 100_000, 1, "nested more than 50 levels deep"),
        ("- " * 100_000, 1, "nested more than 50 levels deep"),
        ("? " * 100_000, 1, "a name that is not text"),
        ("a: 1\n" + "b: " + "x" * source.LARGEST, None, "more than 1,048,576 bytes"),
        ("- 1\n" * 100_001, 100_000, "more than 100,000 values"),
        ("a: 1\nb: [1, 2", 3, "is not YAML"),
        ("a: 1\n\tb: 2", 2, "is not YAML"),
        ("a: 1\nb: c: d", 2, "is not YAML"),
        ("a: \x01", 1, "does not allow: U+0001"),
        ("a: 1\nb: \x00", 2, "does not allow: U+0000"),
        ("", None, "is empty"),
        ("# nothing", None, "is empty"),
        ("a: 1\n---\nb: 2", 2, "a second document"),
        ("a: 1\n[1]: 2", 2, "a name that is not text"),
        ("a: .nan", 1, ".nan, which is not a finite number"),
        ("a: -.inf", 1, "-.inf, which is not a finite number"),
        ("a: 1e999", 1, "a number that is too large"),
        ("a: " + "9" * 5000, 1, "a number with more than 400 digits"),
        ('a: "\\ud800"', 1, "is not YAML"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(
    text: str, line: int | None, message: str
) -> None:
    with pytest.raises(Unreadable) as caught:
        read_yaml(text)
    assert message in str(caught.value)
    assert caught.value.line == line


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system ['touch owned']",
        "a: !!python/object/new:subprocess.Popen [[touch, owned]]",
        "a: !!python/name:os.system",
        "a: !!python/module:os",
        "a: !!timestamp 2026-01-31",
        "a: !custom 1",
        "!!map {a: 1}",
        "!!str a: 1",
    ],
)
def test_tags_make_no_objects_and_are_a_problem(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    read = read_yaml(text)
    assert "a flow has no tags" in read.problems[0][1]
    assert not (tmp_path / "owned").exists()
    assert type(read.value) is dict


def test_names_that_are_there_twice_are_all_told() -> None:
    read = read_yaml("a: 1\nb: {c: 1, c: 2}\na: 2\n")
    assert read.problems == [
        (2, "the name 'c' is used twice, first in line 2"),
        (3, "the name 'a' is used twice, first in line 1"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('{"a": 1\n,}', 2, "is not JSON: Illegal trailing comma"),
        ("{'a': 1}", 1, "is not JSON"),
        ('{"a": NaN}', None, "NaN is not a number"),
        ("[" * 100_000, None, "nested too deep"),
        ('{"a": 1} b', 1, "is not JSON: Extra data"),
        ('{"a": "\\ud800"}', 1, ""),
    ],
)
def test_what_is_not_json_is_refused_with_its_line(
    text: str, line: int | None, message: str
) -> None:
    with pytest.raises(Unreadable) as caught:
        read_json(text)
    assert caught.value.line == line
    assert message.partition("Illegal")[0] in str(caught.value)


def test_a_file_is_read_only_as_far_as_it_may_go(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="more than 1,048,576 bytes"):
        read_file(Path("/dev/zero"))
    with pytest.raises(Unreadable, match="cannot be read: No such file"):
        read_file(tmp_path / "missing")
    with pytest.raises(Unreadable, match="cannot be read: Is a directory"):
        read_file(tmp_path)
    (tmp_path / "latin").write_bytes(b"a: 1\nb: \xe9\n")
    with pytest.raises(Unreadable, match="is not UTF-8; save") as caught:
        read_file(tmp_path / "latin")
    assert caught.value.line == 2
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfa: 1")
    assert read_file(tmp_path / "marked") == "a: 1"
