"""Whatever is given to a runtime: it is taken as it is, or refused with a clear error.

Never a crash, never a hang, and never a store that is damaged by it. What the payload codec makes
of hostile bytes is in `tests/storage/test_hostile_payload.py`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyrun import Context, Runtime, State, open_reader, open_runtime, step, workflow
from keyrun._errors import KeyrunError
from keyrun.storage import LmdbStore, MemoryStore, verify
from keyrun.storage.payload import PayloadError, PayloadTypeError
from keyrun.testing import open_test_runtime
from tests.faults.soaking import amount

MEGABYTE = 1 << 20
REFUSALS = (KeyrunError, ValueError, TypeError, LookupError)


@step
async def give_back(value: Any) -> Any:
    return value


@workflow
async def echo(ctx: Context, value: Any) -> Any:
    return await ctx.step(give_back, value)


def nested(depth: int, *, mapping: bool = False) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if mapping else [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


class Liar(str):
    """A string that is not what it says."""

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        return b"\xff" * 1000


TEXTS = {
    "NUL": "a\0b",
    "newline": "a\nb\r\n",
    "escape": "\x1b[2J\x07",
    "surrogate": "a\ud800b",
    "right to left": "\u202egnp.exe",
    "not a character": "\uffff\U0010ffff",
    "combining": "e\u0301" * 60,
    "255 bytes": "x" * 255,
    "256 bytes": "x" * 256,
    "255 letters, 510 bytes": "é" * 255,
    "10 MB": "x" * (10 * MEGABYTE),
    "empty": "",
    "blank": " ",
    "path": "../../etc/passwd",
    "template": "{{ 7 * 7 }}${HOME}%s{0}",
    "liar": Liar("x"),
}
OTHERS: dict[str, Any] = {
    "None": None,
    "bytes": b"key",
    "int": 7,
    "list": ["key"],
    "float": float("nan"),
    "type": str,
}


def is_clear(error: Exception, most: int = 2000) -> None:
    """An error says something, and does not repeat ten megabytes."""
    assert str(error).strip(), f"{type(error).__name__} says nothing"
    assert len(str(error)) < most


async def goes_through(runtime: Runtime, **given: Any) -> bool:
    """Whether it was taken. If so it ends, and is shown everywhere as it was given."""
    try:
        run = await runtime.submit(echo, 1, **given)
    except REFUSALS as refused:
        is_clear(refused)
        return False
    assert await run.result() == 1
    status = await runtime.status(run.run_id)
    assert status is not None
    assert status.state is State.SUCCEEDED
    assert status.key == given["key"]
    assert await runtime.history(run.run_id)
    listed = await runtime.runs(key=given["key"], limit=1000)
    assert run.run_id in {each.run_id for each in listed}
    return True


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[Path]:
    """A store that must be whole after the test, and go on."""
    yield tmp_path / "store"

    async def goes_on() -> None:
        async with open_runtime(tmp_path / "store", workflows=[echo]) as runtime:
            assert await (await runtime.submit(echo, "x", key="k")).result() == "x"
        async with open_reader(tmp_path / "store") as reader:
            assert not reader.unreadable

    trio.run(goes_on)
    assert verify(tmp_path / "store").ok


@pytest.mark.parametrize("value", [*TEXTS.values(), *OTHERS.values()], ids=[*TEXTS, *OTHERS])
def test_keys_ids_headers_and_tags_are_taken_as_they_are_or_refused(
    alive: Path, value: Any
) -> None:
    async def main() -> None:
        async with open_runtime(alive, workflows=[echo]) as runtime:
            await goes_through(runtime, key=value)
            await goes_through(runtime, key="k", run_id=value)
            await goes_through(runtime, key="k", headers={"name": value})
            await goes_through(runtime, key="k", headers={value: "x"} if _hashable(value) else 1)
            await goes_through(runtime, key="k", tags=[value])
            await goes_through(runtime, key="k", delay=-value if value == 7 else value)
            await goes_through(runtime, key="k", priority=value)
            await goes_through(runtime, key="k", limits=value)
            for call in (runtime.status, runtime.history, runtime.cancel, runtime.pause):
                await refuses_or_answers(call, value)
            for other in (runtime.redrive, runtime.forget, runtime.release_key, runtime.pause_key):
                await refuses_or_answers(other, value)
            await refuses_or_answers(runtime.resume_key, value)
            for name in ("key", "after"):
                await refuses_or_answers(
                    lambda given, name=name: runtime.keys(**{name: given}), value
                )
                await refuses_or_answers(
                    lambda given, name=name: runtime.runs(**{name: given}), value
                )

    trio.run(main)


def _hashable(value: Any) -> bool:
    return not isinstance(value, list)


async def refuses_or_answers(call: Any, value: Any) -> None:
    try:
        await call(value)
    except REFUSALS as refused:
        is_clear(refused)


INPUTS: dict[str, Any] = {
    "10 MB of text": "x" * (10 * MEGABYTE),
    "10 MB of bytes": bytes(10 * MEGABYTE),
    "a long list": list(range(100_000)),
    "64 deep": nested(60),
    "100,000 deep": nested(100_000),
    "maps 100,000 deep": nested(100_000, mapping=True),
    "endless": endless(),
    "2,000,000 items": [0] * 2_000_000,
    "a huge number": 10**5000,
    "surrogate": "a\ud800b",
    "surrogate as a name": {"\ud800": 1},
    "NUL": "a\0b",
    "not a number": float("inf"),
    "an object": object(),
    "a function": nested,
    "a generator": iter(()),
    "a set": {1, 2},
    "numbers as names": {1: 2},
}


@pytest.mark.parametrize("value", INPUTS.values(), ids=INPUTS.keys())
def test_inputs_come_back_as_they_were_or_are_refused(alive: Path, value: Any) -> None:
    async def main() -> None:
        async with open_runtime(alive, workflows=[echo]) as runtime:
            try:
                run = await runtime.submit(echo, value, key="k")
            except (PayloadError, PayloadTypeError) as refused:
                is_clear(refused)
                return
            with trio.fail_after(60):
                assert await run.result() == value

    trio.run(main)


@pytest.mark.parametrize("value", INPUTS.values(), ids=INPUTS.keys())
def test_what_steps_return_and_keep_comes_back_or_fails_the_run(alive: Path, value: Any) -> None:
    @step
    async def hostile() -> Any:
        return value

    @workflow
    async def asks(ctx: Context) -> None:
        await ctx.step(hostile)

    @workflow
    async def answers(ctx: Context) -> Any:
        return value

    async def main() -> None:
        async with open_runtime(alive, workflows=[asks, answers, echo]) as runtime:
            for each in (asks, answers):
                run = await runtime.submit(each, key="k")
                with trio.fail_after(60):
                    status = await run.status()
                    while status is None or not status.state.terminal:
                        await trio.sleep(0.01)
                        status = await run.status()
                assert status.state is State.SUCCEEDED or (status.reason and status.failure)
                assert len(status.reason or "") < 5000

    trio.run(main)


anything = st.text(st.characters(), max_size=300)


@settings(
    max_examples=amount(60, 3000),
    suppress_health_check=[HealthCheck.differing_executors],
)
@given(key=anything, run_id=anything, header=anything, tag=anything)
def test_random_texts_are_taken_as_they_are_or_refused(
    key: str, run_id: str, header: str, tag: str
) -> None:
    async def main() -> None:
        store = MemoryStore()
        async with open_test_runtime(store, workflows=[echo]) as runtime:
            taken = await goes_through(runtime, key=key)
            await goes_through(runtime, key="k", run_id=run_id)
            await goes_through(runtime, key="k", headers={header: tag}, tags=[tag])
        async with open_test_runtime(store, workflows=[echo]) as runtime:
            if taken:
                assert await runtime.runs(key=key)

    trio.run(main)


@pytest.mark.parametrize("value", TEXTS.values(), ids=TEXTS.keys())
def test_paths_and_namespaces_are_taken_as_they_are_or_refused(
    tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        for options in ({"path": value}, {"namespace": value}):
            path = options.get("path", "store")
            try:
                async with open_runtime(
                    LmdbStore(path), namespace=options.get("namespace", "default")
                ):
                    pass
            except (*REFUSALS, OSError) as refused:
                is_clear(refused, most=2000 + 2 * len(value))

    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    if value and not value.startswith("."):
        trio.run(main)
