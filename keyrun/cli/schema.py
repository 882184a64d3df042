"""`keyrun schema`: print the JSON Schema of flows."""

import json

import click

from keyrun.cli.errors import report_errors


@click.command("schema")
@report_errors
def command() -> None:
    """Print the JSON Schema of flows. Editors use it to check and complete flow files.

    \b
    Examples:
      keyrun schema > flow.schema.json

    Name the schema in the first line of a YAML file:

    \b
      # yaml-language-server: $schema=flow.schema.json
    """
    from keyrun.flows.document import schema

    print(json.dumps(schema(), indent=2))
