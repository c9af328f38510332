"""Releases: published from results, moved by channels if they pass gates, fetched whole or not at all."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pteforge.artifacts.digest import digest_file
from pteforge.artifacts.remote_files import RemoteFiles
from pteforge.errors import InputError, ReleaseDamaged, ReleaseError, StoreUnusable
from pteforge.flows.releases.contents import find_results, read_contents
from pteforge.flows.releases.releases import Releases
from pteforge.flows.reports.comparison import parse_limits
from pteforge.tests.contract.conftest import run_s3_server

WIDER = "models.net.source.kwargs.width=64"


@pytest.fixture(scope="module")
def lowered(lower_project):
    """A zoo with a plain file, and one whose weights are in a `.ptd`."""
    apart = {"output": {"external_data": True}, "specializations": [{"target": "portable"}]}
    model = {"source": {"builder": "nets:linear", "kwargs": {"width": 8}}}
    return lower_project({"net": model}, ("portable-fp32", "apart"), {"apart": apart})


@pytest.fixture(scope="module")
def grown(lowered, lower, tmp_path_factory):
    """The same with a wider layer: its store has both."""
    project = lowered[0].copy(tmp_path_factory.mktemp("grown") / "project")
    assert lower(project, WIDER).outcome.exit_code == 0
    return project


@pytest.fixture(scope="module")
def contents(lowered, grown):
    """What releases of both are made of."""
    return [read_contents("zoo", find_results(out), []) for out in (lowered[0].out, grown.out)]


@pytest.fixture
def releases(tmp_path):
    return Releases(str(tmp_path / "releases"))


@pytest.fixture
def stored(tmp_path):
    """The folder that `releases` is about."""
    return tmp_path / "releases"


@pytest.fixture
def keys(tmp_path):
    """Makes a pair of keys."""

    def make(name: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        private, public = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub"
        encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        private.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        public.write_bytes(key.public_key().public_bytes(encoding, form))
        return private, public

    return make


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_published_and_fetched(made, pteforge):
    """Fetched files are those of the export, in its layout, with the model's card."""
    done = pteforge(made, "publish", "out", "--to", "shared", "--json")
    assert done.code == 0
    assert (done.json["new"], done.json["moved"], done.json["channel"]) == (True, True, "latest")
    again = pteforge(made, "publish", "zoo.yaml", "--to", "shared", "--json").json
    assert (again["new"], again["moved"], again["release"]) == (False, False, done.json["release"])

    assert pteforge(made, "release", "fetch", "shared", "net/*", "-o", "got").code == 0
    got = files_in(made.folder / "got")
    card = got.pop("net/card.md").decode()
    assert got == {name: content for name, content in files_in(made.out).items() if "/" in name}
    assert digest_file(made.out / "net" / "apart.ptd") in card
    assert "| `portable-fp32` | portable kernels | forward |" in card

    (listed,) = (known := pteforge(made, "release", "list", "shared", "--json").json)["releases"]
    assert listed["files"] == ["net/apart", "net/portable-fp32"]
    assert listed["zoo"] == "zoo"
    (run,) = pteforge(made, "runs", "--json").json["runs"]
    assert {name: run[name] for name in listed["run"]} == listed["run"]
    assert known["channels"]["latest"]["release"] == listed["release"]
    assert listed["release"] in pteforge(made, "release", "list", "shared").out


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # the hub's own client
def test_a_repository_of_the_hub(made, grown, hub, pteforge):
    """A release is one commit, with files under their own names and a card; `fetch` and `rollback` work, too."""
    for name in ("apart", "portable-fp32"):
        described = json.loads((made.out / "net" / f"{name}.json").read_text())
        described["metadata"] = {"general.license": "mit", "general.source": "hf:org/base", "context.length": 8}
        (made.out / "net" / f"{name}.json").write_text(json.dumps(described, indent=2, sort_keys=True) + "\n")
    url = "hf://org/zoo"
    first = pteforge(made, "publish", "out", "--to", url, "--json").json["release"]
    assert hub.messages == ["Publish zoo"]
    files = hub.files("org/zoo")
    exported = {name: content for name, content in files_in(made.out).items() if "/" in name}
    assert {name: files[name] for name in exported} == exported
    assert len([request for request in hub.requests if request.startswith("PUT ")]) == 3  # each content once
    head, _, text = files["README.md"].decode().removeprefix("---\n").partition("\n---\n")
    assert yaml.safe_load(head) == {
        "license": "mit",
        "base_model": ["org/base"],
        "pipeline_tag": "text-generation",
        "library_name": "executorch",
        "tags": ["executorch", "pteforge"],
    }
    assert f"pteforge release fetch {url} 'net/apart' -o models" in text
    assert "| `portable-fp32` | portable kernels | forward |" in text
    assert "proven on: " in text
    assert "executorch 1." in text

    assert pteforge(made, "publish", "out", "--to", url, "--json").json["new"] is False
    assert len(hub.messages) == 1
    assert pteforge(made, "release", "fetch", url, "net/*", "-o", "got").code == 0
    assert {**exported, "net/card.md": b""} == {**files_in(made.folder / "got"), "net/card.md": b""}

    pteforge(made, "publish", str(grown.out), "--to", url)
    assert (len(hub.messages), hub.files("org/zoo")["net/apart.ptd"]) == (2, (grown.out / "net/apart.ptd").read_bytes())
    assert pteforge(made, "release", "rollback", url).code == 0
    assert hub.messages[2] == "Roll back latest"
    assert {name: hub.files("org/zoo")[name] for name in exported} == exported
    hub.push("org/zoo", "README.md", b"# My own card")
    (made.out / "net" / "apart.pte").unlink()
    pteforge(made, "publish", "out", "--to", url)
    assert hub.files("org/zoo")["README.md"] == b"# My own card"
    assert not any(name.startswith("net/apart") for name in hub.files("org/zoo"))

    listed = made.run("release", "list", url, "--json", env={"HF_ENDPOINT": hub.url, "PTEFORGE_STORE_OPTIONS": ""})
    assert first in [release["release"] for release in json.loads(listed.out)["releases"]]
    refused = made.run("publish", "out", "--to", "hf://org/new", env={"HF_TOKEN": "hf_wrong"})
    assert (refused.code, "hf auth login" in refused.err, "hf_wrong" in refused.err) == (2, True, False)


