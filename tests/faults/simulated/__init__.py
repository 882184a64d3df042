"""Whole runtimes in worlds of chance: see `simulation`."""
