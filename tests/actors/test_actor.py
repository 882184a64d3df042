from typing import Any

import pytest

from keyrun.actors import Actor, ActorSystem


def test_an_actor_without_receive_cannot_be_made() -> None:
    class Silent(Actor[int, None]):
        pass

    with pytest.raises(TypeError, match="receive"):
        Silent()  # type: ignore[abstract]


@pytest.mark.parametrize("name", ["receive", "on_start", "on_restart", "on_stop", "on_passivate"])
def test_a_method_that_is_not_async_is_refused_when_the_class_is_made(name: str) -> None:
    with pytest.raises(TypeError, match=f"Wrong.{name} must be an async function"):
        type("Wrong", (Actor,), {name: lambda self, *args: None})


def test_an_actor_with_slots_has_no_instance_dictionary() -> None:
    class Small(Actor[int, None]):
        __slots__ = ("n",)

        async def receive(self, message: int) -> None: ...

    assert not hasattr(Small(), "__dict__")


async def test_an_actor_that_is_falsy_is_an_actor_all_the_same() -> None:
    class Inbox(Actor[int, list[int]]):
        def __init__(self, key: str) -> None:
            self.seen: list[int] = []

        def __len__(self) -> int:
            return 0

        async def receive(self, message: int) -> list[int]:
            self.seen.append(message)
            return self.seen

    async with ActorSystem(Inbox) as system:
        await system.tell("a", 1)
        assert await system.ask("a", 2) == [1, 2]


async def test_by_default_a_restart_starts_and_a_passivation_stops() -> None:
    calls: list[str] = []

    class Defaults(Actor[Any, None]):
        async def receive(self, message: Any) -> None: ...

        async def on_start(self) -> None:
            calls.append("start")

        async def on_stop(self) -> None:
            calls.append("stop")

    await Defaults().on_restart(RuntimeError())
    await Defaults().on_passivate()
    assert calls == ["start", "stop"]
