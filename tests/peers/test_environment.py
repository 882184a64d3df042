"""An environment is made once, and what stands in its way is told."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import environment
from benchmarks.peers.catalogue import KEYRUN, PEERS
from benchmarks.peers.environment import Missing, cache_folder, prepare

BY_NAME = {peer.name: peer for peer in PEERS}


class Client:
    """Stands in for pip and npm."""

    def __init__(self, complaint: str = "") -> None:
        self.calls: list[tuple[str, ...]] = []
        self.complaint = complaint

    def __call__(self, *command: str) -> None:
        self.calls.append(command)
        if self.complaint:
            raise Missing(self.complaint)
        if "venv" in command:
            folder = Path(command[-1])
            (folder / "bin").mkdir(parents=True)
            (folder / "bin" / "python").symlink_to(sys.executable)


def test_keyrun_runs_in_the_environment_that_measures() -> None:
    found = prepare(KEYRUN, Path("unused"))
    assert found.python == sys.executable
    assert found.versions["keyrun"]


def test_a_peer_is_installed_with_pinned_packages_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    monkeypatch.setattr(environment, "_client", client)
    prepare(BY_NAME["huey"], tmp_path)
    assert [call[2] for call in client.calls] == ["venv", "pip"]
    prepare(BY_NAME["huey"], tmp_path)
    assert len(client.calls) == 2


def test_an_environment_that_was_not_finished_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client("no such package")
    monkeypatch.setattr(environment, "_client", client)
    for _ in range(2):
        with pytest.raises(Missing, match="no such package"):
            prepare(BY_NAME["huey"], tmp_path)
    assert len(client.calls) == 2


def test_a_server_that_is_not_there_is_missing_and_nothing_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    monkeypatch.setattr(environment, "_client", client)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match="Redis is not installed"):
        prepare(BY_NAME["dramatiq"], tmp_path)
    assert client.calls == []


def test_a_client_that_is_not_there_is_named() -> None:
    with pytest.raises(Missing, match="there is no keyrun-no-such-client here"):
        environment._client("keyrun-no-such-client")


def test_what_a_client_complains_of_is_the_reason() -> None:
    code = "import sys; print('ERROR: no such package', file=sys.stderr); sys.exit(1)"
    with pytest.raises(Missing, match="cannot be installed: ERROR: no such package"):
        environment._client(sys.executable, "-c", code)


def test_a_client_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("pip", 600)

    monkeypatch.setattr(subprocess, "run", slow)
    with pytest.raises(Missing, match="within 600 seconds"):
        environment._client("pip")


def test_the_place_of_environments_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYRUN_PEERS", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
    monkeypatch.delenv("KEYRUN_PEERS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "keyrun-peers"


def test_every_package_of_every_peer_is_pinned() -> None:
    for peer in PEERS:
        if peer.requirements is not None:
            text = (environment.REQUIREMENTS / f"{peer.requirements}.txt").read_text()
            assert all("==" in line for line in text.splitlines())
            assert any(line.startswith(f"{peer.package}==") for line in text.splitlines())
