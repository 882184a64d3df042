"""The declaration of a schedule: what it starts, and when."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, overload

import attrs

from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.errors import InvalidSchedule
from keyrun.runtime.limits import Limits
from keyrun.runtime.values import Priority

if TYPE_CHECKING:
    from typing import Unpack

    from keyrun.runtime.schedules.options import ScheduleOptions
    from keyrun.runtime.schedules.records import Misfire
    from keyrun.runtime.schedules.timetable import Timetable

I_co = TypeVar("I_co", covariant=True)


@attrs.frozen(init=False)
class Schedule(Generic[I_co]):
    """Declare a schedule for `open_runtime(schedules=[...])`. The fields are the arguments of
    `rt.schedule`."""

    schedule_id: str
    """The id of the schedule."""
    workflow: Workflow[I_co, Any]
    """The workflow that runs at each firing."""
    input: I_co | None
    """The input of the runs."""
    key: str
    """The ordering key of the runs."""
    when: "Timetable"
    """When it fires: `Once(...)`, `Every(...)` or `Cron(...)`."""
    misfire: "Misfire"
    """How the schedule treats times that pass while nothing can fire: `fire_once` or `skip`."""
    overlap: bool
    """Whether a firing starts a run while the run before has not ended."""
    paused: bool
    """Whether a new schedule is created without firing."""
    headers: Mapping[str, str] | None
    """The headers of the runs."""
    tags: Iterable[str]
    """The tags of the runs."""
    priority: Priority
    """The priority of the runs."""
    limits: Limits | None
    """The limits of the runs."""

    @overload
    def __init__(
        self: "Schedule[None]",
        schedule_id: str,
        workflow: Workflow[None, Any],
        input: None = None,
        **options: "Unpack[ScheduleOptions]",
    ) -> None: ...
    @overload
    def __init__(
        self,
        schedule_id: str,
        workflow: Workflow[I_co, Any],
        input: I_co,
        **options: "Unpack[ScheduleOptions]",
    ) -> None: ...
    def __init__(
        self,
        schedule_id: str,
        workflow: Workflow[Any, Any],
        input: Any = None,  # noqa: A002
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
    ) -> None:
        # Programs without schedules do not load the library for timetables.
        from keyrun.runtime.schedules.records import Misfire, check_schedule_id
        from keyrun.runtime.schedules.timetable import check_timetable

        check_schedule_id(schedule_id)
        check_timetable(when)
        if misfire not in get_args(Misfire):
            raise InvalidSchedule(f"misfire must be 'fire_once' or 'skip', got {misfire!r}")
        for name, value in (("overlap", overlap), ("paused", paused)):
            if not isinstance(value, bool):
                raise InvalidSchedule(f"{name} must be True or False, got {value!r}")
        self.__attrs_init__(
            schedule_id,
            workflow,
            input,
            key,
            when,
            misfire,
            overlap,
            paused,
            headers,
            tags,
            priority,
            limits,
        )


def check_schedules(schedules: Iterable[object]) -> "tuple[Schedule[Any], ...]":
    """Return the schedules of a list. Raise an error if one is something else, or if two have the
    same id."""
    found: dict[str, Schedule[Any]] = {}
    for each in schedules:
        if not isinstance(each, Schedule):
            raise TypeError(f"schedules must be a list of Schedule(...), got {each!r}")
        if each.schedule_id in found:
            raise InvalidSchedule(f"two schedules of the list have the id {each.schedule_id!r}")
        found[each.schedule_id] = each
    return tuple(found.values())
