"""The example for Kubernetes: manifests and the pods of the charts' values are valid, and fit each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pteforge
import pytest
import yaml
from pteforge.flows.cli.main import app
from typer.main import get_command

FOLDER = Path(pteforge.__file__).parent / "examples" / "kubernetes"
VERSIONS = ("1.31", "1.37")
"""Of Kubernetes."""


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def manifests() -> dict[str, Any]:
    """Manifests by kind."""
    files = ("deploy.yaml", "without-prefect-server.yaml")
    return {made["kind"]: made for name in files for made in yaml.safe_load_all((FOLDER / name).read_text())}


def worker() -> dict[str, Any]:
    """The deployment that Prefect's chart makes of the values, as far as they say what is in it."""
    values = read("worker-values.yaml")["worker"]
    secrets = [{"secretRef": {"name": name}} for name in values["extraEnvVarsSecrets"]]
    auth = {"name": values["selfHostedServerApiConfig"]["basicAuth"]["existingSecret"], "key": "auth-string"}
    container = {
        "name": "prefect-worker",
        "image": f"{values['image']['repository']}:{values['image']['prefectTag']}",
        "command": values["command"],
        "args": values["args"],
        "env": [
            {"name": "PREFECT_API_URL", "value": values["selfHostedServerApiConfig"]["apiUrl"]},
            {"name": "PREFECT_API_AUTH_STRING", "valueFrom": {"secretKeyRef": auth}},
            *values["extraEnvVars"],
        ],
        "envFrom": secrets,
        "resources": values["resources"],
        "securityContext": values["containerSecurityContext"],
        "volumeMounts": [{"name": "scratch", "mountPath": "/home/prefect"}, *values["extraVolumeMounts"]],
    }
    pod = {
        "securityContext": values["podSecurityContext"],
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}, *values["extraVolumes"]],
    }
    labels = {"app.kubernetes.io/name": "prefect-worker"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "prefect-worker"},
        "spec": {
            "replicas": values["replicaCount"],
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def pods() -> Iterator[dict[str, Any]]:
    made = manifests()
    yield worker()["spec"]["template"]["spec"]
    yield made["Job"]["spec"]["template"]["spec"]
    yield made["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid(version):
    """Each manifest, and the deployment of workers, is what Kubernetes' own schema says, without unknown fields."""
    for made in (*manifests().values(), worker()):
        kubernetes_validate.validate(made, version, strict=True)
    wrong = worker()
    wrong["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_pods_fit_each_other():
    """One image, one zoo at one path, one pool; each mount has its volume; nothing runs as root or needs the API."""
    found = list(pods())
    assert len({container["image"] for pod in found for container in pod["containers"]}) == 1
    for pod in found:
        (container,) = pod["containers"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        (zoo,) = (mount for mount in container["volumeMounts"] if mount["name"] == "zoo")
        assert zoo["mountPath"] == "/srv/models"
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == 10001
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    claim = manifests()["PersistentVolumeClaim"]["metadata"]["name"]
    assert found[2]["volumes"][1]["persistentVolumeClaim"]["claimName"] == claim
    first, second = ({variable["name"]: variable for variable in pod["containers"][0]["env"]} for pod in found[:2])
    for name in ("WORK_POOL", "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        assert first[name] == second[name]
    values, server = read("worker-values.yaml")["worker"], read("server-values.yaml")
    assert values["config"]["workPool"] == first["WORK_POOL"]["value"]
    assert server["server"]["basicAuth"] == values["selfHostedServerApiConfig"]["basicAuth"]
    assert found[0]["containers"][0]["envFrom"] == found[1]["containers"][0]["envFrom"]


def test_commands_are_those_of_the_image():
    """Arguments are of the image's entry point, and options those that the commands have."""
    entrypoint = (FOLDER.parents[1] / "docker" / "entrypoint").read_text(encoding="utf-8")
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for pod in pods():
        name, *arguments = (text for text in pod["containers"][0]["args"] if text != "pteforge")
        options = {text.partition("=")[0] for text in arguments if text.startswith("--")}
        if name == "export":
            assert options <= {option for each in commands[name].params for option in each.opts}
        else:
            assert f"\n{name})\n" in entrypoint
            assert options <= {option for each in commands["deploy"].params for option in each.opts}


def test_the_server_has_the_version_of_the_image():
    """The server's Prefect is the one that pteforge is locked to."""
    locked = (FOLDER.parents[1] / "requirements" / "lock.txt").read_text(encoding="utf-8")
    tag = read("server-values.yaml")["global"]["prefect"]["image"]["prefectTag"]
    assert f"\nprefect=={tag.partition('-')[0]}\n" in locked
