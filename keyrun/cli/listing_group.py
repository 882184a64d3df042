"""A group of commands whose first command lists something: `keyrun schedules STORE` is the same as
`keyrun schedules list STORE`. Commands that change something come from the table of operations."""

import click

from keyrun.cli.operate import command_of, commands


class ListingGroup(click.Group):
    """A group that lists if no command is named."""

    def __init__(self, name: str, summary: str, listing: click.Command, *more: click.Command):
        derived = [each for each in commands() if each.startswith(f"{name} ")]
        members = [listing, *more, *map(command_of, derived)]
        helps = "\n".join(f"  keyrun {name} {each.name} --help" for each in members[1:])
        super().__init__(
            name,
            help=(
                f"{summary}\n\n\b\nExamples:\n  keyrun {name} state/\n{helps}\n\n"
                f"Without a command, it lists. `keyrun {name} list --help` has the options."
            ),
            commands={each.name or "": each for each in members},
            subcommand_metavar="[COMMAND] STORE [ARGS]...",
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, the list first."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the list before arguments that name no command."""
        named = [each for each in args if not each.startswith("-")]
        if named and named[0] not in self.commands:
            args = ["list", *args]
        return super().parse_args(ctx, args)
