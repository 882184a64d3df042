"""The stress campaign: it finds what is broken, and nothing where nothing is."""

import json
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import attrs
import pytest
import trio
from click.testing import CliRunner
from rich.console import Console

from keyrun.stress import command
from keyrun.stress.acting import scene
from keyrun.stress.campaign import Campaign
from keyrun.stress.child import Child, Setup, job
from keyrun.stress.entry import assign, stress
from keyrun.stress.evidence import Log, Mark
from keyrun.stress.options import Options
from keyrun.stress.plan import PlannedPause
from keyrun.stress.record import CampaignRecord
from keyrun.stress.verdict import judge
from keyrun.stress.violation import Promise

QUICK = Options(keys=6, runs=150, seconds=30.0, crash_every=0.3, seed=7)
"""Its waits alone take longer than the time to the first kill, however fast the machine is."""
CROWD = attrs.evolve(QUICK, keys=24, runs=600)
"""A kill that cuts off nothing is rare, three of them are not to be thought of."""
SLOW = attrs.evolve(QUICK, crash_every=0.5, seconds=8.0)
UNDISTURBED = attrs.evolve(QUICK, runs=60, crash_every=0.0)


@pytest.mark.parametrize("committer", ["inline", "process"])
def test_a_campaign_with_kills_finds_nothing_in_keyrun_as_it_is(
    tmp_path: Path, committer: str
) -> None:
    options = attrs.evolve(QUICK, committer=committer)
    verdict = stress(options, tmp_path, Console(quiet=True), most_kills=3)
    assert verdict.violations == ()
    assert verdict.kills > 0
    assert verdict.runs == 150
    assert verdict.executions >= verdict.attempts >= verdict.steps > verdict.runs


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("gate", SLOW, {Promise.LOSS, Promise.DOUBLED}),
        ("order", QUICK, {Promise.ORDER}),
        ("ceiling", attrs.evolve(UNDISTURBED, fail_rate=0.6), {Promise.LIMITS}),
        ("replay", CROWD, {Promise.DOUBLED}),
        ("hook", UNDISTURBED, {Promise.LOSS}),
        ("cancel", attrs.evolve(UNDISTURBED, cancel_rate=0.4), {Promise.CANCEL}),
        ("pause", attrs.evolve(UNDISTURBED, pause_rate=0.6), {Promise.PAUSE}),
        ("state", UNDISTURBED, {Promise.STATE}),
        ("delay", attrs.evolve(UNDISTURBED, delay_rate=0.3), {Promise.LIMITS}),
        ("once", attrs.evolve(CROWD, once_rate=1, fail_rate=0), {Promise.DOUBLED}),
        ("redrive", attrs.evolve(UNDISTURBED, fail_rate=0.4, redrive_rate=1), {Promise.RESULT}),
        ("deadline", attrs.evolve(QUICK, runs=60, run_timeout_rate=0.6), {Promise.LIMITS}),
    ],
)
def test_a_campaign_finds_what_was_broken_on_purpose(
    tmp_path: Path, name: str, options: Options, expected: set[Promise]
) -> None:
    child = [sys.executable, "-m", "tests.stress.sabotage", name]
    verdict = stress(options, tmp_path, Console(quiet=True), child=child, most_kills=3)
    found = {violation.promise for violation in verdict.violations}
    assert found & expected, [str(each) for each in verdict.violations[:5]]


def test_a_child_that_ends_by_itself_is_reported_with_its_last_words(tmp_path: Path) -> None:
    words = "import sys; sys.exit('the disk is on fire')"
    verdict = stress(QUICK, tmp_path, Console(quiet=True), child=[sys.executable, "-c", words])
    assert [each.promise for each in verdict.violations] == [Promise.ALIVE]
    assert "code 1: the disk is on fire" in str(verdict.violations[0])


def test_a_child_that_does_nothing_is_reported(tmp_path: Path) -> None:
    words = "import sys; sys.stdin.read()"
    verdict = stress(
        QUICK, tmp_path, Console(quiet=True), child=[sys.executable, "-c", words], timeout=0.3
    )
    assert "nothing happened for 0.3 s: 0 unfinished runs" in str(verdict.violations[0])


def test_the_command_gives_a_verdict_and_a_report(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    arguments = ["--keys=5", "--runs=20", "--seconds=2", "--crash-every=0.3", "--seed=11"]
    done = subprocess.run(
        [sys.executable, "-m", "keyrun.stress", *arguments, f"--json={report}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall("^yes  ", done.stdout, re.MULTILINE)) == len(Promise)
    assert "\x1b" not in done.stdout
    figures = json.loads(report.read_text())
    assert figures["ok"] is True
    assert figures["runs"] == sum(figures["states"].values()) <= 20
    assert not Path(figures["folder"]).exists()
    assert figures["command"].startswith("keyrun stress --keys 5 --runs 20 --steps 5 ")


def test_the_command_lists_violations_says_how_to_repeat_it_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = (sys.executable, "-m", "tests.stress.sabotage", "state")
    monkeypatch.setattr("keyrun.stress.entry.CHILD", child)
    folder = tmp_path / "kept"
    arguments = f"--keys 2 --runs 10 --crash-every 0 --seed 11 --store {folder}".split()
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 1
    assert f"NO   {Promise.STATE}\n" in done.output
    assert "key-0: its state is {}, but its finished steps add up to {'count': " in done.output
    assert "keyrun stress --keys 2 --runs 10 --steps 5" in done.output
    assert "--crash-every 0.0 --seconds 20.0 --committer inline --seed 11" in done.output
    assert (folder / "evidence.log").exists()


def test_the_command_refuses_a_folder_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    done = CliRunner().invoke(command, ["--store", str(tmp_path)])
    assert done.exit_code == 2
    assert "is not empty" in done.output


def test_a_child_does_all_that_is_left_and_says_so(tmp_path: Path) -> None:
    options = attrs.evolve(UNDISTURBED, keys=3, runs=30, cancel_rate=0.3, pause_rate=0.3)
    setup = Setup(
        planner="keyrun.stress.options:Options",
        options=attrs.asdict(options),
        workflow="keyrun.stress.child:job",
        folder=str(tmp_path),
        life=1,
        keys=options.keys,
        runs=options.runs,
        slots=4,
        submit_for=60.0,
        begun=[0, 0, 0],
        cancels=[],
        paused=[PlannedPause(number=0, whole_key=True, seconds=0.0)],
    )
    scene.planner = options
    log = scene.log = Log(tmp_path / "evidence.log")
    log.write(Mark.LIFE, 1)
    trio.run(Child(setup, log, job).live)
    log.close()
    campaign = Campaign(assign(options, tmp_path), CampaignRecord(options, options.keys))
    assert campaign.record.done
    assert campaign.record.acknowledged == len(campaign.record.reported) == 30
    assert judge(campaign, None, tmp_path).violations == ()


def test_on_a_terminal_there_is_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    drawn = StringIO()
    console = Console(file=drawn, force_terminal=True, width=60)
    assert stress(attrs.evolve(UNDISTURBED, runs=10), tmp_path, console).ok
    assert "0 kills" in drawn.getvalue()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue()).replace("\r", "\n")
    assert max(map(len, text.splitlines())) <= 60
