"""Make the store at a path or a URL."""

import os

from keyrun.storage.lmdb_store import CommitterName, LmdbStore
from keyrun.storage.store import Store

URL_SCHEMES = ("postgresql://", "postgres://")


def is_url(place: object) -> bool:
    """Return whether a place is the URL of a database, and not a path."""
    return isinstance(place, str) and place.startswith(URL_SCHEMES)


def store_at(
    place: str | os.PathLike[str],
    *,
    namespace: str = "default",
    committer: CommitterName = "inline",
) -> Store:
    """Return the store at a path or a URL. It is not open yet.

    A URL such as `postgresql://user@host/database` makes a `PostgresStore` of the namespace, and
    requires the extra `postgres`. A path makes an `LmdbStore`, which has all namespaces. Raises
    `ImportError` if the extra is not installed."""
    if not is_url(place):
        return LmdbStore(place, committer=committer)
    from keyrun.storage.postgres import PostgresStore

    return PostgresStore(os.fspath(place), namespace=namespace)
