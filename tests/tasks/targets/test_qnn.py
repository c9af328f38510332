"""Qualcomm's NPUs: what the compiler gets, without it; with it, files, and what its emulator of the NPU computes."""

import platform
import sys
from typing import get_args

import pytest
import torch
from pteforge.errors import TargetError
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.engine.executor import _toolchain
from pteforge.tasks.results.delivered import Delivered
from pteforge.tasks.targets import find_target, qnn
from pteforge.tasks.targets.qnn import Qnn, QnnQuantizerOptions
from pteforge.tests.lowering import recipe
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:The 'warn' function is deprecated:DeprecationWarning")  # upstream's

on_linux = pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="not in the wheel")
needs_compiler = pytest.mark.skipif(Qnn.available() is not None, reason="no compiler")
FP16 = recipe("qnn", verify={"min_sqnr_db": 40.0})
INT8 = FP16 | {"quantize": {"quantizer": "qnn"}, "verify": {"min_sqnr_db": 20.0}}


@pytest.fixture
def sdk(tmp_path, monkeypatch):
    """The folder of an SDK whose library only says which build it is."""
    library = tmp_path / "lib" / "x86_64-linux-clang" / "libQnnHtp.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\0AISW_VERSION: v2.37.0.250724175447_124859\0")
    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return library


@pytest.fixture
def without_compiler(monkeypatch):
    """No library is loaded, and ExecuTorch downloads none."""
    monkeypatch.setenv("QNN_SDK_ROOT", "")
    monkeypatch.setattr(Qnn, "load_compiler", staticmethod(lambda: None))


def test_where_the_compiler_is(sdk, monkeypatch):
    """In the folder of an SDK, or in a package; what is missing is named, with what to do."""
    assert Qnn.available() is None
    sdk.unlink()
    assert f"{sdk} does not exist; set QNN_SDK_ROOT" in Qnn.available()
    monkeypatch.delenv("QNN_SDK_ROOT")
    monkeypatch.setattr(qnn, "missing_packages", lambda *_, extra: f"install {extra}")
    assert Qnn.available().startswith("install qnn, or set QNN_SDK_ROOT to the folder of Qualcomm's")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "Linux on x86-64 only" in Qnn.available()


def test_sdk_is_in_keys(sdk):
    """Another build of the SDK is another key; a library that names none is an error."""
    code, versions = _toolchain("pteforge.tasks.backend.stages.preprocess", (), (Qnn,))
    assert versions["qnn-sdk"] == "v2.37.0.250724175447"
    sdk.write_bytes(b"v2.51.0.260929181845")
    assert _toolchain("pteforge.tasks.backend.stages.preprocess", (), (Qnn,)) == (
        code,
        versions | {"qnn-sdk": "v2.51.0.260929181845"},
    )
    sdk.write_bytes(b"v2.51")
    with pytest.raises(TargetError, match="does not say which build it is"):
        Qnn.versions()


@on_linux
def test_systems_on_chip():
    """All that ExecuTorch compiles for can be named."""
    from executorch.backends.qualcomm.serialization.qc_schema import _soc_info_table

    assert {*get_args(qnn.Soc)} == {chip.name for chip in _soc_info_table}


@on_linux
@pytest.mark.usefixtures("without_compiler")
def test_compile_specs(compile_specs):
    """The compiler gets the system on chip, and computes in float16 what is not quantized."""
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset, QnnExecuTorchHtpPrecision
    from executorch.backends.qualcomm.serialization.qc_schema_serialize import flatbuffer_to_option

    (spec,) = compile_specs("qnn", soc="SM8750").values()
    options = flatbuffer_to_option(spec)
    assert options.soc_info.soc_model == QcomChipset.SM8750
    assert options.backend_options.htp_options.precision == QnnExecuTorchHtpPrecision.kHtpFp16


