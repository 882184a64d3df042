"""Waiting: timers, signals and approvals, and runs that leave memory until they come."""
