"""Graphs: workflows that are written as nodes and edges.

A `Graph` is a workflow like any other, and its nodes are steps: retries, timeouts, order, cancel,
pause, recovery and history hold unchanged.
"""
