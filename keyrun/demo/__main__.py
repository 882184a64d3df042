"""`python -m keyrun.demo`: the same as `keyrun demo`."""

from keyrun.demo import command

command(prog_name="keyrun demo")
