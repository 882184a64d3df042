"""Keyed, supervised in-memory actors on Trio."""
