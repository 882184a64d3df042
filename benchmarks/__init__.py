"""Benchmarks: every figure is a ratio to a limit measured in the same run."""
