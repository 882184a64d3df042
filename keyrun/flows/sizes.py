"""Sizes: how large what a node gives may be."""

MEBIBYTE = 1024 * 1024
OUTPUT = MEBIBYTE
"""Bytes that the output of one node may have, where nobody says anything else."""
RUN = 10 * MEBIBYTE
"""Bytes that the outputs of all nodes of a run may have together."""
