"""`python -m keyrun.stress`: the same as `keyrun stress`."""

from keyrun.stress import command

command(prog_name="keyrun stress")
