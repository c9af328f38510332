"""`pteforge reproduce`: a file of a release is made again from what its manifest records, and compared."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace

import pytest

pytestmark = pytest.mark.slow

NAME = "net/apart"


def git(folder, *arguments):
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def original(tmp_path_factory, make_project, lower):
    """A zoo in a folder of a repository, and a file that was made of it with another width."""
    folder = tmp_path_factory.mktemp("published") / "repository"
    project = make_project(folder / "zoo")
    apart = {"output": {"external_data": True}, "specializations": [{"target": "portable"}], "not_for": {"other": "no"}}
    models = {"net": "nets:linear", "other": "nets:conv"}
    project.write_zoo(models, ("apart", "portable-fp32"), {"apart": apart})
    project.write(".gitignore", "store/\nout/\nshared/\n__pycache__/\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "a zoo")
    changes = ("models.net.source={builder: nets:linear, kwargs: {width: 16}}",)
    assert lower(project, *changes, models="net", recipes="apart").outcome.exit_code == 0
    return project


@pytest.fixture
def made(original, tmp_path):
    """The zoo in a clone of the repository, in another folder and with an empty store, with the file that was made."""
    git(tmp_path, "clone", "-q", str(original.folder.parent), "clone")
    project = replace(original, folder=tmp_path / "clone" / "zoo")
    shutil.copytree(original.out, project.out)
    project.store.mkdir()
    return project


def change_provenance(project, **run):
    """Changes what the provenance says of the file's run; `toolchain` is next to it."""
    path = project.out / f"{NAME}.json"
    provenance = json.loads(path.read_text())
    provenance["toolchain"] |= run.pop("toolchain", {})
    provenance["run"] |= run
    path.write_text(json.dumps(provenance))


def test_reproduced(made):
    """In another folder, from the recorded zoo and not from the present one, without the user's store: equal bytes."""
    assert made.run("publish", "out", "--to", "shared").code == 0
    done = made.run("reproduce", "shared", NAME)
    assert (done.code, done.err.count("error")) == (0, 0), done.err
    assert done.out.startswith("reproduced net/apart of 20")
    assert not any((made.store / "ledger").rglob("*"))


def test_not_reproduced(made):
    """A file that comes out with other bytes ends with 1, and the words of `pteforge diff`."""
    request = json.loads((made.out / f"{NAME}.json").read_text())["run"]["request"]
    request["zoo"]["models"]["net"]["source"]["kwargs"]["width"] = 32
    change_provenance(made, request={**request, "machine": "an abacus"})
    assert made.run("publish", "out", "--to", "shared").code == 0
    (manifest,) = (made.folder / "shared" / "releases").iterdir()
    done = made.run("reproduce", str(manifest), NAME)
    assert done.code == 1, done.err
    for part in ("net/apart: changed", "weights (.ptd)", "constants", "an abacus", "is export:"):
        assert part in done.out
    assert done.out.endswith(f"net/apart of {manifest.stem} is not reproduced\n")


def test_refused(made, pteforge):
    """Sources and versions that are not those of the release are named, all at once, with what to do."""
    commit = git(made.folder, "rev-parse", "HEAD")
    change_provenance(made, version="9.9", toolchain={"torch": "1.0 (0123)", "abacus": "3"})
    pteforge(made, "publish", "out", "--to", "shared")
    again = ("reproduce", "shared#latest", NAME)
    versions = ("pip install 'pteforge==9.9'", "torch 1.0 (0123): here is 2", "'torch==1.0'", "abacus 3: here is none")
    pteforge(made, *again).refused(*versions)
    git(made.folder, "commit", "-qm", "later", "--allow-empty")
    later = git(made.folder, "rev-parse", "HEAD")
    pteforge(made, *again).refused(f"git commit {commit}: here is {later}", f"checkout {commit}", *versions)
    pteforge(made, *again, "--source", "/").refused(f"git commit {commit}: /zoo is in no repository", "--source")
    change_provenance(made, commit=f"{commit}-dirty")
    pteforge(made, "publish", "out", "--to", "shared")
    pteforge(made, *again).refused(f"git commit {commit} with changes that were not committed", f"here is {later}")
    change_provenance(made, commit=f"{later}-dirty")
    pteforge(made, "publish", "out", "--to", "shared")
    same = pteforge(made, *again)
    same.refused(f"git commit {later} with changes that were not committed", "is checked out")
    assert " checkout " not in same.err
    change_provenance(made, commit=later)
    pteforge(made, "publish", "out", "--to", "shared")
    made.write("nets.py", (made.folder / "nets.py").read_text() + "\n")
    changed = pteforge(made, *again)
    changed.refused(f"git commit {later}: it is checked out, and tracked files are changed", "stash")
    assert " checkout " not in changed.err
    git(made.folder, "checkout", "nets.py")
    change_provenance(made, request=None)
    pteforge(made, "publish", "out", "--to", "shared")
    pteforge(made, *again).refused("does not record what it was made from", "publish it again")
    pteforge(made, "reproduce", "shared", "net/other").refused("there is no net/other", "it has net/apart")
    pteforge(made, "reproduce", "nowhere#latest", NAME).refused("there is no folder nowhere")
    pteforge(made, "reproduce", "shared#beta", NAME).refused("no channel or release 'beta'")
