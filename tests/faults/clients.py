"""Clients: ask a runtime for random things, and tell what they asked for and what came of it.

What a call came to that was cut off is found out when the runtime is open again, before anybody
asks for anything else.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import trio

from keyrun import Backpressure, Priority, RunEnded, Runtime, UnknownRun
from keyrun.storage import StoreError
from tests.faults.evidence import NEVER, Call, Evidence
from tests.faults.plan import SIGNAL, Life, living, make_up


class Clients:
    """Who asks, and what they know."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.evidence = Evidence()
        self.keys = [f"key-{number}" for number in range(self.random.randint(1, 6))]
        self.lives: dict[str, Life] = {}
        """The present life of each id."""
        self.runtime: Runtime | None = None
        self.since = NEVER
        """When it was opened."""
        self.watchers: trio.Nursery

    async def ask(
        self,
        what: str,
        about: str,
        act: Callable[[], Awaitable[Any]],
        life: Life | None = None,
    ) -> Any:
        """Call something, and tell of the call and of the answer."""
        call = self.evidence.call(what, about, life)
        try:
            answer = await act()
        except (RunEnded, UnknownRun, Backpressure) as error:
            answer = error
        except StoreError:
            # Of a store that was crashed: what came of it is found out later.
            await trio.sleep_forever()
        self.evidence.answer(call, answer)
        self._learn(call, answer)
        return answer

    def _learn(self, call: Call, answer: Any) -> None:
        """What an answer says about a run."""
        life = call.life
        if life is None or isinstance(answer, Exception):
            return
        if answer is not False:
            self.evidence.known.add(str(life))
        match call.what:
            case "submit":
                self.evidence.submitted(life)
            case "redrive":
                self.evidence.redriven(life, answer, call.called)
            case "forget":
                self.evidence.forgotten.add(str(life))

    async def look_up(self, runtime: Runtime) -> None:
        """Find out what the calls came to that were cut off."""
        for call in self.evidence.calls:
            if call.answered < NEVER:
                continue
            life = call.life
            status = None if life is None else await runtime.status(life.run_id)
            if (
                status is not None
                and life is not None
                and status.headers["life"] != str(life.number)
            ):
                status = None
            answer: Any = UnknownRun("it did not come to it")
            match call.what:
                case "submit" if status is not None:
                    answer = status
                case "submit" if life is not None and self.evidence.is_lost(life):
                    self.evidence.complain(f"{life} was known before a restart, and is lost")
                case "forget" if status is None:
                    answer = None
                case "redrive" if status is not None and life is not None:
                    if status.generation > self.evidence.generations(life):
                        answer = status.generation
            call.answered = self.evidence.now()
            self._learn(call, answer)

    async def client(self, runtime: Runtime) -> None:
        random = self.random
        while True:
            await random.choices(
                [
                    self._submit,
                    self._repeat,
                    self._cancel,
                    self._signal,
                    self._hold,
                    self._let_go,
                    self._redrive,
                    self._forget,
                    self._read,
                ],
                [8, 1, 2, 2, 2, 3, 3, 2, 1],
            )[0](runtime)
            await trio.sleep(random.choice([0, 0, 0.01, 0.3, 2]))

    async def _submit(self, runtime: Runtime) -> None:
        random = self.random
        run_id = f"run-{random.randint(1, 40)}"
        former = self.lives.get(run_id)
        if former is not None and str(former) not in self.evidence.forgotten:
            run_id, former = f"run-{len(self.lives) + 100}", None
        number = 1 if former is None else former.number + 1
        life = self.lives[run_id] = make_up(random, run_id, number, random.choice(self.keys))
        delay = random.choice([0, 0, 0, 0.001, 2, 15])
        if delay:
            self.watchers.start_soon(self._watch_delay, life, delay)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._offer, runtime, life, delay)
            if random.random() < 0.4:
                await trio.sleep(random.choice([0, 0.0005, 0.001, 0.03, 0.05]))
                await self._act_on(runtime, life)

    async def _act_on(self, runtime: Runtime, life: Life) -> None:
        """Ask for something that may come before the submit of the run has returned."""
        run_id = life.run_id
        number = len(self.evidence.calls)
        about = str(life)
        match self.random.choice(["cancel", "pause", "signal", "redrive", "forget", "status"]):
            case "cancel":
                await self.ask("cancel", about, lambda: runtime.cancel(run_id), life)
            case "pause":
                await self.ask("pause", f"run {about}", lambda: runtime.pause(run_id), life)
            case "signal":
                send = partial(runtime.signal, run_id, SIGNAL, number)
                await self.ask("signal", about, send, life)
            case "redrive":
                await self.ask("redrive", about, lambda: runtime.redrive(run_id), life)
            case "forget":
                await self.ask("forget", about, lambda: runtime.forget(run_id), life)
            case "status":
                await self.ask("status", about, lambda: self._seen(runtime, life), life)

    async def _offer(self, runtime: Runtime, life: Life, delay: float) -> None:
        self.evidence.expect(life, delayed=bool(delay))
        priority = Priority.HIGH if life.luck % 5 == 0 else Priority.NORMAL
        headers = {"life": str(life.number)}
        await self.ask(
            "submit",
            str(life),
            lambda: runtime.submit(
                living,
                life,
                key=life.key,
                run_id=life.run_id,
                headers=headers,
                delay=delay,
                priority=priority,
            ),
            life,
        )

    async def _watch_delay(self, life: Life, delay: float) -> None:
        """Tell from when on a delayed run can have a place, and when it must have one."""
        await trio.sleep(delay - 0.0005)
        self.evidence.due(life)
        await trio.sleep(0.0005)
        while True:
            began = trio.current_time()
            await trio.sleep(1.0)
            if self.runtime is not None and self.since <= began:
                self.evidence.placed(life)
                return

    async def _repeat(self, runtime: Runtime) -> None:
        """Submit again what was submitted. After a forget that would be a run of its own."""
        evidence = self.evidence
        life = self._any(lambda life: not evidence.asked("forget", life))
        if life is not None and (evidence.is_there(life) or not evidence.is_delayed(life)):
            await self._offer(runtime, life, 0)

    def _any(self, wanted: Callable[[Life], bool] = lambda life: True) -> Life | None:
        """A run that is there, or one whose submit has not returned."""
        evidence, lives = self.evidence, list(self.lives.values())
        early = [
            life
            for life in lives
            if not evidence.is_there(life) and evidence.asked("submit", life) and wanted(life)
        ]
        if early and self.random.random() < 0.5:
            return self.random.choice(early)
        there = [life for life in lives if evidence.is_there(life) and wanted(life)]
        return self.random.choice(there[-12:]) if there else None

    async def _cancel(self, runtime: Runtime) -> None:
        if life := self._any():
            await self.ask("cancel", str(life), lambda: runtime.cancel(life.run_id), life)

    async def _signal(self, runtime: Runtime) -> None:
        """Send a number that tells which call it was sent by."""
        if life := self._any():
            number = len(self.evidence.calls)
            await self.ask(
                "signal", str(life), lambda: runtime.signal(life.run_id, SIGNAL, number), life
            )

    async def _hold(self, runtime: Runtime) -> None:
        random = self.random
        lot, key = random.random(), random.choice(self.keys)
        if lot < 0.1:
            await self.ask("pause", "all", runtime.pause_all)
            await trio.sleep(random.uniform(0, 3))
            await self.ask("resume", "all", runtime.resume_all)
        elif lot < 0.5:
            await self.ask("pause", f"key {key}", lambda: runtime.pause_key(key))
        elif life := self._any():
            await self.ask("pause", f"run {life}", lambda: runtime.pause(life.run_id), life)

    async def _let_go(self, runtime: Runtime) -> None:
        key = self.random.choice(self.keys)
        await self.ask("resume", f"key {key}", lambda: runtime.resume_key(key))
        if life := self._any():
            await self.ask("resume", f"run {life}", lambda: runtime.resume(life.run_id))

    async def _redrive(self, runtime: Runtime) -> None:
        evidence = self.evidence
        if life := self._any(lambda life: not evidence.is_there(life) or evidence.has_failed(life)):
            await self.ask("redrive", str(life), lambda: runtime.redrive(life.run_id), life)

    async def _forget(self, runtime: Runtime) -> None:
        evidence = self.evidence
        # A submit that is repeated meanwhile could make a run of its own.
        if life := self._any(
            lambda life: (
                not evidence.is_there(life)
                or (evidence.has_ended(life) and not evidence.asked("submit", life))
            )
        ):
            await self.ask("forget", str(life), lambda: runtime.forget(life.run_id), life)

    async def _read(self, runtime: Runtime) -> None:
        await runtime.runs(limit=5)
        await runtime.keys(limit=3)
        await runtime.dead_letters()
        for life in list(self.lives.values())[-2:]:
            await runtime.history(life.run_id)
        if chosen := self._any():
            await self.ask("status", str(chosen), partial(self._seen, runtime, chosen), chosen)

    async def _seen(self, runtime: Runtime, life: Life) -> bool:
        """Whether the status of a run says that it is there."""
        status = await runtime.status(life.run_id)
        return status is not None and status.headers["life"] == str(life.number)