def test_a_hub_without_login(made, hub, monkeypatch, pteforge):
    """It is refused before any work, and so are addresses of something else."""
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN_PATH", str(made.folder / "none"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(made.folder / "none"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    refused = pteforge(made, "publish", "out", "--to", "hf://org/zoo")
    refused.refused("no token for hf://org/zoo: log in with `hf auth login`, or set HF_TOKEN")
    made.edit("zoo.yaml", "version: 1", "version: 1\npublish: {url: 'hf://org/zoo'}")
    pteforge(made, "export", "zoo.yaml").refused("zoo.yaml:2", "publish", "no token for hf://org/zoo")
    pteforge(made, "publish", "out", "--to", "hf://zoo").refused("write hf://ORG/NAME")
    assert hub.requests == []


def test_releases_are_compared(made, lowered, grown, tmp_path, pteforge):
    """`pteforge diff` compares releases like their files, and downloads only what has other bytes on the two sides."""
    after = grown.copy(tmp_path / "after")
    for file in lowered[0].out.glob("net/apart.*"):
        shutil.copy(file, after.out / "net")
    changed = json.loads((after.out / "net" / "apart.json").read_text())
    changed["findings"]["figures"]["overall"] |= {"sqnr_db": 12.5, "max_abs_error": 0.25}
    (after.out / "net" / "apart.json").write_text(json.dumps(changed))
    shutil.copytree(after.out / "net", after.out / "more")
    old, new = (
        pteforge(made, "publish", folder, "--to", "shared", "--json").json["release"] for folder in ("out", after.out)
    )
    for content in set(map(digest_file, after.out.glob("net/apart.pt*"))):
        (made.folder / "shared" / "files" / content).unlink()

    held = pteforge(made, "diff", f"shared#{old}", "shared", "--json", "--fail-on", "growth=2%,delegation")
    said = json.loads(held.out)
    assert said["models"] == {"added": ["more"], "removed": []}
    files = {file["name"]: file for file in said["files"]}
    assert [files[name]["status"] for name in sorted(files)] == ["added", "added", "changed", "changed"]
    equal = {(change["area"], change["name"]): change["after"] for change in files["net/apart"]["changes"]}
    assert equal == {("numerics", "SQNR, dB"): 12.5, ("numerics", "max abs error"): 0.25}
    assert {"file", "constants"} <= {change["area"] for change in files["net/portable-fp32"]["changes"]}
    assert len(said["regressions"]) == 1
    assert "the file grew by" in said["regressions"][0]

    same = pteforge(made, "diff", f"shared/releases/{new}.json", str(after.out))
    assert same.out == "no differences\n"
    back = pteforge(made, "diff", "shared#latest", f"shared#{old}")
    assert "model more: removed\nfiles: 2 changed, 2 removed\n" in back.out
    pteforge(made, "diff", "shared#beta", "out").refused("no channel or release 'beta'")


