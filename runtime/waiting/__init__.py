"""Waiting: timers, signals, approvals, and eviction of waiting runs from memory."""
