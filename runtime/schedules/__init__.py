"""Schedules: runs that the clock starts."""