def test_gates_hold_a_release_back(made, grown, pteforge):
    """A grown file does not become `latest`: exit code 1, how much it grew, and the release is kept to be promoted."""
    first = pteforge(made, "publish", "out", "--to", "shared", "--json").json["release"]
    held = pteforge(made, "publish", str(grown.out), "--to", "shared", "--gate", "growth=2%")
    assert held.code == 1
    assert "net/portable-fp32: the file grew by" in held.err
    assert "at most 2 % is allowed" in held.err
    known = pteforge(made, "release", "list", "shared", "--json").json
    second, oldest = (listed["release"] for listed in known["releases"])
    assert oldest == first
    assert known["channels"]["latest"]["release"] == first

    for channel in ("stable", "latest"):
        done = pteforge(made, "release", "promote", "shared", second[-6:], "--channel", channel)
        assert done.out == f"{channel} is {second}\n"
    assert pteforge(made, "release", "promote", "shared", first, "--channel", "latest").code == 0
    for expected in (second, first):
        assert pteforge(made, "release", "rollback", "shared").out == f"latest is {expected}\n"
    pteforge(made, "release", "rollback", "shared").refused("named no release that is still there", first)
    pteforge(made, "release", "rollback", "shared", "--channel", "beta").refused("no channel 'beta'", "latest, stable")
    pteforge(made, "release", "promote", "shared", second, "--channel", "beta")
    pteforge(made, "release", "promote", "shared", first, "--channel", "beta")
    again = ("publish", str(grown.out), "--to", "shared", "--channel")
    allowed = pteforge(made, *again, "nightly", "--gate", "growth=900%", "--json").json
    assert (allowed["release"], allowed["new"], allowed["moved"]) == (second, False, True)


