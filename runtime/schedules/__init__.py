"""Schedules: runs that are started at given times."""
