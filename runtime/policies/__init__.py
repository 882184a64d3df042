"""Policies: what holds for the calls of a step, one small module each."""