def test_rollback_stays(made, grown, pteforge):
    """Publishing never moves a channel to what was rolled back from: only `promote` does, and each command says so."""
    good, bad = ("publish", "out", "--to", "shared"), ("publish", str(grown.out), "--to", "shared")
    first, second = (pteforge(made, *night, "--json").json["release"] for night in (good, bad))
    back = pteforge(made, "release", "rollback", "shared")
    promote = f"pteforge release promote shared {second} --channel latest"
    assert back.out == f"latest is {first}\n"
    assert promote in back.err
    for night in (bad, good, bad):
        done = pteforge(made, *night)
        assert done.code == 0
        assert ("rolled back from" in done.out) == (promote in done.out) == (night is bad)
        named = pteforge(made, "release", "list", "shared", "--json").json["channels"]["latest"]["release"]
        assert named == first
    said = pteforge(made, *bad, "--json").json
    assert (said["release"], said["withdrawn"], said["current"], said["moved"]) == (second, True, first, False)
    assert pteforge(made, *bad, "--channel", "beta", "--json").json["moved"]
    assert "beta, rolled back from latest" in " ".join(pteforge(made, "release", "list", "shared").out.split())
    listed = pteforge(made, "release", "list", "shared", "--json").json["releases"]
    assert {entry["release"]: entry["withdrawn"] for entry in listed} == {first: [], second: ["latest"]}

    pteforge(made, "release", "promote", "shared", second, "--channel", "latest")
    assert not pteforge(made, *bad, "--json").json["withdrawn"]
    pteforge(made, "release", "promote", "shared", first, "--channel", "latest")
    assert pteforge(made, *bad, "--json").json["current"] == first


def test_what_was_rolled_back_from(contents, releases):
    """It counts by its files: also when another run made them, when its release is removed, and for all time."""
    good, bad = contents
    first, second = releases.publish(good).release, releases.publish(bad).release
    assert releases.roll_back("latest").release == first
    for run in range(3):
        net = bad.models["net"]
        files = {name: replace(file, provenance={"run": {"id": str(run)}}) for name, file in net.recipes.items()}
        again = replace(bad, models={"net": replace(net, recipes=files)})
        published = releases.publish(again, keep=1)
        assert (published.new, published.moved, published.withdrawn, published.current) == (True, False, True, first)
        assert (
            f"stays at {first}: these files are withdrawn: the channel was rolled back from them"
            in published.describe()
        )
    assert second not in releases.names()
    better = replace(good, zoo="better", models={**good.models, "more": good.models["net"]})
    assert releases.publish(better).moved
    assert releases.publish(again).withdrawn
    assert releases.promote(published.release, "latest").withdrawn == {}
    assert (releases.publish(better).moved, releases.publish(again).moved) == (True, True)
    assert releases.roll_back("latest").withdrawn.keys() == {releases.names()[-1]}


def test_uncommitted_changes_are_listed(contents, made, pteforge):
    """The list says of a commit whether there were changes that were not committed."""
    releases = Releases(str(made.folder / "shared"))
    for content, commit in zip(contents, ("a" * 40, "b" * 40 + "-dirty"), strict=True):
        releases.publish(replace(content, run={**content.run, "commit": commit}))
    said = pteforge(made, "release", "list", "shared").out
    assert "b" * 12 + "-dirty" in said
    assert "a" * 12 + " " in said


def test_rolled_back_from_a_damaged_release(contents, releases, stored):
    """A release whose manifest cannot be read can be rolled back from, and does not come back by its name."""
    first, second = (releases.publish(content).release for content in contents)
    manifest = stored / "releases" / f"{second}.json"
    intact = manifest.read_bytes()
    manifest.write_bytes(b"{}")
    assert releases.roll_back("latest").release == first
    manifest.write_bytes(intact)
    assert releases.publish(contents[1]).withdrawn
    assert releases.channel("latest").release == first


def test_a_crash_leaves_a_whole_release(contents, releases, stored, tmp_path, monkeypatch):
    """A writer that dies at any write leaves the channel at a release of which everything is there."""
    first, second = contents
    before = releases.publish(first).release
    called = RemoteFiles._call
    outcomes = set()
    for step in itertools.count(1):
        folder = tmp_path / f"crash-{step}"
        shutil.copytree(stored, folder)
        left = iter(range(step))

        def dying(files, participle, action, expected=None, left=left):
            if participle == "written" and next(left, None) is None:
                raise KeyboardInterrupt
            return called(files, participle, action, expected)

        with monkeypatch.context() as patch:
            patch.setattr(RemoteFiles, "_call", dying)
            try:
                Releases(str(folder)).publish(second, keep=1)
                died = False
            except KeyboardInterrupt:
                died = True
        shutil.rmtree(folder / "leases", ignore_errors=True)  # a dead holder's lease expires
        survivors = Releases(str(folder))
        release = survivors.find("latest")
        survivors.fetch(release, "*", folder / "got")
        outcomes.add(release == before)
        published = survivors.publish(second, keep=1)
        assert published.release == survivors.find("latest") != before
        assert set(survivors.names()) == {before, published.release}, "the one to roll back to is kept"
        if not died:
            break
    assert outcomes == {True, False}
    assert step > 20


