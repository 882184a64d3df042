"""Affairs: what goes on in a simulated world beside single runs.

An affair is a class of the table `AFFAIRS`. It is made up at random, goes on in each process from
where it was cut off, and says at the end whether all came out as it must. To have the simulation
cover something more, add one.
"""

from abc import ABC, abstractmethod
from random import Random
from typing import Any, ClassVar

import trio

from keyrun import Context, Entity, Runtime, State, entity, workflow
from keyrun.groups import GroupHandle, Member, MemberOutcome
from keyrun.runtime.schedules.service import firing_id
from keyrun.schedules import Every
from keyrun.testing import EPOCH
from tests.faults.simulated.acting import Act, Fault, act, scene
from tests.faults.simulated.family import NESTS, nested, task_at_random, worth_of
from tests.faults.simulated.world import World


class Affair(ABC):
    """One of them. `number` tells it from the others of its world."""

    name: ClassVar[str]

    @abstractmethod
    def __init__(self, random: Random, number: int, span: float) -> None:
        """Make it up."""

    @abstractmethod
    async def play(self, runtime: Runtime) -> None:
        """Go on with it, in one process."""

    @abstractmethod
    def audit(self, world: World) -> None:
        """Look at what came of it, and tell the world what is wrong."""


class GroupAffair(Affair):
    """A group, submitted again in each process, and now and then cancelled."""

    name = "group"

    def __init__(self, random: Random, number: int, span: float) -> None:
        self.group_id = f"group-{number}"
        self.at = random.uniform(0.0, span)
        self.cancel_at = self.at + random.uniform(0.0, 4.0) if random.random() < 0.3 else None
        self.tasks = {
            f"m{place}": task_at_random(random, own=True) for place in range(random.randint(1, 4))
        }
        self.members = [
            Member(nested, task, key=random.choice(NESTS), member_id=member)
            for member, task in self.tasks.items()
        ]
        self.cancelling = False
        self.results: dict[str, MemberOutcome[Any]] | None = None

    async def play(self, runtime: Runtime) -> None:
        """Submit it, unless it was cancelled: the same again would have that run again."""
        await trio.sleep_until(self.at)
        group: GroupHandle[Any] | None = None
        if self.cancelling:
            group = await runtime.group(self.group_id)
        if group is None:
            group = await runtime.submit_group(self.group_id, self.members)
        scene.world.note(f"{self.group_id} is there")
        async with trio.open_nursery() as nursery:
            if self.cancel_at is not None:
                nursery.start_soon(self._cancel, group, self.cancel_at)
            await group.results()
        self.results = await group.results()
        status = await group.status()
        ended = sum(count for state, count in status.counts.items() if state.terminal)
        if status.percent != 100.0 or ended != len(self.members):
            scene.world.breach(f"all of {self.group_id} have ended, and its status is {status}")

    async def _cancel(self, group: GroupHandle[Any], at: float) -> None:
        await trio.sleep_until(at)
        self.cancelling = True
        scene.world.note(f"cancel {self.group_id}")
        await group.cancel()

    def audit(self, world: World) -> None:
        """Each member has ended as it must, and what succeeded ran once."""
        if self.results is None or self.results.keys() != self.tasks.keys():
            world.breach(f"the members of {self.group_id} are {self.results}")
            return
        for member, outcome in self.results.items():
            task, said = self.tasks[member], f"{member} of {self.group_id} is {outcome.state}"
            status = world.status(f"{self.group_id}-{member}")
            if outcome.state is not status.state:
                world.breach(f"{said}, and on the disk {status.state}")
            if outcome.state is State.CANCELLED and not self.cancelling:
                world.breach(f"{said}: nobody cancelled it")
            if outcome.state is State.FAILED and not task[1]:
                world.breach(f"{said}: {outcome.failure}")
            if outcome.state is State.SUCCEEDED:
                if status.generation != 1:
                    world.breach(f"{said}, and ran {status.generation} times")
                if outcome.result != worth_of(task):
                    world.breach(f"{said} with {outcome.result}, and not {worth_of(task)}")


@workflow(name="ticking")
async def ticking(ctx: Context, schedule_id: str) -> None:
    """What a schedule starts."""
    scene.world.passed(ctx.run_id)
    scene.world.started(f"{schedule_id} {ctx.headers['keyrun.scheduled_at']}", ctx.run_id)
    await ctx.step(act, Act(seconds=0.1).plain())


