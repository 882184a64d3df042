"""The files of `examples/deploy/` are valid, agree with each other, and name what exists."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from keyrun.cli.serve import command as serve
from keyrun.runtime.open import CUT_OFF
from tests.keyrun.serving import Serving, serving

DEPLOY = Path(__file__).parents[2] / "examples/deploy"
INSTRUCTIONS = {
    *("FROM", "COPY", "RUN", "WORKDIR", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL"),
    *("ENTRYPOINT", "CMD", "HEALTHCHECK"),
}


def dockerfile() -> dict[str, list[str]]:
    """The arguments of each instruction, in their order."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    found: dict[str, list[str]] = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            assert name in INSTRUCTIONS, line
            assert rest.strip(), line
            found.setdefault(name, []).append(rest.strip())
    return found


def manifest() -> dict[str, Any]:
    """The objects of the manifest, by kind."""
    parsed = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {each["kind"]: each for each in parsed}


def command_line() -> list[str]:
    """The command of the pod: the entrypoint of the image with the arguments of the manifest."""
    words: list[str] = json.loads(dockerfile()["ENTRYPOINT"][0])
    return words + list(map(str, container()["args"]))


def pod() -> Any:
    return manifest()["StatefulSet"]["spec"]["template"]["spec"]


def container() -> Any:
    (only,) = pod()["containers"]
    return only


def test_the_dockerfile_copies_what_exists_and_runs_as_no_root() -> None:
    found = dockerfile()
    assert next(iter(found)) == "FROM"
    copied = [words.split()[0] for words in found["COPY"]]
    assert copied == ["keyrun-*.whl", "service.py"]
    assert (DEPLOY / "service.py").exists()
    assert found["USER"] == ["10001:10001"]
    assert "useradd --uid 10001 " in found["RUN"][0]
    assert found["STOPSIGNAL"] == ["SIGTERM"]
    for run in found["RUN"]:
        assert shlex.split(run.replace("&&", ""))
    probe = json.loads(found["HEALTHCHECK"][0].partition("CMD ")[2])
    compile(probe[2], "the health check", "exec")
    assert f"http://127.0.0.1:{found['EXPOSE'][0]}/livez" in probe[2]


@pytest.mark.parametrize("source", ["CMD", "manifest"])
def test_the_options_exist(source: str) -> None:
    words = command_line()
    if source == "CMD":
        words = [
            word for each in ("ENTRYPOINT", "CMD") for word in json.loads(dockerfile()[each][0])
        ]
    assert words[:2] == ["keyrun", "serve"]
    given = serve.make_context("serve", words[2:]).params
    assert given["target"] == "service:app"
    assert given["json_logs"]
    assert given["drain_timeout"] == 30


def test_the_manifest_has_what_a_pod_needs() -> None:
    found = manifest()
    assert found.keys() == {"StatefulSet", "Service"}
    stateful, service = found["StatefulSet"], found["Service"]
    assert (stateful["apiVersion"], service["apiVersion"]) == ("apps/v1", "v1")
    assert stateful["spec"]["replicas"] == 1
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert stateful["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    (claim,) = stateful["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    (mount,) = container()["volumeMounts"]
    assert mount["name"] == claim["metadata"]["name"]
    assert mount["mountPath"] == dockerfile()["VOLUME"][0]
    context = pod()["securityContext"]
    assert context["runAsNonRoot"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == dockerfile()["USER"][0]
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_ports_paths_and_times_agree() -> None:
    words = command_line()
    (port,) = container()["ports"]
    assert words[words.index("--http") + 1] == f"0.0.0.0:{port['containerPort']}"
    assert dockerfile()["EXPOSE"] == [str(port["containerPort"])]
    (served,) = manifest()["Service"]["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    store = Path(words[words.index("--store") + 1])
    assert str(store.parent) == dockerfile()["VOLUME"][0], "a volume may have a lost+found"
    drain = float(words[words.index("--drain-timeout") + 1])
    assert pod()["terminationGracePeriodSeconds"] >= drain + CUT_OFF + 5
    for name in ("livenessProbe", "readinessProbe"):
        assert container()[name]["httpGet"]["port"] == port["name"]


def test_the_command_of_the_pod_answers_its_probes(tmp_path: Path) -> None:
    """The real command, with another directory and address."""
    words = command_line()
    rest = words[words.index("--http") + 2 :]
    source = (DEPLOY / "service.py").read_text()
    with serving(tmp_path, "--http", "127.0.0.1:0", *rest, source=source) as server:
        check_probes(server)


def check_probes(server: Serving) -> None:
    line = json.loads(server.until_logged('"serving"'))
    server.take(line["message"])
    for name in ("livenessProbe", "readinessProbe"):
        server.until(container()[name]["httpGet"]["path"], (200, "ok"))
    run = {"workflow": "checkout", "input": "ann", "key": "ann", "run_id": "order-7"}
    server.call("POST", "/v1/runs", run)
    assert server.call("GET", "/v1/runs/order-7?wait=30")["result"] == "receipt for ann"
    server.process.terminate()
    assert server.ended() == 0
