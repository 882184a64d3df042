"""Inspection: status, history, progress and listings, and replay of stored histories."""
