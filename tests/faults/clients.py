"""Clients: ask a runtime for random things, and tell what they asked for and what came of it.

What a call came to that was cut off is found out when the runtime is open again, before anybody
asks for anything else.
"""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import trio

from keyrun.runtime import Backpressure, Priority, RunEnded, Runtime, UnknownRun
from keyrun.storage import StoreError
from tests.faults.evidence import NEVER, Call, Evidence
from tests.faults.plan import Life, living, make_up


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
                    self._hold,
                    self._let_go,
                    self._redrive,
                    self._forget,
                    self._read,
                ],
                [8, 1, 2, 2, 3, 3, 2, 1],
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
        await self._offer(runtime, life, delay)

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
        life = self._any(lambda status: True)
        if life is not None and str(life) in self.evidence.sittings:
            await self._offer(runtime, life, 0)

    def _any(self, wanted: Callable[[Life], bool]) -> Life | None:
        there = [
            life for life in self.lives.values() if self.evidence.is_there(life) and wanted(life)
        ]
        return self.random.choice(there[-12:]) if there else None

    async def _cancel(self, runtime: Runtime) -> None:
        if life := self._any(lambda life: True):
            await self.ask("cancel", str(life), lambda: runtime.cancel(life.run_id), life)

    async def _hold(self, runtime: Runtime) -> None:
        random = self.random
        lot, key = random.random(), random.choice(self.keys)
        if lot < 0.1:
            await self.ask("pause", "all", runtime.pause_all)
            await trio.sleep(random.uniform(0, 3))
            await self.ask("resume", "all", runtime.resume_all)
        elif lot < 0.5:
            await self.ask("pause", f"key {key}", lambda: runtime.pause_key(key))
        elif life := self._any(lambda life: True):
            await self.ask("pause", f"run {life}", lambda: runtime.pause(life.run_id))

    async def _let_go(self, runtime: Runtime) -> None:
        key = self.random.choice(self.keys)
        await self.ask("resume", f"key {key}", lambda: runtime.resume_key(key))
        if life := self._any(lambda life: True):
            await self.ask("resume", f"run {life}", lambda: runtime.resume(life.run_id))

    async def _redrive(self, runtime: Runtime) -> None:
        if life := self._any(self.evidence.has_failed):
            await self.ask("redrive", str(life), lambda: runtime.redrive(life.run_id), life)

    async def _forget(self, runtime: Runtime) -> None:
        if life := self._any(self.evidence.has_ended):
            await self.ask("forget", str(life), lambda: runtime.forget(life.run_id), life)

    async def _read(self, runtime: Runtime) -> None:
        await runtime.runs(limit=5)
        await runtime.keys(limit=3)
        await runtime.dead_letters()
        for life in list(self.lives.values())[-2:]:
            await runtime.history(life.run_id)
