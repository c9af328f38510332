"""The table of known causes: it matches what torch and ExecuTorch say today, and its text can be shown."""

import itertools
import re
from string import Formatter

import pytest
from pteforge.errors import SourceError, StageCrashed, StageFailed, runtime_reasons, whole_message
from pteforge.tasks.lowering.graph import STAGES
from pteforge.tasks.results.causes import CAUSES, is_worth_diagnosing, known_causes
from pteforge.tests.lowering import PORTABLE, XNNPACK

INT8 = {**XNNPACK, "quantize": {"quantizer": "xnnpack"}}


def test_entries_can_be_shown():
    """An entry names real stages, and its text uses groups that its pattern has."""
    for cause in CAUSES:
        assert set(cause.stages) <= {stage.name for stage in STAGES}, cause
        groups = dict.fromkeys(["recipe", *re.compile(cause.pattern).groupindex], "x")
        for text in (cause.problem, *cause.remedies):
            assert {name for _, name, _, _ in Formatter().parse(text) if name is not None} <= groups.keys(), cause
            assert text.format(**groups)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stage", "recipe", "problem", "remedy"),
    [
        ("complex", "edge", PORTABLE, "complex numbers", "view_as_real"),
        ("without_out", "compile", PORTABLE, "refused::plain", "NAME.out"),
        ("unbounded", "edge", PORTABLE, "no upper bound", "torch._check(n <= LARGEST)"),
        ("inverse", "edge", PORTABLE, "aten.linalg_inv_ex.default", "core_aten_ops_exception_list"),
        pytest.param(
            *("packed", "export", PORTABLE, "packed sequences", "padded"),
            marks=pytest.mark.filterwarnings("ignore:The tensor attributes self.recurrent"),
        ),
        ("drops", "verify", PORTABLE, "random numbers each time it runs (aten.dropout.default)", "inference mode"),
        ("sorts", "verify", PORTABLE, "aten::sort.values", "use a target"),
        ("volume", "verify", PORTABLE, "convolutions in one and two dimensions only", "target"),
        ("pairs", "edge", PORTABLE, "a size that depends on values", "register_buffer"),
        ("nothing", "compile", PORTABLE, "no tensor", "return a tensor"),
        ("constant", "edge", PORTABLE, "neither a parameter nor a buffer", "register_buffer"),
        ("double", "quantize", INT8, "float64", ".float()"),
        ("inverse", "quantize", INT8, "no operator with weights", "without `quantize`"),
        ("chooses", "quantize", INT8, "branches of torch.cond", "torch.where"),
        ("each", "quantize", INT8, "does not take: aten.einsum", "torch.nn.Linear"),
        ("table", "quantize", INT8, "tables of embeddings", "source_transforms"),
    ],
)
def test_what_fails_today(stages, name, stage, recipe, problem, remedy):
    """Each lowering fails with a message that the table knows."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever upstream raises
        stages.lower({"builder": "refused:model", "kwargs": {"name": name}}, recipe)
    (finding,) = known_causes(stage, f"{type(caught.value).__name__}: {caught.value}")
    assert problem in finding.problem
    assert any(remedy in each for each in finding.remedies)


@pytest.mark.parametrize(
    ("found", "problem"),
    [("-36.3", "little to do"), ("2.6", "little to do"), ("12.5", "less exactly"), ("120.0", "less exactly")],
)
def test_inexact_outputs(found, problem):
    """What is far from eager's is not called less exact."""
    message = f"method 'forward', example 0, output 0: SQNR {found} dB < 130.0 dB (the smallest SQNR is {found} dB, "
    (finding,) = known_causes("verify", message, recipe="mine")
    assert problem in finding.problem
    bound = f"`--set recipes.mine.verify.min_sqnr_db={found.partition('.')[0]}`"
    assert (bound in finding.remedies[-1]) == (problem == "less exactly")
    assert f"{found} dB of 130.0 dB" in finding.problem