# Publishes to folders: each line is a number and a folder. A child does it, and kills itself when it is about to make
# that change to the folder, counted by Python's audit events.
PUBLISHER = """
import os, signal, sys
from pathlib import Path
from pteforge.flows.releases.contents import find_results, read_contents
from pteforge.flows.releases.releases import Releases
contents = read_contents("zoo", find_results(Path(sys.argv[1])), [])
def die_at(change, folder):
    left = iter(range(change))
    def hook(event, details):
        writes = event in ("os.rename", "os.remove", "os.mkdir") or event == "open" and details[2] & os.O_ACCMODE
        if writes and str(details[0]).startswith(folder) and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
for line in sys.stdin:
    change, folder = line.split()
    child = os.fork()
    if not child:
        die_at(int(change), folder)
        Releases(folder).publish(contents, keep=1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_killed_publisher_leaves_a_whole_release(contents, grown, releases, stored, tmp_path):
    """The same for a process that gets SIGKILL before each change that it makes to the folder."""
    first, second = contents
    before = releases.publish(first).release
    outcomes, code = [], None
    command = [sys.executable, "-c", PUBLISHER, str(grown.out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as publisher:
        while code != 0:
            folder = tmp_path / f"killed-{len(outcomes)}"
            shutil.copytree(stored, folder)
            publisher.stdin.write(f"{len(outcomes)} {folder}\n")
            publisher.stdin.flush()
            code = int(publisher.stdout.readline())
            assert code in (-signal.SIGKILL, 0)
            shutil.rmtree(folder / "leases", ignore_errors=True)  # a dead holder's lease expires
            survivors = Releases(str(folder))
            release = survivors.find("latest")
            survivors.fetch(release, "*", folder / "got")
            outcomes.append(release == before)
            assert survivors.publish(second, keep=1).release == survivors.find("latest") != before
    assert outcomes == sorted(outcomes, reverse=True), "before the channel moves, and after it"
    assert len(outcomes) > 20
    assert not all(outcomes[:-1])


def test_old_releases_are_removed(contents, releases, stored):
    """The newest are kept, and those that channels name or would go back to, with all of their files."""
    first, second = contents
    oldest = releases.publish(first).release
    releases.promote(oldest, "stable")
    made = [releases.publish(content, keep=2).release for content in (second, first, second, first, second)]
    assert releases.names() == [oldest, *made[-2:]]
    for name in releases.names():
        assert len(releases.fetch(name, "*", stored / "got" / name)) == 2
    releases.promote(made[-1], "stable")
    releases.promote(made[-2], "stable")
    needed = {content.sha256 for content in (*second.sources, *first.sources)}
    (stored / "files" / ("0" * 64)).write_bytes(b"left by a writer that died")
    assert releases.publish(second, keep=1).removed == (oldest,)
    assert {path.name for path in (stored / "files").iterdir()} == needed


def test_damage_is_noticed(contents, releases, stored, tmp_path):
    """A file or a manifest with other bytes is refused, and nothing is written; publishing again mends lost files."""
    release = releases.publish(contents[0]).release
    content = next(content for content in contents[0].sources if content.size > 1000)
    file, manifest = stored / "files" / content.sha256, stored / "releases" / f"{release}.json"
    intact = file.read_bytes()
    for damaged in (intact[:-1], intact[:-1] + b"?", b""):
        file.write_bytes(damaged)
        with pytest.raises(ReleaseDamaged, match="is damaged"):
            releases.fetch(release, "*", tmp_path / "got")
        assert content.sha256 not in map(digest_file, (tmp_path / "got").rglob("*.p*"))
        assert list((tmp_path / "got").rglob("*.part")) == []
    file.unlink()
    with pytest.raises(ReleaseDamaged, match="is not at"):
        releases.fetch(release, "*", tmp_path / "got")
    with pytest.raises(ReleaseDamaged, match="is not at"):
        releases.promote(release, "stable")
    assert not releases.publish(contents[0]).new
    assert file.read_bytes() == intact
    manifest.write_bytes(manifest.read_bytes().replace(b"portable", b"portably"))
    with pytest.raises(ReleaseDamaged, match="changed after it was published"):
        releases.fetch(release, "*", tmp_path / "got")
    (stored / "channels" / "latest.json").write_text('{"release": "../../etc"}')
    with pytest.raises(ReleaseDamaged, match="cannot be understood"):
        releases.find("latest")


def test_signatures(made, keys, pteforge):
    """`fetch --verify` takes files of a release that the key's owner signed, and no others."""
    (private, public), (_, other) = keys("ours"), keys("theirs")
    pteforge(made, "publish", "out", "--to", "shared")
    fetch = ("release", "fetch", "shared", "net/apart", "-o", "got", "--verify")
    pteforge(made, *fetch, public).refused("is not signed", "--sign KEY")
    signed = pteforge(made, "publish", "out", "--to", "shared", "--sign", private, "--json").json
    assert signed["new"]
    assert pteforge(made, *fetch, public).code == 0
    refused = pteforge(made, *fetch, other)
    assert refused.code == 1
    assert f"does not fit {other}" in refused.err
    manifests = sorted((made.folder / "shared" / "releases").iterdir())
    (signature,) = (made.folder / "shared" / "signatures").iterdir()
    signature.rename(signature.with_name(manifests[0].name))
    done = pteforge(made, *fetch, public, "--release", manifests[0].stem)
    assert (done.code, "does not fit" in done.err) == (1, True)
    pteforge(made, "publish", "out", "--to", "shared", "--sign", "none.pem").refused("no key at none.pem", "openssl")


