"""The exit codes of all commands, and the error that carries one."""

import click

OK = 0
FAILED = NOT_FOUND = DAMAGED = 1
USAGE = 2
CANCELLED = 3
NO_STORE = 4
QUARANTINED = 5
LOST_STORE = 6
INTERRUPTED = 130
PIPE_CLOSED = 141

EXIT_CODES = """\
  0    success
  1    the run failed or does not exist, or its
       state does not allow the operation, or
       verify or flow check found an error, or
       serve cannot listen or failed
  2    invalid command, option, module, input, key or id
  3    the run was cancelled
  4    the store cannot be opened, read, locked
       or reached, or a token does not allow it
  5    the run is quarantined
  6    the store failed while serve had it open
  130  interrupted
  141  the pipe was closed
  143  serve was ended by a second SIGTERM"""


class CommandError(click.ClickException):
    """An error with a message of one line and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(" ".join(message.split()))
        self.code = exit_code
