"""Policies: retry, circuit breaker, rate limit, resources and checkpoints, one module each."""
