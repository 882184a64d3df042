"""Exit codes, and how a command says that it cannot do what was asked."""

import click

FINE = 0
FAILED = NOT_FOUND = DAMAGED = 1
USAGE = 2
CANCELLED = 3
NO_STORE = 4
HELD = 5
INTERRUPTED = 130
PIPE_CLOSED = 141

EXIT_CODES = """\
  0    fine
  1    the run failed or is not there; verify found damage, flow check a problem
  2    the command was not understood
  3    the run was cancelled
  4    the store cannot be opened, read or locked
  5    the run is quarantined and needs a person
  130  interrupted"""


class Refusal(click.ClickException):
    """What a command has to say when it cannot do what was asked."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(" ".join(message.split()))
        self.code = exit_code
