"""`keyrun why`: one sentence for a run or a key."""

from pathlib import Path

from tests.keyrun.cli import invoke, lines


def test_a_run_and_a_key_are_explained_in_one_sentence(filled: Path) -> None:
    (ended,) = lines("why", filled, "r1")
    assert ended.startswith("Run r1 has succeeded at ")
    (held,) = lines("why", filled, "--key", "carol")
    assert held.startswith("Run r4 waits for a timer until ")
    (idle,) = lines("why", filled, "--key", "unknown")
    assert idle == "Key unknown has no run that holds it."


def test_an_unknown_run_and_a_command_without_a_run_are_errors(filled: Path) -> None:
    unknown = invoke("why", filled, "unknown")
    assert unknown.exit_code == 1
    assert "unknown" in unknown.stderr
    for words in ([], ["r1", "--key", "carol"]):
        wrong = invoke("why", filled, *words)
        assert wrong.exit_code == 2
        assert "name a run, or a key with --key KEY, and not both" in wrong.stderr
