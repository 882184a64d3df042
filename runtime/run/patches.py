"""Patches: small changes of a workflow's code that runs in flight take, or do not take."""

from keyrun.runtime.run.branch import Branch
from keyrun.runtime.texts import check_text

MAX_NAME = 200


def check_patch(name: object) -> None:
    """Raise unless a patch may have this name."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a patch must be a non-empty string, got {name!r}")
    if len(check_text(name, "the name of a patch").encode()) > MAX_NAME:
        raise ValueError(f"the name of a patch must have at most {MAX_NAME} bytes, got {name!r}")


def patched(branch: Branch, name: str) -> bool:
    """What a run was answered for this name, or is now: whether the whole journal was replayed."""
    run = branch.run
    standing, journal = run.standing, run.journal
    known = (standing.patches or {}).get(name)
    if known is not None:
        return known
    answer = journal.expected is None and journal.caught_up()
    standing.patches = {**(standing.patches or {}), name: answer}
    if not run.is_dry_run:
        run.partition.unfinished.patched(run.submission, {name: answer}, 1)
        run.note("", "patched", f"{name}: {str(answer).lower()}")
        run.store_standing()
    return answer
