"""Calls of stages as JSON, and the catalog that says what a stage is."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.ref import ArtifactRef, BlobRef
from pteforge.configs.recipe import CompileOptions
from pteforge.configs.verify_bounds import VerifyBounds
from pteforge.tasks import accuracy_params, numerics_params, params, source_params
from pteforge.tasks.call import StageCall, run_call
from pteforge.tasks.catalog import StageName

TARGET = params.TargetParams(name="xnnpack", options={"precisions": ["fp32"], "per_operator": False})
EDGE = params.EdgeParams(preserve_for=TARGET, preserve_operators=("aten.hardswish.default",), skip_dim_order=True)

EXAMPLES = {
    StageName.EXPORT: source_params.ExportParams(
        source={"builder": "pkg.mod:build", "kwargs": {"width": 3}},
        dynamic_shapes={"forward": [{"0": {"min": 1, "max": 4, "name": None}}, None]},
        strict=True,
    ),
    StageName.SOURCE_TRANSFORM: source_params.SourceTransformParams(
        source={"builder": "pkg.mod:build", "kwargs": {}},
        method="forward",
        transforms=(
            source_params.TorchaoParams(config="Int8WeightOnlyConfig", fields={"granularity": {"per_group": 8}}),
            params.CallableParams(source={"builder": "pkg.mod:fold", "kwargs": {"deep": True}}),
        ),
    ),
    StageName.CALIBRATION: source_params.CalibrationParams(source={"builder": "pkg.mod:samples"}, seed=1, samples=9),
    StageName.QUANTIZE: params.QuantizeParams(quantizers=(params.TargetParams(name="x", options={"dynamic": True}),)),
    StageName.EDGE: EDGE,
    StageName.PARTITION: params.PartitionParams(target=TARGET, edge=EDGE),
    StageName.PREPROCESS: params.PreprocessParams(targets=(TARGET,)),
    StageName.COMPILE: params.CompileParams(options=CompileOptions(segment_alignment=4096), edge=EDGE),
    StageName.PACK: params.PackParams(
        payloads=(params.PackedPayload(name="x", backends=("XnnpackBackend",)),),
        methods=("forward",),
        alignment=128,
        executorch_version="1.5.1",
    ),
    StageName.SERIALIZE: params.SerializeParams(form="plain", methods=("forward",), backends=("XnnpackBackend",)),
    StageName.LADDER: numerics_params.LadderParams(
        rungs=(numerics_params.RungParams(name="edge", specializations=("x",)),), methods=("forward",), drawn_inputs=1
    ),
    StageName.BISECT: numerics_params.BisectParams(exported_anew=True, inputs=2),
    StageName.BASELINE: accuracy_params.BaselineParams(
        source={"builder": "pkg.mod:build"}, evaluator={"builder": "pkg.mod:score"}, seed=1
    ),
    StageName.EVALUATE: accuracy_params.EvaluateParams(evaluator={"builder": "pkg.mod:score"}, seed=1),
    StageName.GATE: accuracy_params.GateParams(evaluator="pkg.mod:score", floor=0.9, max_drop=None),
    StageName.VERIFY: params.VerifyParams(bounds=VerifyBounds(max_abs_error=0.1), host="x86_64 avx2"),
    StageName.REPORT: params.ReportParams(
        model="m",
        recipe="r",
        specializations={"x": TARGET},
        stage_keys={"export": "0"},
        versions={"torch": "2"},
        bounds=VerifyBounds(),
    ),
}


@pytest.mark.parametrize("stage", StageName)
def test_json_round_trip(stage):
    """A call of any stage is the same after JSON: that is how it reaches a worker."""
    ref = ArtifactRef("program/aten", BlobRef(digest_bytes(b"a"), 1), digest_bytes(b"b"), composite=True)
    call = StageCall(
        stage=stage,
        inputs={"program/forward": ref},
        params=EXAMPLES[stage],
        store=Path("/store"),
        folder=Path("/zoo"),
        python_path=(Path("/zoo"), Path("/lib")),
        program_file=Path("/zoo/model.pt2"),
    )
    assert StageCall.from_json(json.loads(json.dumps(call.to_json()))) == call
    bare = StageCall(stage, {}, EXAMPLES[stage], Path("/store"), Path("/zoo"))
    assert StageCall.from_json(json.loads(json.dumps(bare.to_json()))) == bare


@pytest.mark.parametrize("stage", StageName)
def test_every_stage_has_a_body(stage):
    """The catalog names a module that is there, with a type of params that is frozen and takes nothing unknown."""
    assert importlib.util.find_spec(stage.kind.module) is not None
    assert type(EXAMPLES[stage]) is stage.kind.params
    assert stage.kind.params.model_config["frozen"]
    with pytest.raises(ValueError, match="not_a_field"):
        stage.kind.params.model_validate(EXAMPLES[stage].model_dump() | {"not_a_field": 1})


def test_stages_without_workers_need_no_torch():
    """A stage that runs where it is called imports neither torch nor ExecuTorch."""
    modules = [stage.kind.module for stage in StageName if not stage.kind.isolated]
    assert modules
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'executorch', 'prefect'}))"
    )
    finished = subprocess.run([sys.executable, "-c", program, *modules], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"


def test_scratch_is_gone_afterwards(tmp_path):
    """A body's scratch folder lies in the store and goes with the stage, also where the stage fails."""
    store = LocalStore.open(tmp_path / "store")
    ref = store.put_artifact("payload/pte", b"not pieces")
    call = StageCall(StageName.SERIALIZE, {"payload": ref}, EXAMPLES[StageName.SERIALIZE], store.root, tmp_path)
    with pytest.raises(Exception, match="manifest"):
        run_call(call)
    assert not list((store.root / "tmp").iterdir())
