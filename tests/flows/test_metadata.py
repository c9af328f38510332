"""Metadata from a zoo to the commands that show it, and through those that make files from files."""

from __future__ import annotations

import json
import shutil

import pytest
from pteforge.errors import ConfigError
from pteforge.formats.pte.metadata import read_metadata
from pteforge.tests.flows.conftest import FAT

pytestmark = pytest.mark.slow

DIGEST = "general.provenance_sha256"
METADATA = {"license": "mit", "labels_file": "labels.txt", "image": {"mean": [0.5, 0.25, 0.125]}, "extra": {"a.b": 7}}
RECIPES = ("fat", "xnnpack-fp32", "portable-fp32")
FILE = "out/net/fat.pte"
ENTRIES = {
    "general.license": "mit",
    "output.labels": ("cat", "dog"),
    "image.mean": (0.5, 0.25, 0.125),
    "a.b": 7,
}


@pytest.fixture(scope="module")
def lowered(lower_project):
    net = {"source": {"builder": "nets:linear", "kwargs": {"width": 512}}, "metadata": METADATA}
    return lower_project({"net": net}, RECIPES, {"fat": FAT}, files={"labels.txt": "cat\ndog\n"})


def test_commands(made, pteforge):
    """`metadata` shows all, as text and as JSON, and checks the digest; `inspect` shows it in place of the methods."""
    said = pteforge(made, "metadata", FILE)
    assert said.code == 0
    assert "output.labels              cat, dog" in said.out
    assert "made from: model net, recipe fat, with " in said.out
    found = pteforge(made, "metadata", FILE, "--json").json
    digest = found["metadata"].pop(DIGEST)
    assert found["metadata"] == json.loads(json.dumps(ENTRIES))
    assert set(found["origin"]["payloads"]) == {"xnnpack", "portable"}
    said = pteforge(made, "inspect", FILE)
    assert "image.mean                 0.5, 0.25, 0.125" in said.out
    assert "get_image_mean" not in said.out
    assert pteforge(made, "inspect", FILE, "--json").json["metadata"][DIGEST] == digest
    path = (made.folder / FILE).with_suffix(".json")
    path.write_text(path.read_text().replace('"recipe": "fat"', '"recipe": "other"'))
    pteforge(made, "metadata", FILE).refused("fat.json was changed", digest)
    path.unlink()
    assert pteforge(made, "metadata", FILE, "--json").json["origin"] is None


def test_a_change_runs_the_end_only(made, lower, pteforge):
    """Other labels run `serialize` and what reads the file; `diff` says which entries differ."""
    assert lower(made).ran("net") == set()
    shutil.copytree(made.out, made.folder / "before")
    made.write("labels.txt", "cat\nbird\n")
    end = {f"{stage}/{recipe}" for stage in ("serialize", "verify", "report") for recipe in RECIPES}
    assert lower(made).ran("net") == end
    assert read_metadata(made.folder / FILE)["output.labels"] == ("cat", "bird")
    (file,) = pteforge(made, "diff", "before/net/fat.pte", FILE, "--json").json["files"]
    changes = {change["name"]: (change["before"], change["after"]) for change in file["changes"]}
    assert changes.pop("output.labels") == ("cat, dog", "cat, bird")
    assert changes.keys() <= {"SHA-256", "size"}


def test_files_from_files(made, pteforge):
    """`extract` makes the file without metadata, `thin` and `merge` keep it, but for the digest of other files."""
    assert pteforge(made, "thin", FILE, "--keep", "portable", "-o", "thin.pte").code == 0
    plain = [f"out/net/{recipe}.pte" for recipe in RECIPES[1:]]
    assert pteforge(made, "merge", *(f"{name}={file}" for name, file in zip("xp", plain, strict=True)), "-o", "m.pte")
    assert pteforge(made, "extract", FILE, "xnnpack", "-o", "x.pte").code == 0
    assert pteforge(made, "extract", "m.pte", "x", "-o", "x2.pte").code == 0
    for name in ("thin.pte", "m.pte"):
        assert read_metadata(made.folder / name) == ENTRIES
        said = pteforge(made, "run", name, "--method", "get_labels")
        assert (said.code, "dog" in said.out) == (0, True)
    assert read_metadata(made.folder / "x.pte") == {}
    assert (made.folder / "x.pte").read_bytes() == (made.folder / "x2.pte").read_bytes()


def test_labels_that_are_not_there(made, lower):
    """A file of labels that cannot be read is an error before any work, at its line."""
    (made.folder / "labels.txt").unlink()
    with pytest.raises(ConfigError, match=r"zoo.yaml:\d+:\d+: models.net.metadata.labels_file: .*cannot be read"):
        lower(made)
