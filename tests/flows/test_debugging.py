"""Debug mode of a zoo: what is written beside the files, and what becomes of it."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

FAT = {"output": {"form": "fat"}, "specializations": [{"target": "xnnpack"}, {"target": "portable"}]}
END = {"compile", "pack", "serialize", "verify", "report"}
BESIDE = {
    "net/xnnpack-fp32.etrecord",
    "net/xnnpack-fp32.debug.json",
    "net/fat.xnnpack.etrecord",
    "net/fat.portable.etrecord",
    "net/fat.debug.json",
}


@pytest.fixture(scope="module")
def usual(tmp_path_factory, make_room, lower):
    """A room in which a plain file and a fat one were made as usual."""
    room = make_room(tmp_path_factory.mktemp("debugging") / "room")
    room.zoo({"net": "nets:linear"}, ("xnnpack-fp32", "fat"), {"fat": FAT})
    assert lower(room).outcome.exit_code == 0
    return room


@pytest.fixture
def debugged(usual, tmp_path, lower):
    """A copy of that room in which both were made again for debugging."""
    room = usual.copy(tmp_path / "room")
    run = lower(room, "recipes.xnnpack-fp32.debug=true", "recipes.fat.debug=true")
    assert run.outcome.exit_code == 0
    assert {step.partition("/")[0].partition(".")[0] for step in run.ran("net")} == END
    return room


def test_beside_the_files(debugged):
    """Beside each file are a record and maps, which lead from the delegate's call to lines of the model."""
    from executorch.devtools.etrecord import parse_etrecord

    files = debugged.files()
    assert {name for name in files if "etrecord" in name or "debug" in name} == BESIDE
    maps = json.loads(files["net/xnnpack-fp32.debug.json"])
    ((call, handles),) = maps["debug_handles"]["forward"].items()
    assert maps["delegate_map"]["forward"][call]["name"] == "XnnpackBackend"
    lines = {maps["debug_sources"]["forward"][str(handle)][0]["line"].partition(":")[0] for handle in handles}
    assert lines == {"nets.py"}
    assert set(json.loads(files["net/fat.debug.json"])) == {"xnnpack", "portable"}
    for name in BESIDE:
        if name.endswith(".etrecord"):
            assert parse_etrecord(str(debugged.out / name)).edge_dialect_program is not None
    provenance = json.loads(files["net/xnnpack-fp32.json"])
    digest = hashlib.sha256(files["net/xnnpack-fp32.etrecord"]).hexdigest()
    assert provenance["artifacts"]["etrecord"]["root"][0] == digest


def test_by_an_option(debugged):
    """`--debug` is the field in every recipe: after that, everything comes from the cache."""
    made = debugged.files()
    shutil.rmtree(debugged.out)
    done = debugged.export("--debug", "--json")
    assert (done.code, done.json["stages"]["ran"]) == (0, 0), done.err
    assert debugged.files() == made


def test_there_no_more(usual, debugged, lower):
    """A run without debug mode removes what would not fit the files any more."""
    assert lower(debugged).outcome.exit_code == 0
    assert debugged.files() == usual.files()
