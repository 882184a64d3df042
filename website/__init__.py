"""The documentation site, and the reference in docs/ that is generated from docstrings."""
