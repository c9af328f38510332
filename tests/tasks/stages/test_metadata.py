"""Metadata in files: where it comes from, how it is read, and what the digest of the provenance is of."""

import json

import pytest
from pteforge.artifacts.digest import canonical_json, digest_bytes
from pteforge.errors import SourceError
from pteforge.formats.nfat.container import open_fat
from pteforge.formats.pte.metadata import returning_methods
from pteforge.formats.pte.reader import open_pte
from pteforge.runtime import load, metadata
from pteforge.tasks.backend.file_programs import write_metadata
from pteforge.tests.lowering import PORTABLE, XNNPACK, recipe

DIGEST = "general.provenance_sha256"
WRITTEN = {"name": "mine", "license": None, "image": {"size": [2, 4], "mean": [0.5, 0.25]}}
ENTRIES = {
    "general.name": "mine",
    "output.labels": ("a", "b", "c"),
    "image.size": (2, 4),
    "image.mean": (0.5, 0.25),
    "acme.build": 7,
}
FAT = recipe("xnnpack", "portable")


def delivered(lowered, folder):
    """The produced file, on disk."""
    path = folder / "file.pte"
    path.write_bytes(lowered.file)
    return path


@pytest.mark.parametrize("form", [XNNPACK, PORTABLE, FAT], ids=["xnnpack", "portable", "fat"])
def test_metadata_in_the_file(lower, tmp_path, form):
    """The zoo's comes before the source's; named data and constant methods have it; the rest of the file is as without.

    A constant method of the model keeps its name.
    """
    lowered = lower("builders:described", form, metadata=WRITTEN)
    path = delivered(lowered, tmp_path)
    found = metadata(path)
    digest = found.pop(DIGEST)
    assert found == ENTRIES
    program = load(path)
    assert program.run("get_labels") == ["a", "b", "c"]
    assert program.run("get_image_mean") == [0.5, 0.25]
    assert program.run("get_provenance_sha256") == [digest]
    assert program.run("get_acme_build") == ["1.0"]
    assert len(returning_methods(open_pte(path), metadata(path))) == len(ENTRIES)
    plain = lower("builders:described", form, metadata={"from_source": False})
    assert metadata(delivered(plain, tmp_path)) == {}
    path.write_bytes(lowered.file)
    write_metadata(path, {}, path, constant_methods=False, segment_alignment=128)
    assert path.read_bytes() == plain.file
    assert lowered.provenance["metadata"] == json.loads(json.dumps({**ENTRIES, DIGEST: digest}))


def test_the_provenance_digest(lower, tmp_path):
    """It is the SHA-256 of the provenance's `origin`, whose payloads are the files without metadata."""
    for form in (XNNPACK, FAT):
        lowered = lower("builders:described", form)
        path = delivered(lowered, tmp_path)
        origin = lowered.provenance["origin"]
        assert metadata(path)[DIGEST] == digest_bytes(canonical_json(origin))
        assert (origin["model"], origin["recipe"], origin["left_out"]) == ("model", "tested", [])
        assert origin["toolchain"] == lowered.provenance["toolchain"]
        contents = {name.removeprefix(".") or "xnnpack": content for name, content in lowered.payloads.items()}
        assert origin["payloads"] == {name: digest_bytes(content) for name, content in contents.items()}
    payloads = {payload.name: payload.sha256 for payload in open_fat(path).container.payloads}
    assert payloads == origin["payloads"]
    without = lower("builders:described", XNNPACK, metadata={"provenance": False, "constant_methods": False})
    assert DIGEST not in metadata(delivered(without, tmp_path))
    assert [method.name for method in open_pte(tmp_path / "file.pte").methods] == ["forward", "get_acme_build"]
    assert "origin" not in without.provenance


def test_no_metadata_no_change(lower):
    """Without any, the plain file is the payload, and needs no worker to be written."""
    lowered = lower("builders:two_methods", XNNPACK)
    assert lowered.outputs["serialize"]["file"] == lowered.outputs["compile"]["payload"]
    call = lowered.steps["serialize"].call
    assert not call.stage.runs_isolated(call.params)


@pytest.mark.parametrize(
    ("builder", "problem"),
    [("faulty:described_wrongly", "metadata: licence: Extra inputs"), ("faulty:labels_of_nothing", "cannot be read")],
)
def test_mistakes_of_builders(lower, builder, problem):
    """What a builder says is checked, with the name of the field."""
    with pytest.raises(SourceError, match=problem):
        lower(builder, PORTABLE)