@on_linux
@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize(
    ("options", "activations", "weights"),
    [
        ({}, (torch.uint8, 255), (torch.int8, 127)),
        ({"quant": "16a8w"}, (torch.int32, 65535), (torch.int8, 127)),
        ({"quant": "16a4w"}, (torch.int32, 65535), (torch.int8, 7)),
        ({"per_channel": False}, (torch.uint8, 255), (torch.int8, 127)),
    ],
)
def test_quantizer(options, activations, weights):
    """Activations and weights have the bits that the options say, and weights scales as they say."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    inputs = (torch.randn(1, 3, 8, 8),)
    program = torch.export.export(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), inputs)
    prepared = prepare_pt2e(program.module(), Qnn.quantizer(QnnQuantizerOptions(**options)))
    prepared(*inputs)
    calls = [
        (node.target.__name__, node.args[-1], node.args[-2])
        for node in convert_pt2e(prepared).graph.nodes
        if node.op == "call_function" and len(node.args) > 5
    ]
    assert ("quantize_per_tensor.default", *activations) in calls
    scales = "channel" if options.get("per_channel", True) else "tensor"
    assert (f"dequantize_per_{scales}.default", *weights) in calls


@on_linux
@pytest.mark.usefixtures("without_compiler")
def test_edge_programs(lower, monkeypatch):
    """Quantization has become attributes, and images are marked to have channels last: the partitioner expects both."""
    monkeypatch.setattr(Qnn, "available", staticmethod(lambda: None))
    program = lower("builders:conv_net", INT8, until="edge").program("edge/forward")
    calls = {node.name: node for node in program.graph.nodes if node.op == "call_function"}
    assert {"quant_attrs", "axis_order"} <= calls["aten_convolution_default"].meta.keys()
    assert not [name for name in calls if name.startswith("quantized_decomposed_quantize_per_tensor")]


@on_linux
def test_bfloat16():
    """A sentence says what to do."""
    module, inputs = nn.Linear(4, 4).bfloat16(), (torch.ones(1, 4, dtype=torch.bfloat16),)
    with pytest.raises(TargetError, match=r"computes in bfloat16, .* call `\.float\(\)`"):
        find_target("qnn").before_edge(torch.export.export(module, inputs))


@needs_compiler
@pytest.mark.nightly
@pytest.mark.parametrize("network", ["conv_net", "perceptron", "skips"])
@pytest.mark.parametrize("exact", [FP16, INT8], ids=["fp16", "int8"])
def test_files(lower, network, exact):
    """ExecuTorch's runtime runs them on the emulator; in integers, they compute what the quantized program does."""
    lowered = lower(f"builders:{network}", exact)
    (method,) = read_pte(lowered.file).methods
    assert Delivered.of_provenance(lowered.provenance).proven == {"": ("host",)}
    assert not method.operators
    rungs = {rung["name"]: rung["figures"]["sqnr_db"] for rung in lowered.findings.get("numerics", [])}
    assert rungs.get("payload") == pytest.approx(rungs.get("quantized"), abs=1.5)


@needs_compiler
@pytest.mark.nightly
def test_reasons(lower):
    """What the compiler does not take runs on the portable kernels, and the record says so."""
    lowered = lower("builders:channels_last", recipe({"target": "qnn", "options": {"soc": "QCM6490"}}))
    (work,) = lowered.findings["delegation"]
    assert {left["why"] for left in work["outside"]} == {
        "Qualcomm's compiler does not take it for QCM6490, with these dtypes and sizes"
    }


@needs_compiler
@pytest.mark.nightly
def test_dynamic_sizes(lower):
    """They are fixed on this NPU: a sentence says what to do."""
    with pytest.raises(TargetError, match=r"aten\.linear\.default stays whole, .* for SM8650, .*: use fixed sizes"):
        lower("builders:layer_of_any_batch", FP16)


@needs_compiler
@pytest.mark.nightly
def test_systems_on_chip_differ(stages):
    """Two systems on chip in one process get files of their own."""
    made = [
        stages.lower("builders:perceptron", recipe({"target": "qnn", "options": {"soc": soc}}, verify=FP16["verify"]))
        for soc in ("SM8650", "SM8450")
    ]
    assert made[0].file != made[1].file


@needs_compiler
@pytest.mark.nightly
def test_systems_on_chip_in_a_fat_file(lower):
    """Each has a payload of its own, which the emulator runs, next to one for devices without such an NPU."""
    npus = [{"target": "qnn", "name": soc.lower(), "options": {"soc": soc}} for soc in ("SM8650", "SM8750")]
    lowered = lower("builders:conv_net", recipe(*npus, "portable", verify=FP16["verify"]))
    proven = Delivered.of_provenance(lowered.provenance).proven
    assert proven == {"sm8650": ("host",), "sm8750": ("host",), "portable": ("host",)}
    assert lowered.payloads["sm8650"] != lowered.payloads["sm8750"]
