"""Durable runs: submission, steps, policies, recovery."""
