"""The PostgreSQL store: commits go to a database, reads come from an image in this process.

The database has the log of commits, and the lease that says which process owns a namespace. This
package needs psycopg, which the extra `postgres` installs.

| module | role |
|---|---|
| `address` | the URL, and what of it may be shown |
| `wire` | one connection, for the Trio loop and for threads |
| `arrays` | group commits as binary arrays |
| `statements` | every SQL statement |
| `schema` | create and migrate the schema, check the server |
| `lease` | own a namespace: claim, wait, release |
| `trust` | until when this process may rely on its lease |
| `heartbeat` | the thread that renews the lease |
| `commit` | fenced commits, and what became of one whose answer was lost |
| `image` | the records that reads show |
| `load` | fill the image from the database |
| `fold` | move the log into records |
| `tuning` | intervals and sizes |
| `store` | `PostgresStore`, which wires all of them |
"""

from keyrun.storage.postgres.lease import Lease
from keyrun.storage.postgres.store import PostgresStore

__all__ = ["Lease", "PostgresStore"]
