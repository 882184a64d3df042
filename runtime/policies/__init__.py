"""Policies of steps: retry, circuit breaker, rate limit and resources, one module each."""
