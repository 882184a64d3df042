"""The options of `rt.schedule`, for type checkers."""

from typing import Required

from keyrun.runtime.queue.run_options import RunOptions
from keyrun.runtime.schedules.records import Misfire
from keyrun.runtime.schedules.timetable import Timetable


class ScheduleOptions(RunOptions, total=False):
    """The options of `rt.schedule`."""

    when: Required[Timetable]
    misfire: Misfire
    overlap: bool
    paused: bool