class ScheduleAffair(Affair):
    """A schedule, made again in each process and deleted in the end."""

    name = "schedule"
    EVERY = 2.0
    LATE = 1.0
    """Seconds that a firing may take to be there."""

    def __init__(self, random: Random, number: int, span: float) -> None:
        self.schedule_id = f"schedule-{number}"
        self.at = random.uniform(0.0, span)
        self.until = self.at + random.uniform(0.0, 14.0)
        self.gone = False
        self.open: list[tuple[float, float]] = []
        """When it was there and a runtime was open."""

    async def play(self, runtime: Runtime) -> None:
        """Make it, let it fire, delete it."""
        await trio.sleep_until(self.at)
        if trio.current_time() < self.until and not self.gone:
            start = EPOCH + self.at + 1.0
            every = Every(self.EVERY, start=start)
            given = self.schedule_id
            await runtime.schedule(given, ticking, given, key="clock", when=every, overlap=True)
            since = trio.current_time()
            scene.world.note(f"{given} is there")
            try:
                await trio.sleep_until(self.until)
            finally:
                self.open.append((since, trio.current_time()))
        self.gone = True
        await runtime.delete_schedule(self.schedule_id)

    def audit(self, world: World) -> None:
        """Whatever was due while it was there has been run."""
        due = self.at + 1.0
        while world.steady and due < self.until:
            if any(since < due and due + self.LATE < end for since, end in self.open):
                run_id = firing_id(self.schedule_id, EPOCH + due)
                if world.peek.number(run_id) is None:
                    world.breach(f"{self.schedule_id} did not fire at {due:.3f} s")
            due += self.EVERY


@entity(name="book")
class Book(Entity):
    """What was called, in order."""

    async def add(self, token: str, seconds: float) -> int:
        """One more. Answers how many there are."""
        scene.world.called(self.key, token)
        await trio.sleep(seconds)
        self.state["tokens"] = [*self.state.get("tokens", []), token]
        return len(self.state["tokens"])

    async def read(self) -> list[str]:
        """All of them."""
        return list(self.state.get("tokens", []))


class CallsAffair(Affair):
    """Calls of an entity: with a request id again until there is an answer, else once."""

    name = "calls"

    def __init__(self, random: Random, number: int, span: float) -> None:
        self.key = f"key-{random.randrange(2)}"
        self.calls = [
            (random.uniform(0.0, span), random.choice((0.0, 0.2)), random.random() < 0.6)
            for _ in range(random.randint(1, 5))
        ]
        self.prefix = f"call-{number}"
        self.asked: set[str] = set()
        self.answers: dict[str, int] = {}
        self.tokens: list[str] = []

    async def play(self, runtime: Runtime) -> None:
        """Make the calls that have no answer."""
        async with trio.open_nursery() as nursery:
            for place, (at, seconds, safe) in enumerate(self.calls):
                token = f"{self.prefix}-{place}"
                if token not in self.answers and (safe or token not in self.asked):
                    nursery.start_soon(self._call, runtime, token, at, seconds, safe)
        self.tokens = await runtime.call(Book, self.key, "read")

    async def _call(
        self, runtime: Runtime, token: str, at: float, seconds: float, safe: bool
    ) -> None:
        await trio.sleep_until(at)
        self.asked.add(token)
        request_id = token if safe else None
        answer = await runtime.call(Book, self.key, "add", token, seconds, request_id=request_id)
        scene.world.note(f"answer {token} {answer}")
        if safe:
            again = await runtime.call(Book, self.key, "add", token, seconds, request_id=token)
            if again != answer:
                scene.world.breach(f"{token} was made twice: {answer}, and then {again}")
        self.answers[token] = answer

    def audit(self, world: World) -> None:
        """What was answered is there, where the answer says, and nothing twice."""
        tokens = self.tokens
        if len(tokens) != len(set(tokens)):
            world.breach(f"a call of {self.key} was made twice: {tokens}")
        for token, answer in self.answers.items():
            if tokens[answer - 1 : answer] != [token]:
                world.breach(f"{token} was told that it is number {answer} of {tokens}")


class RushAffair(Affair):
    """Many runs that want the same at the same time."""

    name = "rush"

    def __init__(self, random: Random, number: int, span: float) -> None:
        self.at = random.uniform(0.0, span)
        wanted = (("few", "paced"), ("few", "wide"), ("paced", "few"), ("braked",))
        guards = random.choice(wanted)
        self.tasks: dict[str, list[Any]] = {}
        for place in range(random.randint(4, 6)):
            name = f"rush-{number}-{place}"
            plan = Act(value=place, seconds=random.choice((0.2, 0.5)), owner=name).plain()
            script = [["guarded", each, plan] for each in guards]
            if guards == ("braked",):
                script = [["braked", plan | {"faults": [str(Fault.FAIL)], "always": True}]]
            self.tasks[name] = [name, False, True, script]
        self.results: dict[str, Any] = {}

    async def play(self, runtime: Runtime) -> None:
        """Submit them all, each under a key of its own."""
        await trio.sleep_until(self.at)
        async with trio.open_nursery() as nursery:
            for name, task in self.tasks.items():
                nursery.start_soon(self._run, runtime, name, task)

    async def _run(self, runtime: Runtime, name: str, task: list[Any]) -> None:
        run = await runtime.submit(nested, task, key=name, run_id=name)
        self.results[name] = await run.result()

    def audit(self, world: World) -> None:
        """All came to what they must."""
        expected = {name: worth_of(task) for name, task in self.tasks.items()}
        if self.results != expected:
            world.breach(f"a rush came to {self.results}, and must come to {expected}")


AFFAIRS: tuple[type[Affair], ...] = (GroupAffair, ScheduleAffair, CallsAffair, RushAffair)


def affairs_at_random(random: Random, span: float) -> list[Affair]:
    """Those of one simulation."""
    return [
        affair(random, number, span)
        for number, affair in enumerate(AFFAIRS)
        if random.random() < 0.3
    ]
