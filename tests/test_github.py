"""What GitHub reads: workflows, forms, and the action for users, whose steps are run here as GitHub would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pteforge
import pytest
import yaml

ROOT = Path(pteforge.__file__).parent
BIN = Path(sys.executable).parent
ACTION = yaml.safe_load((ROOT / "export-action" / "action.yml").read_text(encoding="utf-8"))

NETS = """\
import torch


def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), (torch.ones(1, 4),)
"""
ZOO = "version: 1\nmodels: {net: {source: nets:net, recipes: [portable-fp32]}}\n"

# There is no GitHub here: this keeps what it is asked.
GH = """\
#!/bin/sh
printf '%s\\n' "$GH_REPO" "$GH_TOKEN" "$@" >"$ASKED"
cat "${@: -1}" >"$ASKED.body"
"""


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-actions", "export-action/action.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_files_for_github_are_valid(schema, files):
    """Each has the fields that GitHub knows."""
    found = sorted(ROOT.glob(files))
    assert found
    command = [BIN / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", *found]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_versions_are_those_of_the_package():
    """The citation, the action and its documentation name this version, and the torch and Python that it is for."""
    lock = (ROOT / "requirements/lock.txt").read_text(encoding="utf-8")
    (torch,) = re.findall(r"^torch==\S+$", lock, re.MULTILINE)
    assert any(f"pip install {torch} " in step.get("run", "") for step in ACTION["runs"]["steps"])
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == pteforge.__version__
    page = (ROOT / "docs" / "how-to" / "pull-requests.md").read_text(encoding="utf-8")
    assert f"export-action@v{pteforge.__version__} " in page
    assert re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE) == list(ACTION["inputs"])
    image = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]["ci"]["container"]
    assert image == f"python:{ACTION['inputs']['python-version']['default']}-bookworm"


class Job:
    """The steps of the action in a clone, on a pull request, one after another."""

    def __init__(self, room: Path, base: str, **inputs: str) -> None:
        self.temp, self.base = room / "temp", base
        self.temp.mkdir()
        (room / "bin").mkdir()
        (room / "bin" / "gh").write_text(GH.replace("/bin/sh", "/bin/bash"))
        (room / "bin" / "gh").chmod(0o755)
        self.summary, self.asked = self.temp / "summary", self.temp / "asked"
        self.environment = os.environ | {
            "PATH": f"{room / 'bin'}:{BIN}:{os.environ['PATH']}",
            "PIP_NO_INDEX": "1",  # all is here
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "ASKED": str(self.asked),
        }
        self.known = {
            **{f"inputs.{name}": given.get("default", "") for name, given in ACTION["inputs"].items()},
            **{f"inputs.{name.replace('_', '-')}": value for name, value in inputs.items()},
            "inputs.token": "a-token",
            "runner.temp": str(self.temp),
            "github.repository": "somebody/models",
            "github.server_url": "https://github.com",
            "github.run_id": "7",
            "github.event_name": "pull_request",
            "github.event.pull_request.number": "12",
            "github.event.pull_request.base.sha": base,
            "steps.export.outputs.failed": "",
            "steps.compare.outputs.failed": "",
        }

    def filled(self, text: str) -> str:
        """A text with the values of its expressions."""
        return re.sub(r"\$\{\{ (\S+) \}\}", lambda found: self.known[found[1]], text)

    def due(self, condition: str) -> bool:
        """Whether a step runs; conditions are comparisons with texts."""
        python = re.sub(r"[\w.-]+(?= [!=]=)", lambda found: repr(self.known[found[0]]), condition)
        return eval(python.replace("&&", "and").replace("||", "or"), {})  # noqa: S307 - the action is ours

    def run(self, step: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
        """Runs a step in a folder as the runner does, and keeps its outputs."""
        outputs = self.temp / "outputs"
        outputs.write_text("")
        own = {name: self.filled(value) for name, value in step["env"].items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder,
            env=self.environment | own | {"GITHUB_OUTPUT": str(outputs)},
            capture_output=True,
            text=True,
            check=False,
        )
        for line in outputs.read_text().splitlines():
            name, _, value = line.partition("=")
            self.known[f"steps.{step['id']}.outputs.{name}"] = value
        return done

    def run_all(self, folder: Path) -> list[str]:
        """Runs all steps with a script; returns the names of those that failed."""
        steps = [step for step in ACTION["runs"]["steps"] if "run" in step and self.due(step.get("if", "True"))]
        done = {step["name"]: self.run(step, folder) for step in steps}
        print(*(each.stdout + each.stderr for each in done.values()), sep="\n")  # noqa: T201 - for a test that fails
        return [name for name, each in done.items() if each.returncode]


@pytest.fixture
def clone(tmp_path: Path) -> tuple[Path, str]:
    """A clone of a repository with a zoo, and the commit that it is at."""

    def git(*arguments: str | Path) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q", "origin")
    (tmp_path / "origin" / "nets.py").write_text(NETS)
    (tmp_path / "origin" / "zoo.yaml").write_text(ZOO)
    git("-C", "origin", "add", ".")
    git("-C", "origin", "commit", "-qm", "a zoo")
    git("clone", "-q", f"file://{tmp_path}/origin", "clone")
    return tmp_path / "clone", git("-C", "origin", "rev-parse", "HEAD")


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_action_comments_on_what_has_changed(clone, tmp_path):
    """A pull request with wider layers gets a plan, and one comment with the difference; a limit fails the job."""
    folder, base = clone
    (folder / "nets.py").write_text(NETS.replace("Linear(4, 3)", "Linear(4, 64)"))
    job = Job(tmp_path, base, zoo="zoo.yaml", fail_on="growth=2%", options="--recipe portable-*")
    assert job.run_all(folder) == ["Result"]  # the file has grown
    assert "will run net export" in job.summary.read_text()
    asked = job.asked.read_text().splitlines()
    assert asked[:5] == ["somebody/models", "a-token", "pr", "comment", "12"]
    body = Path(f"{job.asked}.body").read_text()
    assert "net/portable-fp32: changed" in body
    assert body.startswith("# From before to out\n")
    assert "the file grew by" in body
    assert "[The page about the run](https://github.com/somebody/models/actions/runs/7)" in body
    assert body in job.summary.read_text()
    assert (Path(job.known["steps.export.outputs.out"]) / "index.html").is_file()
    assert (tmp_path / "temp" / "before" / "net" / "portable-fp32.pte").is_file()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_action_says_what_fails(clone, tmp_path):
    """Where the export fails, the comment says so before the job fails; a new zoo has nothing to be compared with."""
    folder, base = clone
    (folder / "nets.py").write_text(NETS + "\n\ndef broken():\n    raise RuntimeError('no weights')\n")
    (folder / "new.yaml").write_text(ZOO.replace("}}", "}, other: {source: nets:broken, recipes: [portable-fp32]}}"))
    job = Job(tmp_path, base, zoo="new.yaml")
    assert job.run_all(folder) == ["Result"]
    body = Path(f"{job.asked}.body").read_text()
    assert "**export ended with 1.**" in body
    assert body.startswith("There are no files to compare with.\n")
    assert (tmp_path / "temp" / "out" / "net" / "portable-fp32.pte").is_file()
