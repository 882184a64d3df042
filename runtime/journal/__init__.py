"""The journal: what a run remembers, and how its code is driven against it again."""
