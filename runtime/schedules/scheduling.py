"""Scheduling: what a runtime offers to those who want runs started by the clock."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from keyrun.runtime.errors import InvalidSchedule
from keyrun.runtime.limits import Limits
from keyrun.runtime.values import Priority
from keyrun.runtime.wording import check_text
from keyrun.runtime.workflow import Workflow

if TYPE_CHECKING:
    from keyrun.runtime.engine import Engine
    from keyrun.runtime.schedules.schedule import Misfire, ScheduleStatus
    from keyrun.runtime.schedules.timetable import Timetable

I = TypeVar("I")  # noqa: E741 (the input)


class Scheduling:
    """The part of a runtime that is about schedules."""

    _engine: "Engine"

    async def schedule(
        self,
        schedule_id: str,
        workflow: Workflow[I, Any],
        input: I = None,  # type: ignore[assignment]  # noqa: A002
        *,
        key: str,
        when: "Timetable",
        misfire: "Misfire" = "fire_once",
        overlap: bool = False,
        paused: bool = False,
        headers: Mapping[str, str] | None = None,
        tags: Iterable[str] = (),
        priority: Priority = Priority.NORMAL,
        limits: Limits | None = None,
    ) -> "ScheduleStatus":
        """Have a workflow run `when`: `Once(...)`, `Every(...)` or `Cron(...)`.

        The same again changes nothing. Something else under the same id takes its place: the
        counters, the last run and whether it is paused stay, and so does the next firing unless
        `when` is another one. `paused` is only about a schedule that is not there yet.

        Times that pass together, because no runtime was open, the clock jumped or the process was
        slow, are merged into one run for the latest of them. With `misfire="skip"` times that
        passed while no runtime was open, or that the clock jumped over, start no run at all. While
        the run of the last firing has not ended, firings are skipped unless `overlap` is true.
        """
        from keyrun.runtime.schedules.schedule import Plan, check_schedule_id, show

        check_schedule_id(schedule_id)
        engine = self._engine
        described = engine.admission.describe(
            workflow, input, key, schedule_id, headers, tags, priority, limits, 0
        )
        for name, value in (("overlap", overlap), ("paused", paused)):
            if not isinstance(value, bool):
                raise InvalidSchedule(f"{name} must be True or False, got {value!r}")
        assert described.digest is not None
        plan = Plan(
            workflow=described.workflow,
            key=key,
            input=described.input,
            digest=described.digest,
            headers=described.headers,
            tags=described.tags,
            priority=priority,
            limits=limits or Limits(),
            when=when,
            misfire=misfire,
            overlap=overlap,
        )
        schedule = await engine.schedules.put(schedule_id, plan, paused=paused)
        return await show(engine.reading, schedule)

    async def pause_schedule(self, schedule_id: str) -> bool:
        """Let a schedule fire no more until it is resumed. Says whether there was anything to
        change; runs that it has started go on."""
        check_text(schedule_id, "schedule_id")
        return await self._engine.schedules.pause(schedule_id, True)

    async def resume_schedule(self, schedule_id: str) -> bool:
        """Let a paused schedule go on. What it did not fire meanwhile is dropped, except for one
        that fires only once: its time may have passed, and `misfire` says what that means."""
        check_text(schedule_id, "schedule_id")
        return await self._engine.schedules.pause(schedule_id, False)

    async def delete_schedule(self, schedule_id: str) -> bool:
        """Remove a schedule, and say whether there was one. Its runs stay."""
        check_text(schedule_id, "schedule_id")
        return await self._engine.schedules.delete(schedule_id)
