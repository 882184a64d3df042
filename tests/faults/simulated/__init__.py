"""Whole runtimes in worlds of chance: see `simulation`."""

# Whoever is first to import a part of it: pieces come into their table in the same order, or a seed
# would not make up the same world.
from tests.faults.simulated import family, guards

__all__ = ["family", "guards"]
