"""Faces: the runtime for hosts that do not run on Trio."""