def test_an_export_publishes(grown, tmp_path, pteforge):
    """A whole run releases its files as the zoo says; one of a part does so only where it is asked to."""
    made = grown.copy(tmp_path / "copy")
    zoo = made.folder / "zoo.yaml"
    made.write("zoo.yaml", f"{zoo.read_text()}publish: {{url: shared, channel: nightly, gates: 'growth=2%'}}\n")
    published = pteforge(made, "export", "zoo.yaml", "--json").json["published"]
    assert (published["channel"], published["moved"]) == ("nightly", True)
    assert published["url"] == str(made.folder / "shared")
    part = pteforge(made, "export", "zoo.yaml", "--recipe", "apart")
    assert part.code == 0
    assert "nothing is published: it was not a whole run (recipes)" in part.err
    done = pteforge(made, "export", "zoo.yaml", "--recipe", "apart", "--publish", "elsewhere", "--json")
    assert done.json["published"]["url"] == str(made.folder / "elsewhere")
    held = pteforge(made, "export", "zoo.yaml", "--set", WIDER)
    assert held.code == 1
    assert "'nightly'" in held.err
    assert "the file grew by" in held.err
    assert "2 files verified" in held.out
    newest, *_ = pteforge(made, "runs", "--json").json["runs"]
    assert (newest["status"], newest["release"]["channel"]) == ("held back", "nightly")
    assert newest["release"]["release"] in held.out
    listed = pteforge(made, "runs").out
    assert "held back" in listed
    assert "the file grew by" in listed
    page = (made.out / "index.html").read_text()
    assert "held back" in page
    assert "net/portable-fp32: the file grew by" in page
    again = pteforge(made, "export", "zoo.yaml", "--json")
    assert again.code == 0
    page = (made.out / "index.html").read_text()
    assert "held back" not in page
    assert again.json["published"]["release"] in page


