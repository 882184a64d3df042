"""Recovery: what becomes of runs after a crash, damage, a bug, or a failure for good."""
