"""Intervals and sizes of a PostgreSQL store. Only tests of Keyrun change them."""

import attrs


@attrs.frozen(kw_only=True)
class StoreTuning:
    """Constants of a `PostgresStore`."""

    loop_timeout: float = 30.0
    """The lease is not renewed any more when the loop has not answered for this many seconds."""
    answer_timeout: float = 10.0
    """Seconds after which the connection of a commit without an answer is closed."""
    close_timeout: float = 10.0
    """Seconds that a store that is being closed tries to reach the database."""
    fold_bytes: int = 32 << 20
    """The log is folded when it has this many bytes."""
    fold_seconds: float = 10.0
    """The log is folded this many seconds after its first commit."""
    fold_piece: int = 64
    """The most commits that are folded at once."""
    fold_piece_bytes: int = 32 << 20
    """The most bytes that are folded at once, if they are of several commits."""
