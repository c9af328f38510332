"""compile, serialize and report: the layout that a recipe asks for, the delivered file, and its provenance."""

import hashlib
import json

import pytest
from pteforge.configs.verification import VerifyBounds
from pteforge.errors import PteforgeError
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.file.stages.report import Report
from pteforge.tasks.file.stages.serialize import Serialize
from pteforge.tasks.programs.payload import read_payload
from pteforge.tasks.targets import TargetParams
from pteforge.tests.lowering import PORTABLE, XNNPACK


def contents(lower, builder, recipe, **options):
    """The file that these options give; it is verified on the way."""
    return read_pte(lower(f"builders:{builder}", recipe | {"compile": options}).file)


def test_constants_and_methods(lower):
    """All methods are in one file, and what they share is there once; constant methods return their values."""
    from executorch.runtime import Runtime

    lowered = lower("builders:two_methods", PORTABLE)
    pte = read_pte(lowered.file)
    assert sorted(method.name for method in pte.methods) == ["encode", "forward", "sample_rate", "version"]
    shared = [constant for constant in pte.constants if constant.tensor.shape == (6, 6)]
    assert len(shared) == 1

    program = Runtime.get().load_program(lowered.file)
    assert program.load_method("version").execute([]) == [3]
    assert program.load_method("sample_rate").execute([]) == [16000.0]


@pytest.mark.parametrize("alignment", [64, 4096])
def test_segment_alignment(alignment, lower):
    """Segments start where they are asked to."""
    pte = contents(lower, "conv_net", XNNPACK, segment_alignment=alignment)
    assert pte.segments
    assert all(segment.offset % alignment == 0 for segment in pte.segments)


@pytest.fixture
def lowered(stages):
    return stages.lower("builders:two_methods", XNNPACK)


def test_serialize(stages, lowered):
    """The file of the plain form is the payload, byte for byte."""

    def serialize(methods=("forward", "encode"), backends=("XnnpackBackend",)):
        params = Serialize.Params(form="plain", methods=methods, backends=backends)
        return stages.run(Serialize, params, lowered.outputs["compile"])

    assert serialize() == {"file": lowered.outputs["compile"]["payload"]}
    with pytest.raises(PteforgeError, match=r"lacks .*\['decode'\]; .*\['encode', 'forward', '"):
        serialize(methods=("forward", "decode"))
    with pytest.raises(PteforgeError, match=r"needs .*\['XnnpackBackend'\], .*target does not name"):
        serialize(backends=())
    serialize(backends=("XnnpackBackend", "OtherBackend"))


def test_provenance(stages, lowered, tmp_path):
    """It names the file by its SHA-256, what is in it, what made it, from what, and how close it is to eager."""
    params = Report.Params(
        model="model",
        recipe="tested",
        specializations={"xnnpack": TargetParams(name="xnnpack", options={"per_operator": False})},
        stage_keys={"export": "1" * 64, "edge/forward": "2" * 64},
        versions={"torch": "2.13.0", "executorch": "1.5.1"},
        bounds=VerifyBounds(min_sqnr_db=70.0),
    )
    inputs = lowered.steps["report"].call.inputs
    made, again = (stages.store.read_artifact(stages.run(Report, params, inputs)["provenance"]) for _ in range(2))
    assert made == again
    assert str(tmp_path).encode() not in made
    found = json.loads(made)
    findings = {f"findings/{name}" for name in ("figures//", "delegation//forward", "delegation//encode")}
    assert set(found.pop("artifacts")) == {"file", "examples/forward", "examples/encode", *findings}
    assert found.pop("bounds")["min_sqnr_db"] == 70.0
    findings = found.pop("findings")
    assert set(findings) == {"figures", "delegation", "memory"}
    assert {work["method"] for work in findings["delegation"]} == {"forward", "encode"}
    assert set(findings["figures"]["methods"]) == {"forward", "encode"}
    content = read_payload(lowered.outputs["serialize"]["file"], stages.store)
    assert found.pop("contract")["operators"] == {"aten::mean.dtype_out": ["v1/6;0,1|6;|6;"]}
    assert {use["method"] for use in findings["memory"]} == {"forward", "encode"}
    assert found == {
        "format": 2,
        "model": "model",
        "recipe": "tested",
        "specializations": {"xnnpack": {"name": "xnnpack", "options": {"per_operator": False}}},
        "left_out": [],
        "file": {
            "sha256": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            "methods": ["encode", "forward", "sample_rate", "version"],
            "backends": ["XnnpackBackend"],
            "payloads": [],
        },
        "data": None,
        "toolchain": {"torch": "2.13.0", "executorch": "1.5.1"},
        "stage_keys": {"export": "1" * 64, "edge/forward": "2" * 64},
    }
    # The plan fills in one key for each step that the file came through, and none for the report itself.
    assert lowered.provenance["stage_keys"].keys() == lowered.steps.keys() - {"report"}
