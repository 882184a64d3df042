"""Nodes that are there already: each module makes one kind."""