@pytest.mark.parametrize(
    ("stage", "message", "remedy"),
    [
        (
            "verify",
            "the tensor rank which is immutable: KernelCall failed in operator aten::squeeze_copy.dims_out: 0x12",
            "x.squeeze(-1)",
        ),
        (
            "export",
            "torch.classes.quantized.LinearPackedParamsBase does not have a field with name '__obj_flatten__'",
            "xnnpack-int8-dynamic",
        ),
        *(
            ("edge", f"SpecViolationError: Operator torch._ops.aten.{name} is not in Core ATen opset", remedy)
            for name, remedy in {
                "randn_like.default": "as an input",
                "normal_functional.default": "as an input",
                "multinomial.default": "as an input",
                "sort.default": "core_aten_ops_exception_list",
            }.items()
        ),
        ("export", "UnsupportedOperatorException: aten.some_op.default", "let the application do the rest"),
        ("export", "UnsupportedOperatorException: mylib.some_op.default", "register_fake"),
    ],
)
def test_first_mistakes(stage, message, remedy):
    """What often fails in a first model has a way out that can be followed."""
    (finding,) = known_causes(stage, message)
    assert any(remedy in each for each in finding.remedies)


def test_searched_inputs():
    """What a search has found is not taken for a loss of quality, which `bisect` would look for in the examples."""
    problem = (
        "on inputs that a search has found, the file ...: method 'forward', searched [37, 4], output 0: SQNR 0.0 dB"
    )
    (finding,) = known_causes("verify", f"{problem} < 80.0 dB")
    assert "another size" in finding.problem
    assert "dynamic shapes" in finding.remedies[-1]


QUANTIZED = "method 'forward', example 0, output 0: SQNR 2.6 dB < 30.0 dB"
STATE = "method 'get', sequence 0, call 2, output 0: SQNR 0.0 dB < 80.0 dB"


@pytest.mark.parametrize(
    ("message", "circumstances", "remedy"),
    [
        (QUANTIZED, {"quantized"}, "exclude"),
        (QUANTIZED, set(), ""),
        (STATE, {"own state"}, "share_mutable_buffers"),
        (STATE, set(), ""),
        (f"{QUANTIZED}; {STATE}", {"own state"}, ""),
    ],
)
def test_where_advice_applies(message, circumstances, remedy):
    """Quantization is advised about where a recipe quantizes, and shared state where only sequences are wrong."""
    (finding,) = known_causes("verify", message, "", circumstances)
    ways = " ".join(finding.remedies)
    assert {word for word in ("exclude", "share_mutable_buffers") if word in ways} == ({remedy} if remedy else set())


DRAWN = "the file does not compute what eager computes: method 'forward', drawn 0, output 0: SQNR 6.9 dB < 20.0 dB"


@pytest.mark.parametrize(
    ("message", "circumstances", "problem", "leaves_out"),
    [
        (f"{DRAWN}; its examples pass with 31.2 dB (the", {"quantized"}, "passes on its examples with 31.2 dB,", True),
        (f"{DRAWN}; its examples pass (the", {"quantized"}, "passes on its examples, ", True),
        (f"{DRAWN} (the", {"quantized"}, "little to do with", False),
        (f"{DRAWN}; its examples pass with 110.0 dB (the", set(), "little to do with", False),
        (f"on random inputs, {DRAWN.replace('eager', 'its quantized program')} (the", {"quantized"}, "backend", False),
    ],
)
def test_where_random_inputs_may_be_left_out(message, circumstances, problem, leaves_out):
    """Where the examples of a quantized model pass; elsewhere a file would be accepted that is wrong."""
    (finding,) = known_causes("verify", message, "", circumstances)
    assert problem in finding.problem
    assert any("drawn_inputs: 0" in remedy for remedy in finding.remedies) is leaves_out


