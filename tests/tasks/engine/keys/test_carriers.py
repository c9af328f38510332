"""Bytes that modules in `CARRIERS` make for stages: their code is in no key, so these bytes must not change.

The bytes of refs, manifests and records are tested in tests/artifacts/test_records.py. Where one of these tests fails
on purpose, stored results of stages differ from new ones although their keys are equal: take the module out of
`pteforge.tasks.engine.keys.code.CARRIERS`, or rename the stage.
"""

from pteforge.artifacts.digest import Digest, canonical_json, digest_bytes, digest_json
from pteforge.artifacts.ref import ArtifactRef, BlobRef
from pteforge.configs.recipe import CompileOptions
from pteforge.configs.verification import VerifyBounds
from pteforge.tasks.backend.stages.compile import Compile
from pteforge.tasks.backend.stages.edge import Edge, PassParams
from pteforge.tasks.backend.stages.partition import Partition
from pteforge.tasks.engine.keys.code import StageKey
from pteforge.tasks.engine.stage import CallableParams, to_roles
from pteforge.tasks.export.stages.export import Export
from pteforge.tasks.quantize.stages.source_transform import SourceTransform
from pteforge.tasks.quantize.torchao_configs import TorchaoParams
from pteforge.tasks.targets import TargetParams
from pteforge.tasks.verify.stages.verify import Verify

ONE = Digest("1" * 64)
BLOB = BlobRef(ONE, 7)
PROGRAM = ArtifactRef("program/aten", BLOB, Digest("2" * 64), composite=True)


def dumped(params):
    return canonical_json(params.model_dump(mode="json")).decode()


def test_json_and_keys():
    """Reports, manifests and keys have one canonical text for a JSON value; a key is the digest of its fields."""
    value = {"b": [None, True, 1, 1.0, -0.0, 1e-7, 2**64, 0.1], "a": {"ü": 'é"\n\x7f\\'}, "": []}
    expected = '{"":[],"a":{"ü":"é\\"\\n\x7f\\\\"},"b":[null,true,1,1.0,-0.0,1e-07,18446744073709551616,0.1]}'
    assert expected.encode() == canonical_json(value)
    assert digest_json({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    assert digest_bytes(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    key = StageKey("edge", ONE, {"torch": "2"}, {"program": ONE}, {"a": None})
    inputs, versions = f'{{"program":"{ONE}"}}', '{"torch":"2"}'
    text = f'{{"code":"{ONE}","inputs":{inputs},"params":{{"a":null}},"stage":"edge","versions":{versions}}}'
    assert key.digest() == digest_bytes(text.encode())


def test_params():
    """What users write reaches keys and stages as these values."""
    target = TargetParams(name="xnnpack", options={"precisions": ["fp32"], "share": 0.5})
    edge = Edge.Params(
        preserve_for=target,
        preserve_operators=("aten.hardswish.default",),
        passes=(PassParams(source={"builder": "a:b"}, method="forward"),),
    )
    edge_text = (
        '{"check_ir_validity":true,"core_aten_exceptions":[],"decompose_affine":false,'
        '"passes":[{"method":"forward","source":{"builder":"a:b"}}],"passes_of":null,'
        '"preserve_for":{"name":"xnnpack","options":{"precisions":["fp32"],"share":0.5}},'
        '"preserve_operators":["aten.hardswish.default"],"skip_dim_order":false,"takes_weights":""}'
    )
    assert dumped(edge) == edge_text
    assert dumped(Partition.Params(target=TargetParams(name="x"), edge=edge)) == (
        f'{{"edge":{edge_text},"takes_weights":"","target":{{"name":"x","options":{{}}}}}}'
    )
    assert dumped(Verify.Params(bounds=VerifyBounds(max_abs_error=0.1), host="avx2")) == (
        '{"bounds":{"drawn_inputs":2,"max_abs_error":0.1,"max_relative_error":null,"min_agreement":null,"min_part_sqnr_db":3.0,"min_sqnr_db":80.0},"host":"avx2","on_examples":[],"runtime":null}'
    )
    assert dumped(Export.Params(source={"kwargs": {"width": 3}}, dynamic_shapes={"forward": [{"0": {"min": 1}}]})) == (
        '{"drawn_inputs":2,"dynamic_shapes":{"forward":[{"0":{"min":1}}]},"host":"","method":null,"seed":0,'
        '"source":{"kwargs":{"width":3}},"strict":false}'
    )
    transforms = (TorchaoParams(config="C", fields={"group_size": 32}), CallableParams(source={"builder": "a:b"}))
    assert dumped(SourceTransform.Params(source={}, transforms=transforms)) == (
        '{"dynamic_batch":false,"dynamic_shapes":null,"host":"","method":null,"seed":0,"source":{},"strict":false,"transforms":['
        '{"at_least":null,"config":"C","exclude":[],"fields":{"group_size":32},"filter_fn":null,"include":["*"],"layers":["linear"],"otherwise":null,"rounding":"nearest"},'
        '{"source":{"builder":"a:b"}}]}'
    )


def test_compile():
    """Options as they are written, new ones may come; inputs have these names in keys, records and provenance."""
    options = CompileOptions(segment_alignment=4096, memory_planning_algo="naive", reinplace_extra_ops=("aten.add",))
    memory = CompileOptions(alloc_graph_input=False, sym_shape_eval="hint_based")
    params = Compile.Params(options=options, edge=Edge.Params(), methods={"forward": memory}, state_order=("a", "b"))
    made = params.model_dump(mode="json")
    written = {"memory_planning_algo": "naive", "reinplace_extra_ops": ["aten.add"], "segment_alignment": 4096}
    defaults = {"alloc_graph_input": True, "constant_tensor_alignment": None, "tensor_alignment": 16}
    assert (written | defaults).items() <= made["options"].items()
    own = {"alloc_graph_input": False, "alloc_graph_output": True, "sym_shape_eval": "hint_based"}
    assert own.items() <= made["methods"]["forward"].items()
    assert (made["state_order"], made["external_data"]) == (["a", "b"], False)
    ref = ArtifactRef("program/edge", BLOB, ONE)
    inputs = Compile.Inputs(program={"forward": ref, "b/c": ref}, constants=PROGRAM, edge={"": ref})
    assert list(to_roles(inputs)) == ["program/forward", "program/b/c", "constants", "edge"]
