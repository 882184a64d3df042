"""`keyrun schema`: the JSON Schema of flows, for editors."""

import json

import click

from keyrun.cli.troubles import plainly


@click.command("schema")
@plainly
def command() -> None:
    """Print the JSON Schema of flows, with which editors check and complete them.

    \b
    Examples:
      keyrun schema > flow.schema.json

    In a YAML file, the first line then is

    \b
      # yaml-language-server: $schema=flow.schema.json
    """
    from keyrun.flows.document import schema

    print(json.dumps(schema(), indent=2))