@pytest.mark.parametrize("error", ["0x1", "0x10", "0x12"])
@pytest.mark.parametrize("circumstances", [set(), {"quantized"}])
def test_refused_calls_are_no_matter_of_calibration(error, circumstances):
    """No sample makes the runtime take a call that it refuses; nor is every refusal about three dimensions."""
    message = (
        f"method 'forward' fails on example 0, with inputs of [(1, 4)]: method->execute() failed with error {error}"
    )
    said = " ".join(line for finding in known_causes("verify", message, "", circumstances) for line in finding.lines())
    assert "calibration" not in said
    assert "dimensions" not in said


def test_root_causes_come_first():
    """A library's error is preceded by the root of its causes; ours, which say what theirs is, by none."""

    def raised(*errors):
        for error, cause in itertools.pairwise(errors):
            error.__cause__ = cause
        return errors[0]

    assert whole_message(raised(RuntimeError("a pass failed"), ValueError("between"), KeyError("no scale"))) == (
        "KeyError: 'no scale'\nRuntimeError: a pass failed"
    )
    assert whole_message(raised(RuntimeError("it failed: no scale"), ValueError("no scale"))).count("no scale") == 1
    assert whole_message(raised(SourceError("builder fails"), ValueError("x"))) == "SourceError: builder fails"


def test_runtime_reasons():
    """Of a runtime's log the reasons are taken, and not what it says of kernels' arguments or of the processor."""
    log = """[cpuinfo_utils.cpp:71] Reading file
[op_pad.cpp:20] Check failed (pad[i] >= 0): got pad[0] = -1
[method.cpp:1483] KernelCall failed at instruction 0:0 in operator aten::constant_pad_nd.out: 0x12
[method.cpp:1493] arg 0 with type id 1
"""
    assert runtime_reasons(log) == (
        "Check failed (pad[i] >= 0): got pad[0] = -1",
        "KernelCall failed at instruction 0:0 in operator aten::constant_pad_nd.out: 0x12",
    )


def test_weights_with_channels_last():
    """The assertion of XNNPACK's pass is below what is raised, so only the log has it."""
    log = "AssertionError: Expected p_0_weight to be NCHW in channels last reshape pass\n"
    (finding,) = known_causes(
        "partition", "An error occurred when running the 'ChannelsLastTaggedReshapePass' pass", log
    )
    assert "p_0_weight is channels-last" in finding.problem


def test_logs():
    """What only the log says is looked for in the log; another stage's causes are not taken."""
    log = "[method.cpp:1483] KernelCall failed at instruction 0:0 in operator aten::convolution.out: 0x12\n"
    message = "VerificationFailed: method 'forward' fails on example 0: method->execute() failed with error 0x12"
    assert "aten::convolution.out" in known_causes("verify", message, log)[0].problem
    assert "a kernel refused" in known_causes("verify", message)[0].problem
    assert known_causes("report", message, log) == ()
    crash = "[op_dequantize.cpp:517] In function dequantize_per_channel_out(), assert failed (false): Unhandled output"
    assert "dequantize_per_channel_out" in known_causes("verify", "killed by SIGABRT", crash)[0].problem


@pytest.mark.parametrize(
    ("error", "worth"),
    [
        (StageFailed("RuntimeError: .numpy() is not supported"), True),
        (StageFailed("SourceError: builder nets:net failed", bad_input=True), False),
        (
            StageFailed(
                "method 'f' cannot be exported with its dynamic shapes: Constraints violated (b)!", bad_input=True
            ),
            True,
        ),
        (SourceError("method 'f' cannot be exported with its dynamic shapes: Constraints violated (b)!"), True),
        (
            StageFailed("cannot be exported with its dynamic shapes: Detected mismatch between the", bad_input=True),
            False,
        ),
        (StageFailed("object is gone", lost_object=True), False),
        (StageFailed("StoreAway: the store cannot be written: [Errno 28] No space left on device"), False),
        (StageCrashed("killed by SIGSEGV"), False),
    ],
)
def test_what_is_worth_a_diagnosis(error, worth):
    """Only what torch.export makes of a model is: not builders, inputs, crashes, lost objects, or full disks."""
    assert is_worth_diagnosing(error) is worth
