"""Tuning: sizes that no user has to change, and that tests shrink to reach the rare cases."""

import attrs


@attrs.frozen(kw_only=True)
class Tuning:
    """Page sizes, window sizes and limits of caches."""

    calls_per_turn: int = 32
    """Calls of one key that run before the actors of other keys run."""
    entity_cache_bytes: int = 8 * 1024 * 1024
    """Bytes that durable states of entities may take in memory."""
    group_page: int = 1000
    """Members of a group that one commit accepts."""
