"""The image and the compose file, checked without a Docker engine: by linters, and against what they refer to."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pteforge
import pytest
import yaml
from compose_spec import PyCompose
from pteforge.artifacts.records import signing_key
from pteforge.flows.releases.records import sign_manifest, verify_manifest

ROOT = Path(pteforge.__file__).parent
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
ENTRYPOINT = DOCKER / "entrypoint"
COMPOSE = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
PROGRAMS = Path(sys.executable).parent
MOUNTED = "/run/secrets/"


def lint(dockerfile: str) -> str:
    """What hadolint says, with an exit code of 1 for any finding."""
    done = subprocess.run(
        [PROGRAMS / "hadolint", "--no-color", "-"], input=dockerfile, capture_output=True, text=True, check=False
    )
    assert done.returncode == bool(done.stdout), done.stderr
    return done.stdout


def instructions(name: str) -> list[str]:
    """The arguments of each such instruction of the Dockerfile, in order, on one line each."""
    return re.findall(rf"^{name} (.*)$", DOCKERFILE.replace("\\\n", ""), re.MULTILINE)


def test_dockerfile_has_no_findings():
    """hadolint, with ShellCheck for the commands, finds nothing."""
    assert lint(DOCKERFILE) == ""


@pytest.mark.parametrize(
    ("good", "bad", "rule"),
    [
        ("python:3.11.14-slim-bookworm", "python:latest", "DL3007"),
        ("USER 10001", "USER root", "DL3002"),
        ("--no-cache-dir", "", "DL3042"),
        ("tini=0.19.*", "tini", "DL3008"),
        ('["tini", "--", "entrypoint"]', "tini -- entrypoint", "DL3025"),
    ],
)
def test_the_linter_is_strict(good: str, bad: str, rule: str):
    """It would find what must not be in the file: a moving base, root, pip's cache, unpinned packages, a shell form."""
    assert good in DOCKERFILE
    assert rule in lint(DOCKERFILE.replace(good, bad))


def test_image_is_for_this_package():
    """Python is what pyproject.toml asks for, and torch that of the lock file; nobody compiles or is root finally."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bases = {stage.split()[0] for stage in instructions("FROM")}
    assert bases == {"python:3.11.14-slim-bookworm"}
    assert project["requires-python"] == ">=3.11,<3.15"
    lock = (ROOT / "requirements/deploy.txt").read_text(encoding="utf-8").splitlines()
    (torch,) = (pinned for pinned in lock if pinned.startswith("torch=="))
    assert f"pip install --no-cache-dir --no-deps {torch} " in DOCKERFILE
    assert int(instructions("USER")[-1]) > 0
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    assert not re.search(r"\b(gcc|g\+\+|make|build-essential|pip install)\b", final)


def test_dependencies_come_before_the_source():
    """A change of the source builds no layer of dependencies again; these have the versions of the lock file."""
    source = DOCKERFILE.index("COPY . .")
    installs = [found.start() for found in re.finditer("pip install", DOCKERFILE)]
    assert [start > source for start in installs] == [False, False, False, True]
    assert "pip install --no-cache-dir --no-deps --no-build-isolation ." in DOCKERFILE[source:]
    assert all('--constraint "requirements/$LOCK"' in DOCKERFILE[start:].partition("\n")[0] for start in installs[1:3])


def test_dependencies(tmp_path):
    """What is installed before the source is there is what pyproject.toml asks for, with the extras that are named."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    def dependencies(extras: str) -> subprocess.CompletedProcess[str]:
        command = [DOCKER / "dependencies", extras]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    extras, lock = (build.partition("=")[2] for build in instructions("ARG") if build.startswith(("EXTRAS=", "LOCK=")))
    assert (ROOT / "requirements" / lock).is_file()
    for named in (extras, "s3,signing", ""):
        done = dependencies(named)
        wanted = [line for extra in named.split(",") if extra for line in project["optional-dependencies"][extra]]
        assert done.stdout.splitlines() == project["dependencies"] + wanted
    done = dependencies("s4")
    assert done.returncode == 1
    assert "no extra 's4'" in done.stderr


