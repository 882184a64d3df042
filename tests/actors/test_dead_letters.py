import pytest

from keyrun.actors import ActorSystem, DeadLetter
from tests.actors.scripted import GIVE_UP, Boom, World, boom, fatal


async def test_a_callback_that_fails_is_logged_and_disturbs_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:

    def callback(letter: DeadLetter[str, object]) -> None:
        raise RuntimeError("the callback itself")

    async with ActorSystem(world.factory, supervision=GIVE_UP, on_dead_letter=callback) as system:
        system.tell_nowait("a", boom)
        system.tell_nowait("a", "next")
    assert world.log == ["next"]
    assert "on_dead_letter failed for a message of key 'a'" in caplog.text
    assert "the callback itself" in caplog.text
    assert system.statistics().dead_letters == 1


async def test_a_callback_may_send_the_message_again(world: World) -> None:

    def again(letter: DeadLetter[str, object]) -> None:
        system.tell_nowait(letter.key, "again")

    async with ActorSystem(world.factory, supervision=GIVE_UP, on_dead_letter=again) as system:
        system.tell_nowait("a", fatal)
        system.tell_nowait("a", "rest")
    assert world.log == ["again", "again"]


async def test_without_a_callback_dead_letters_are_logged_once_per_mailbox(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with ActorSystem(world.factory, supervision=GIVE_UP) as system:
        for message in (fatal, 1, 2):
            system.tell_nowait("a", message)
    assert [record.getMessage() for record in caplog.records] == [
        "3 message(s) of key 'a' given up: the actor of key 'a' was stopped after Fatal(): "
        "the message was not handled"
    ]


def test_a_dead_letter_is_a_value() -> None:
    error = Boom()
    assert DeadLetter(key="a", message=1, error=error) == DeadLetter(
        key="a", message=1, error=error
    )
