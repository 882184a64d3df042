"""The items of a map, as the commands show them."""

from keyrun.status import ItemCounts


def items_of(counts: ItemCounts) -> str:
    """Return the items of a map as text."""
    parts = [f"{counts.done + counts.failed} of {counts.total} items"]
    parts += [f"{counts.running} running"] if counts.running else []
    parts += [f"{counts.failed} failed"] if counts.failed else []
    return ", ".join(parts)
