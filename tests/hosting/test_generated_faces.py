"""The asyncio and the sync face are up to date, and have the signatures of the Trio runtime."""

import inspect
from typing import Any

import pytest

import keyrun
import keyrun.asyncio
import keyrun.groups
import keyrun.sync
from keyrun.hosting import generate
from keyrun.runtime.inspect.reader import Reader


@pytest.mark.parametrize("face", generate.FACES, ids=lambda face: face.name)
def test_the_written_files_are_up_to_date(face: generate.Face) -> None:
    hint = "run: python -m keyrun.hosting.generate"
    assert generate.formatted(generate.write(face)) == face.path.read_text(), hint
    assert generate.formatted(generate.write_open(face)) == face.open_path.read_text(), hint


def test_the_list_of_commands_is_up_to_date() -> None:
    hint = "run: python -m keyrun.hosting.generate"
    assert generate.formatted(generate.write_commands()) == generate.COMMANDS.read_text(), hint


def public(cls: type) -> dict[str, Any]:
    found = {}
    for name in dir(cls):
        if not name.startswith("_") and name not in generate.INTERNAL:
            found[name] = inspect.getattr_static(cls, name)
    return found


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [
        (each.name, each.kind, each.default)
        for each in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize("module", [keyrun.asyncio, keyrun.sync], ids=["asyncio", "sync"])
@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("Runtime", keyrun.Runtime),
        ("RunHandle", keyrun.RunHandle),
        ("GroupHandle", keyrun.groups.GroupHandle),
    ],
)
def test_a_face_has_every_public_method_with_the_same_parameters(
    module: Any, name: str, source: type
) -> None:
    face = public(getattr(module, name))
    for method, function in public(source).items():
        assert method in face, f"{name}.{method} is missing"
        if inspect.isfunction(function):
            assert parameters(face[method]) == parameters(function), f"{name}.{method}"
            is_async = inspect.iscoroutinefunction(function)
            expected = is_async and module is keyrun.asyncio
            assert inspect.iscoroutinefunction(face[method]) == expected, f"{name}.{method}"
    assert issubclass(keyrun.Runtime, Reader)


@pytest.mark.parametrize("module", [keyrun.asyncio, keyrun.sync], ids=["asyncio", "sync"])
def test_open_runtime_takes_the_same_arguments(module: Any) -> None:
    own = {name for name, _, _ in parameters(module.open_runtime)} - {"thread"}
    trio = {name for name, _, _ in parameters(keyrun.open_runtime)} - {"host_loop"}
    assert own == trio
