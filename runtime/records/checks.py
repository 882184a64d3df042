"""Checks: validate keys, run ids, headers and tags where users pass them in."""

import re
from collections.abc import Iterable, Mapping

from keyrun.runtime.errors import InvalidKey, InvalidRunId, ReservedHeader
from keyrun.runtime.records.tables import MAX_KEY
from keyrun.runtime.texts import brief, check_text
from keyrun.storage.native import pack

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

MAX_HEADERS = 64 * 1024
"""Bytes that the headers of a run may have, encoded."""


def check_key(key: object) -> str:
    """Return `key` if it is a valid ordering key. Raise `InvalidKey` otherwise."""
    if not isinstance(key, str):
        raise InvalidKey(f"key must be a string, got {brief(key)}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidKey(f"key must be valid Unicode, got {brief(key)}") from None
    if not 0 < size <= MAX_KEY:
        raise InvalidKey(f"key must have 1 to {MAX_KEY} bytes as UTF-8, got {size}", key=key)
    return key


def check_run_id(run_id: object) -> str:
    """Return `run_id` if it is valid. Raise `InvalidRunId` otherwise."""
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise InvalidRunId(
            f"run_id must be 1 to 128 of A-Z, a-z, 0-9, '_' and '-', got {brief(run_id)}"
        )
    return run_id


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `headers` if they are valid and not too large."""
    taken: dict[str, str] = {}
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must map strings to strings, got {brief(headers)}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(
                f"headers must map strings to strings, got {brief(name)}: {brief(value)}"
            )
        if name.startswith("keyrun."):
            raise ReservedHeader(
                f"header names starting with 'keyrun.' are reserved: {brief(name)}"
            )
        name = check_text(name, "the name of a header")
        taken[name] = check_text(value, f"the header {brief(name)}")
    size = len(pack(taken))
    if size > MAX_HEADERS:
        largest = max(taken, key=lambda name: len(name.encode()) + len(taken[name].encode()))
        raise ValueError(
            f"the headers of a run may have {MAX_HEADERS:,} bytes, got {size:,}; the largest is "
            f"{brief(largest)} with {len(taken[largest].encode()):,} bytes: put it into the input, "
            "or store it elsewhere and pass a reference"
        )
    return taken


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return `tags` as a tuple of strings, if they are valid."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise TypeError(f"tags must be several strings, such as a tuple of them, got {brief(tags)}")
    taken = tuple(tags)
    for tag in taken:
        if not isinstance(tag, str) or not tag:
            raise TypeError(f"tags must be non-empty strings, got {brief(tag)}")
    return tuple(check_text(tag, "a tag") for tag in taken)