def test_an_export_that_cannot_publish(made, pteforge):
    """Its files are there and listed; exit code, record and page say why nothing was released."""
    zoo = (made.folder / "zoo.yaml").read_text()
    made.write("zoo.yaml", f"{zoo}publish: {{url: shared/file}}\n")
    made.write("shared", "no folder")
    done = pteforge(made, "export", "zoo.yaml")
    assert done.code == 2
    assert "2 files verified" in done.out
    (run, *_) = pteforge(made, "runs", "--json").json["runs"]
    assert run["status"] == "failed"
    (reason,) = run["release"]["reasons"]
    assert "shared/file" in reason
    assert reason in done.err
    assert "shared/file" in (made.out / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "telling"),
    [
        (("publish", "out"), ("--to URL", "publish: {url: ...}")),
        (("publish", "out", "--to", "shared", "--gate", "growth=2"), ("'growth=2' is not a limit",)),
        (("publish", "out", "out", "--to", "shared"), ("is given twice",)),
        (("publish", "out", "--to", "shared", "--channel", "../up"), ("cannot be a channel",)),
        (("publish", "store", "--to", "shared"), ("there are no files in store",)),
        (("publish", "zoo.yaml", "--out", "empty", "--to", "shared"), ("there is no file empty/net/", "and 1 more")),
        (("release", "list", "nowhere"), ("there is no folder nowhere",)),
        (("release", "fetch", "store", "net/apart"), ("no channel or release 'latest'",)),
        (("export", "zoo.yaml", "--until", "edge", "--publish", "shared"), ("--publish needs files",)),
        (("export", "zoo.yaml", "--set", "publish={url: shared, gates: most}"), ("publish: 'most' is not a limit",)),
        (("export", "zoo.yaml", "--set", "publish={to: shared}"), ("publish.to",)),
    ],
)
def test_bad_input(arguments, telling, made, pteforge):
    """Each is refused before anything is written, with what to do."""
    pteforge(made, *arguments).refused(*telling)
    assert not (made.folder / "shared").exists()


def test_changed_results_are_refused(made, pteforge):
    """A file that is not the verified one is not published, nor is one without provenance."""
    file = made.out / "net" / "apart.ptd"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    pteforge(made, "publish", "out", "--to", "shared").refused("apart.ptd was changed after it was verified")
    file.with_suffix(".json").unlink()
    pteforge(made, "publish", "out", "--to", "shared").refused("cannot read", "apart.json")
    assert not (made.folder / "shared").exists()


@pytest.mark.slow
def test_s3(contents, tmp_path, monkeypatch):
    """The same with a real S3 server; the error for a server that does not answer says so."""
    first, second = contents
    with run_s3_server() as bucket:
        monkeypatch.setenv("PTEFORGE_STORE_OPTIONS", json.dumps(bucket.options))
        monkeypatch.setenv("PTEFORGE_STORE_OUTAGE", "0")
        releases = Releases("s3://zoo/releases")
        before = releases.publish(first).release
        assert releases.publish(second, gates=parse_limits("growth=2%")).regressions
        assert releases.find("latest") == before
        assert releases.publish(second, keep=1).moved
        assert releases.roll_back("latest").release == before
        fetched = releases.fetch(before, "*", tmp_path)
        assert {digest_file(path) for path in fetched} == {file.file.sha256 for _, file in first.files}
    with pytest.raises(StoreUnusable, match="cannot be"):
        releases.find("latest")
    assert issubclass(StoreUnusable, InputError)
    assert not issubclass(StoreUnusable, ReleaseError)