def test_build_context_has_what_is_needed():
    """Every file that is copied, and every part of the package, exists and passes .dockerignore; no secret does."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    allowed = [line[1:] for line in lines if line.startswith("!")]
    copied = {source for copy in instructions("COPY") if "--from" not in copy for source in copy.split()[:-1]} - {"."}
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {
        package.replace(".", "/").removeprefix("pteforge").strip("/")
        for package in setup["tool"]["setuptools"]["packages"]
    }
    needed = copied | packages | {setup["project"]["readme"], *setup["project"]["license-files"], "pyproject.toml"}
    needed |= {path.name for path in ROOT.glob("*.py")} | {"py.typed"}
    for path in needed - {""}:
        assert (ROOT / path).exists(), path
        assert any(Path(path).is_relative_to(line) for line in allowed), path
    assert [line for line in allowed if Path("docker/secrets").is_relative_to(line)] == []


def interpolated(environment: dict[str, str]) -> str:
    """The compose file with its variables replaced, as Compose does it. All of them have defaults."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: environment.get(found[1]) or found[2], COMPOSE)


def parse(text: str) -> dict[str, Any]:
    """Reads YAML, with its merge keys, and checks it against the Compose specification."""
    tree: dict[str, Any] = PyCompose.from_json(json.dumps(yaml.safe_load(text))).to_dict()
    return tree


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file as a tree, once a strict parser of the Compose specification has accepted it."""
    text = interpolated({})
    assert "$" not in text
    return parse(text)


@pytest.mark.parametrize(("good", "bad"), [("restart:", "restrat:"), ("service_healthy", "healthy"), ("5s", "5 sec")])
def test_the_parser_is_strict(good: str, bad: str):
    """It refuses unknown fields, conditions and durations."""
    with pytest.raises(ValueError, match=r"duration|variant|x-"):
        parse(interpolated({}).replace(good, bad))


def test_services(compose):
    """All images are pinned, all services restart, and what another service waits for has a health check."""
    services = compose["services"]
    assert set(services) == {"database", "store", "server", "setup", "deploy", "worker"}
    for name, service in services.items():
        tag = service["image"].partition(":")[2]
        assert tag, name
        assert tag != "latest", name
        assert service["restart"] in {"unless-stopped", "on-failure"}, name
    assert [name for name in services if "healthcheck" not in services[name]] == ["worker"]  # has the image's
    assert [name for name in services if services[name]["restart"] == "on-failure"] == ["setup", "deploy"]  # they end
    waited = {
        (name, other, wait["condition"])
        for name, service in services.items()
        for other, wait in service.get("depends_on", {}).items()
    }
    assert waited == {
        ("server", "database", "service_healthy"),
        ("setup", "server", "service_healthy"),
        ("setup", "store", "service_healthy"),
        ("deploy", "setup", "service_completed_successfully"),
        ("worker", "setup", "service_completed_successfully"),  # and not for a zoo that cannot be deployed
    }


def test_number_of_workers():
    """An installation of any size comes from one variable."""
    tree = parse(interpolated({"WORKERS": "7"}))
    assert tree["services"]["worker"]["deploy"]["replicas"] == 7


def test_limits_of_workers():
    """Each worker has its share of the machine, and runs as many stages at once as it has cores."""
    services = parse(interpolated({"WORKER_CPUS": "4", "WORKER_MEMORY": "12g"}))["services"]
    limits = services["worker"]["deploy"]["resources"]["limits"]
    assert (str(limits["cpus"]), limits["memory"]) == ("4.0", "12gb")
    assert "--jobs=4" in services["deploy"]["command"]


def test_settings_of_the_server(compose):
    """Prefect knows the settings: old runs are deleted, and leases are in a volume, so that a restart loses none."""
    server = compose["services"]["server"]
    environment = {name: str(value) for name, value in server["environment"].items() if not name.endswith("_FILE")}
    home = re.search(r"PREFECT_HOME=(\S+)", DOCKERFILE)[1]
    program = """if True:
        import json
        from prefect.server.concurrency.lease_storage import get_concurrency_lease_storage
        from prefect.settings import get_current_settings
        vacuum = get_current_settings().server.services.db_vacuum
        leases = str(get_concurrency_lease_storage().storage_path)
        print(json.dumps([sorted(vacuum.enabled), vacuum.retention_period.days, leases]))
    """
    environment |= {"PREFECT_HOME": home, "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    enabled, days, leases = json.loads(done.stdout)
    assert (enabled, days) == (["events", "flow_runs"], 30)
    assert f"leases:{leases}" in server["volumes"]
    made = DOCKERFILE.replace("\\\n", "")
    assert re.search(rf"install -d -o pteforge -g pteforge [^&]*{leases}\b", made)  # a new volume takes its owner


def test_ports_are_private(compose):
    """Nothing is open to the network until somebody asks for it."""
    ports = [str(port) for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") or "'host_ip': '127.0.0.1'" in port for port in ports)


def test_data_is_in_named_volumes(compose):
    """Every volume but the zoo is declared, and every declared one is used."""
    mounts = [mount.split(":")[0] for service in compose["services"].values() for mount in service.get("volumes", [])]
    assert set(mounts) == set(compose["volumes"]) | {"../examples/zoo"}
    assert (DOCKER / "../examples/zoo/starter.yaml").resolve().exists()


def test_secrets_are_files(compose, tmp_path):
    """No secret is a value: each is a file that docker/make-secrets makes, mounted where it is read."""
    subprocess.run([DOCKER / "make-secrets", tmp_path / "secrets"], check=True)
    made = {path.name for path in (tmp_path / "secrets").iterdir()} - {"release_key.pub"}  # for others
    assert {name: Path(secret["file"]).name for name, secret in compose["secrets"].items()} == {n: n for n in made}
    for service in compose["services"].values():
        given = service.get("secrets", [])
        texts = [str(value) for value in service.get("environment", {}).values()] + service.get("command", [])
        read = {text.partition(MOUNTED)[2] for text in texts if MOUNTED in text}
        assert read == set(given) - {"release_key"}  # which zoo files name
        for name in service.get("environment", {}):
            assert name.endswith("_FILE") or not re.search("PASSWORD|SECRET|AUTH|_KEY", name), name


def test_make_secrets(tmp_path, monkeypatch):
    """Keys come in pairs that fit; others on this machine see nothing; a second call changes nothing."""
    folder = tmp_path / "secrets"
    subprocess.run([DOCKER / "make-secrets", folder], check=True)
    made = {path.name: path.read_text() for path in folder.iterdir()}
    assert folder.stat().st_mode & 0o777 == 0o700
    (identity,) = json.loads(made["s3_identities"])["identities"]
    assert identity["credentials"][0]["secretKey"] in made["aws_credentials"]
    monkeypatch.setenv("PTEFORGE_SIGNING_KEY", made["signing_key"].strip())
    assert signing_key("s3://pteforge/store")
    signature = sign_manifest(b"{}", folder / "release_key")
    verify_manifest(b"{}", signature, folder / "release_key.pub", "a release")
    subprocess.run([DOCKER / "make-secrets", folder], check=True)
    assert made == {path.name: path.read_text() for path in folder.iterdir()}


def enter(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the entry point."""
    known = {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "HOME": os.environ.get("HOME", "/"), "COLUMNS": "200"}
    return subprocess.run(
        [ENTRYPOINT, *command], env=known | environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_secrets_reach_the_command(tmp_path):
    """NAME_FILE becomes NAME, without the end of the line; names of AWS's files are left alone."""
    (tmp_path / "secret").write_text("a $word `and` more\n")
    names = ["PREFECT_SERVER_DATABASE_PASSWORD", "PREFECT_API_AUTH_STRING", "PTEFORGE_SIGNING_KEY"]
    files = dict.fromkeys([f"{name}_FILE" for name in names], str(tmp_path / "secret"))
    done = enter("env", **files, AWS_SHARED_CREDENTIALS_FILE="/a")
    seen = done.stdout.splitlines()
    assert {f"{name}=a $word `and` more" for name in names} <= set(seen)
    assert not any(line.startswith("AWS_SHARED_CREDENTIALS=") for line in seen)


@pytest.mark.parametrize("content", [None, ""])
def test_missing_secrets(tmp_path, content):
    """A secret that is not there ends the container with a message that says which, and how to make it."""
    if content is not None:
        (tmp_path / "key").write_text(content)
    done = enter("true", PTEFORGE_SIGNING_KEY_FILE=str(tmp_path / "key"))
    assert done.returncode == 1
    assert f"PTEFORGE_SIGNING_KEY_FILE: {tmp_path}/key is empty or cannot be read" in done.stderr
    assert "docker/make-secrets" in done.stderr


@pytest.mark.parametrize("command", ["prefect worker start", "prefect server start", "pteforge deploy"])
def test_commands_exist(compose, command):
    """Every command of the entry point exists, with every option that it is given."""
    script = ENTRYPOINT.read_text(encoding="utf-8").replace("\\\n", " ")
    used = re.findall(rf"{command} .*--.*", script)
    options = set(re.findall(r"--[a-z-]+", " ".join(used)))
    if command == "pteforge deploy":
        options |= {part.partition("=")[0] for part in compose["services"]["deploy"]["command"] if part[0] == "-"}
    assert options
    done = enter(*command.split(), "--help")
    assert done.returncode == 0, done.stderr
    known = set(re.findall(r"--[a-z-]+", done.stdout))
    assert {option for option in options if not any(name.startswith(option) for name in known)} == set()
