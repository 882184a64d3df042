"""What people install: one import package, with everything in it and nothing else."""

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.keyrun.serving import serving

ROOT = Path(__file__).parent.parent
FOLDERS = ("actors", "keyrun", "runtime", "storage")
BUILD = "import sys, setuptools.build_meta as b; getattr(b, 'build_' + sys.argv[1])(sys.argv[2])"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git tracks: what lies about in a checkout is not packaged."""
    copy = tmp_path_factory.mktemp("clean")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, found.stdout.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


def build(kind: str, source: Path, into: Path) -> Path:
    into.mkdir()
    command = [sys.executable, "-c", BUILD, kind, str(into)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = into.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", clean, tmp_path_factory.mktemp("built") / "wheel")


def installed(clean: Path) -> set[str]:
    """The names that the wheel must have: every module of the four folders, and its data."""
    names = {"keyrun/py.typed", "keyrun/control/openapi.json"}
    names |= {f"keyrun/page/{path.name}" for path in (clean / "keyrun/page").iterdir()}
    for folder in FOLDERS:
        for path in (clean / folder).rglob("*.py"):
            name = path.relative_to(clean).as_posix()
            names.add(name if folder == "keyrun" else f"keyrun/{name}")
    return {name for name in names if not name.startswith("keyrun/keyrun/")}


def modules_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_a_wheel_holds_every_module_below_one_package(clean: Path, wheel: Path) -> None:
    assert modules_in(wheel) == installed(clean)


def test_a_source_distribution_builds_the_same_wheel(clean: Path, tmp_path: Path) -> None:
    archive = build("sdist", clean, tmp_path / "sdist")
    with tarfile.open(archive) as unpacked:
        unpacked.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert modules_in(build("wheel", source, tmp_path / "wheel")) == installed(clean)


def test_a_wheel_works_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    """Also from the folder above a checkout, which has a folder called `keyrun` in it."""
    (tmp_path / "keyrun").mkdir()
    code = "from keyrun import Context; import keyrun.storage; print(keyrun.storage.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, sys.argv[1]); {code}", str(wheel)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(wheel) in done.stdout


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel, and with the libraries of this one. The clone is not on
    its path, because the files that say where it is are read in an environment of their own only.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin/python"
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([python, "-c", purelib], check=True, capture_output=True, text=True)
    libraries = Path(found.stdout.strip()) / "libraries.pth"
    libraries.write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet", "--no-deps"]
    forced = ["--no-index", "--ignore-installed", str(wheel)]
    subprocess.run([*pip, *forced], check=True, capture_output=True)
    return folder


def test_the_description_of_the_http_api_is_installed(environment: Path, tmp_path: Path) -> None:
    code = """
from importlib.resources import files
import json, keyrun
found = files("keyrun.control").joinpath("openapi.json")
print(found)
print(json.loads(found.read_text())["openapi"])
"""
    command = [str(environment / "bin/python"), "-P", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    path, version = done.stdout.splitlines()
    assert Path(path).is_relative_to(environment)
    assert version == "3.1.0"


def test_an_application_is_served_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    source = "import keyrun, sys\nprint(keyrun.__file__, file=sys.stderr)\napp = keyrun.App()\n"
    command = environment / "bin/keyrun"
    with serving(tmp_path, "--http", "127.0.0.1:0", source=source, command=command) as server:
        server.announced()
        server.until("/readyz", (200, "ok"))
        assert server.call("GET", "/v1/openapi.json")["openapi"] == "3.1.0"
        for path in (ROOT / "keyrun/page").iterdir():
            place = "/" if path.name == "index.html" else f"/page/{path.name}"
            assert server.get(place) == (200, path.read_text()), "a file of the web page"
        server.process.terminate()
        assert server.ended() == 0
    assert Path(server.errors[0].strip()).is_relative_to(environment)


def base() -> set[str]:
    """The distributions that come with Keyrun if no extra is named."""
    found: set[str] = set()
    todo = ["keyrun"]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            needed = [Requirement(each) for each in requires(name) or ()]
            todo += [
                canonicalize_name(each.name)
                for each in needed
                if each.marker is None or each.marker.evaluate({"extra": ""})
            ]
    return found


WITHOUT_EXTRAS = """
import sys

class Absent:
    absent = set(sys.argv[1:])

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())

import keyrun, keyrun.asyncio, keyrun.sync, keyrun.testing, keyrun.web
from keyrun.cli.group import COMMANDS, command

for name in COMMANDS:
    assert command.get_command(None, name)

@keyrun.workflow
async def greet(ctx, name: str) -> str:
    return f"hello {name}"

with keyrun.sync.open_runtime("state", workflows=[greet]) as rt:
    print(rt.submit(greet, "ann", key="ann").result())
for options in ({"control": True}, {"when_locked": "join"}):
    try:
        with keyrun.sync.open_runtime("state", workflows=[greet], **options):
            pass
    except keyrun.errors.MissingExtra as error:
        print(error)
"""


def test_without_extras_programs_and_commands_work_and_errors_name_the_extra(
    tmp_path: Path,
) -> None:
    installed = base()
    absent = [
        module
        for module, names in packages_distributions().items()
        if not any(canonicalize_name(name) in installed for name in names)
    ]
    assert "anyio" in absent
    command = [sys.executable, "-c", WITHOUT_EXTRAS, *absent]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result, control, join = done.stdout.splitlines()
    assert result == "hello ann"
    assert control.startswith("control=True requires anycorn, which is not installed;")
    assert join.startswith("when_locked='join' requires anycorn, which is not installed;")
    assert control.endswith('pip install ".[control]"')
