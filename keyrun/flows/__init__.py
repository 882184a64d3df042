"""Flows: graphs that need no Python. Nodes that are there already, templates, and files.

What this needs comes with `pip install keyrun[flows]`; nothing else in Keyrun imports it before it
is asked for.
"""
