"""`keyrun groups`: list groups, and submit, show or cancel one."""

from collections.abc import Sequence

import click

from keyrun import Reader
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.errors import report_errors
from keyrun.cli.exit_codes import NOT_FOUND, CommandError
from keyrun.cli.listing import ListingPrinter
from keyrun.cli.listing_group import ListingGroup
from keyrun.cli.reading import list_from_cursor, read_store
from keyrun.cli.screen import print_fields
from keyrun.cli.table import Column
from keyrun.cli.times import local, local_exactly
from keyrun.groups import GroupStatus
from keyrun.runtime.inspect.catalogs import GroupSummary
from keyrun.runtime.texts import brief

COLUMNS = [Column("group", 12, id=True), Column("submitted", 11), Column("members", 7)]


@click.command("list")
@options.store
@options.limit
@options.cursor
@options.namespace
@options.as_json
@report_errors
def listing(
    *, store: StoreAddress, limit: int, cursor: str | None, namespace: str, as_json: bool
) -> None:
    """List the groups of STORE, sorted by id.

    \b
    Examples:
      keyrun groups list state/
      keyrun groups list state/ --json | jq -r .group_id
    """

    async def ask(reader: Reader) -> str | None:
        async def fetch(size: int, place: str | None) -> tuple[Sequence[GroupSummary], str | None]:
            page = await reader.find_groups(limit=size, cursor=place)
            return page.groups, page.cursor

        return await list_from_cursor(fetch, printer, limit=limit, cursor=cursor)

    printer = ListingPrinter(
        COLUMNS,
        lambda each: (each.group_id, local(each.created_at or None), each.size),
        documents.group_summary,
        noun=("group", "groups"),
        name=lambda each: each.group_id,
        as_json=as_json,
    )
    printer.end(cursor=read_store(store, namespace, ask))


@click.command("status")
@options.store
@click.argument("group_id")
@options.namespace
@options.as_json
@report_errors
def status(*, store: StoreAddress, group_id: str, namespace: str, as_json: bool) -> None:
    """Show how many members of a group of STORE are in which state.

    \b
    Examples:
      keyrun groups status state/ import-7
      keyrun groups status state/ import-7 --json | jq .counts

    The exit code is 1 if the group does not exist.
    """

    async def ask(reader: Reader) -> GroupStatus | None:
        return await reader.group_status(group_id)

    found = read_store(store, namespace, ask)
    if found is None:
        raise CommandError(
            f"no group has the id {brief(group_id)}, or all its runs were forgotten", NOT_FOUND
        )
    if as_json:
        print(documents.line(documents.group(found)))
        return
    accepted = "" if found.accepted == found.size else f", {found.accepted} accepted so far"
    print_fields(
        [
            ("group", found.group_id),
            ("submitted", local_exactly(found.created_at or None)),
            ("members", f"{found.size}{accepted}"),
            ("ended", f"{found.ended} ({found.percent:.0f} %)"),
            *((str(state), count or None) for state, count in found.counts.items()),
        ]
    )


command = ListingGroup(
    "groups", "List the groups of STORE, and submit, show or cancel one.", listing, status
)
