"""Schedules: the times at which `rt.schedule` starts runs, and the status of a schedule."""

from keyrun.runtime.schedules.declared import Schedule
from keyrun.runtime.schedules.records import ScheduleStatus
from keyrun.runtime.schedules.timetable import Cron, Every, Once

__all__ = [
    "Cron",
    "Every",
    "Once",
    "Schedule",
    "ScheduleStatus",
]
