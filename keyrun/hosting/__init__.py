"""Hosts: run Keyrun inside programs that do not run on Trio."""
