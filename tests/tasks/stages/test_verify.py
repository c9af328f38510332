"""verify: right files pass, wrong ones do not, and the figures are those of what was run."""

import re
from types import SimpleNamespace

import pytest
import torch
from pteforge.configs.verification import VerifyBounds
from pteforge.errors import VerificationFailed
from pteforge.formats.nfat.contents import Description
from pteforge.formats.nfat.pack import pack_v2
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.results.figures import Figures, summarize
from pteforge.tasks.verify.verification import judged_by_eager_error, run_cases
from pteforge.tests.lowering import PORTABLE, XNNPACK, lower_directly, recipe


@pytest.fixture
def made(lower, tmp_path):
    """A file and the examples of its methods, by builder."""

    def make(builder, drawn=2, **fields):
        asked = recipe("portable", verify={"drawn_inputs": drawn}, **fields)
        lowered = lower(f"builders:{builder}", asked, until="serialize")
        (tmp_path / "model.pte").write_bytes(lowered.file)
        exported = {step.partition("/")[2] or "forward": step for step in lowered.steps if step.startswith("export")}
        return tmp_path / "model.pte", {method: lowered.value(step, "examples") for method, step in exported.items()}

    return make


def verify(made, **bounds):
    """Figures of a file and its examples."""
    from pteforge.tasks.verify.verification import verify_file

    path, examples = made
    return verify_file(path, examples, VerifyBounds.model_validate(bounds))


def test_right_file(lower):
    """The stage stores figures for every method, case and output of a file that computes what eager computes."""
    lowered = lower("builders:two_methods", PORTABLE)
    assert lowered.outputs["verify"]["figures"].kind == "finding"
    figures = Figures.from_json(lowered.json("verify", "figures"))
    assert {case.method for case in figures.cases} == set(figures.methods) == {"forward", "encode"}
    assert [case.label for case in figures.cases if case.method == "forward"] == ["example 0", "drawn 0", "drawn 1"]
    assert figures.overall.cases == 6
    assert figures.overall.sqnr_db is None or figures.overall.sqnr_db > 120


@pytest.mark.parametrize(
    ("share", "within"), [(0.1, None), (1e-6, "within 1[12][0-9].[0-9] dB"), (0.0, "the same for 3")]
)
def test_outputs_that_hardly_depend_on_inputs(share, within):
    """A note says so, with the figure, where one answer to all inputs would pass."""
    from pteforge.tasks.verify.verification import same_for_all

    inputs = [[torch.randn(2, 4)] for _ in range(3)]
    outputs = [[1 + share * flat[0]] for flat in inputs]
    stored = {"inputs": [*inputs, inputs[0]], "outputs": [*outputs, outputs[0]], "drawn": 2}
    notes = list(same_for_all({"forward": stored}, VerifyBounds(min_sqnr_db=80)))
    assert not any(same_for_all({"forward": stored}, VerifyBounds(min_sqnr_db=None)))
    assert len(notes) == (within is not None)
    assert not notes or re.search(f"'forward' returns .*{within}.* a file that ignores its inputs would pass", notes[0])


def test_wrong_files(made):
    """A file fails that computes something else, lacks a method, does not take the inputs, or is damaged."""
    path, examples = made("conv_net")
    right = examples["forward"]
    inputs, outputs = right["inputs"], right["outputs"]

    def problem(method="forward", bounds=None, **wrong):
        with pytest.raises(VerificationFailed) as caught:
            verify((path, {method: right | wrong}), **(bounds or {}))
        return str(caught.value)

    shifted = [[output + 1 for output in flat] for flat in outputs]
    problems = problem(outputs=shifted, bounds={"max_abs_error": 0.5}).split("; ")
    assert len(problems) == 6
    assert sum("max abs error 1 > 0.5" in problem for problem in problems) == 3
    for label in ("example 0", "drawn 0", "drawn 1"):
        assert sum(f" {label}, " in problem for problem in problems) == 2
    assert "its examples pass" not in problem(outputs=shifted, bounds={"max_abs_error": 0.5})
    assert "; its examples pass" in problem(outputs=[outputs[0], *shifted[1:]], bounds={"max_abs_error": 0.5})

    for other in ([], outputs[0] * 2):
        expected = f"gives 1 outputs on example 0, eager gives {len(other)}"
        assert expected in problem(outputs=[other, *outputs[1:]])
    assert "the runtime cannot load method 'decode'" in problem("decode")
    untaken = problem(inputs=[[torch.ones(1, 3, 9, 9)], *inputs[1:]])
    assert untaken.startswith("Attempted to resize a static tensor")
    assert re.search(r"method 'forward' fails on example 0, with inputs of \[\(.*\)\]: ", untaken)

    content = bytearray(path.read_bytes())
    (weight,) = (weight for weight in read_pte(bytes(content)).constants if weight.tensor.shape == (4, 3, 3, 3))
    content[weight.extent.offset + 3] ^= 0x40  # in the exponent of the first float
    path.write_bytes(content)
    assert re.search(r"method 'forward', example 0, output 0: SQNR \S+ dB < 80\.0 dB", problem())
    assert re.search(r"largest error is \S+, \S+ of the largest value\)", problem())
    path.write_bytes(content[:1000])
    assert "the file is damaged or cut short" in problem()


def test_random_inputs(made):
    """A dynamic file is run at every size: the examples', the bounds'."""
    path, examples = made("mlp", drawn=3)
    assert [flat[0].shape[0] for flat in examples["forward"]["inputs"]][:4] == [3, 5, 1, 16]
    for asked, run in ((0, 0), (1, 1), (3, 3), (9, 3)):
        labels = [case.label for case in verify((path, examples), drawn_inputs=asked).cases]
        assert labels == ["example 0", "example 1", *(f"drawn {number}" for number in range(run))]


def test_state_does_not_reach_the_next_case(made):
    """Every case starts from the state that the model was built with, as eager's did; then calls in a row keep it."""
    figures = verify(made("counter"))
    labels = {case.label for case in figures.cases}
    assert labels > {"example 0", "sequence 0, call 0", "sequence 0, call 1", "sequence 0, call 2"}
    assert figures.overall.max_abs_error < 1e-5


def test_backends_that_cannot_run(made, tmp_path):
    """A payload whose backend is registered and finds no device or library is not run, for that reason."""
    from pteforge.tasks.backend.file_programs import write_fat
    from pteforge.tasks.verify.running import missing_backends

    path, examples = made("mlp")
    content = path.read_bytes()
    openvino = Description("openvino", ("OpenvinoBackend", "XnnpackBackend"))  # in the wheel, without OpenVINO
    write_fat(pack_v2([(openvino, content), (Description("portable"), content)]), content, tmp_path / "fat.pte")
    figures = verify((tmp_path / "fat.pte", examples))
    unavailable = "OpenvinoBackend, which finds no device or driver on this machine"
    assert figures.not_run == {"openvino": f"needs {unavailable}"}
    assert {case.payload for case in figures.cases} == {"portable"}
    both = missing_backends(["XnnpackBackend", "OpenvinoBackend", "NoBackend"])
    assert both == f"needs NoBackend, which this machine's runtime does not have, and {unavailable}"
    assert missing_backends(["XnnpackBackend"]) == ""


@pytest.mark.slow
def test_what_need_not_be_run(lower):
    """A file for another machine is made; its edge program is compared, and bounds apply to it."""
    made = {"verify": {"required": False, "min_sqnr_db": 80}}
    lowered = lower("builders:two_methods", recipe("vulkan", **made))
    verification = lowered.provenance["findings"]["figures"]
    assert verification["overall"]["cases"] > 2
    assert list(verification["not_run"]) == ["the file"]
    assert "needs VulkanBackend" in verification["not_run"]["the file"]
    with pytest.raises(VerificationFailed, match=r"edge program .*what eager computes"):
        lower("builders:mlp", recipe("vulkan", **made, quantize={"quantizer": "xnnpack"}))
    run = lower("builders:two_methods", recipe("xnnpack", verify={"required": False}))
    assert run.provenance["findings"]["figures"]["not_run"] == {}


def test_what_this_machine_cannot_run(made, lower):
    """The message says which operator no kernel runs, or which backend is not here, and what can be done."""
    with pytest.raises(VerificationFailed, match=r"'forward': .*no kernel for aten::hardswish\.out; "):
        verify(made("hardswish", edge={"preserve_operators": ["aten.hardswish.default"]}))
    with pytest.raises(VerificationFailed, match=r"needs VulkanBackend, .*`output: {form: fat}`"):
        lower("builders:mlp", recipe("vulkan"))


SAME = ("ids", "masks", "scalars", "views", "expanded", "nested", "weight", "keywords")


@pytest.mark.parametrize("kind", SAME)
def test_one_tensor_for_several_inputs(kind, stages):
    """Each input is one of its own, also where the example has one tensor for several; the file uses them all."""
    made = stages.lower({"builder": "builders:one_tensor_twice", "kwargs": {"kind": kind}}, PORTABLE)
    sqnr_db = made.figures["overall"]["sqnr_db"]
    assert sqnr_db is None or sqnr_db > 100
    program = made.program("export")
    inputs = set(program.graph_signature.user_inputs)
    assert all(node.users for node in program.graph.nodes if node.name in inputs)


@pytest.mark.parametrize("kind", ["masks", "scalars"])
def test_a_file_that_ignores_an_input(kind, stages, tmp_path):
    """It is not verified although all examples have the same for both: random inputs have not."""
    from builders import one_tensor_twice

    module, (values, same, _) = one_tensor_twice(kind)
    tied = torch.export.export(module.eval(), (values, same, same))  # torch takes two for one
    (path := tmp_path / "tied.pte").write_bytes(lower_directly(tied, "portable"))
    made = stages.lower({"builder": "builders:one_tensor_twice", "kwargs": {"kind": kind}}, PORTABLE)
    examples = {"forward": made.value("export", "examples")}
    with pytest.raises(VerificationFailed, match="drawn"):
        verify((path, examples))


def test_attention_with_padding(lower):
    """What files are compared with is what torch.export traces, and not eager's fast path, which zeroes padding."""
    assert lower("builders:padded_encoder", XNNPACK).figures["overall"]["sqnr_db"] > 100
    assert torch.backends.mha.get_fastpath_enabled()


def test_eager_rounds_more_than_the_file(lower):
    """A file in 16 bits that is nearer to float32 than eager passes, however far from eager's own outputs it is."""
    figures = lower("builders:half_grid_sample", PORTABLE).figures
    assert figures["overall"]["sqnr_db"] < 40
    assert all(case["lost_db"] < -10 for case in figures["cases"])


def test_eager_is_far_from_float64(lower):
    """Where eager's own error in float32 is as large, a file passes, and the figures have both; a wrong one fails."""
    lowered = lower("builders:cancelling", XNNPACK)
    assert 40 < lowered.figures["overall"]["sqnr_db"] < 80
    assert re.search(r"dB of eager; eager is \d\d\.\d dB from float64, the file \d\d\.\d dB", *lowered.figures["notes"])
    examples = {"forward": lowered.value("export", "examples")}

    def check(examples):
        wrong = [[1.03 * value for value in outputs] for outputs in examples["forward"]["outputs"]]
        program = SimpleNamespace(run=lambda calls: [wrong.pop(0) for _ in calls])
        return summarize(run_cases(program, examples, VerifyBounds()))

    with pytest.raises(
        VerificationFailed, match=r"[23]\d\.\d dB < 80\.0 dB \(eager is [4-7]\d\.\d dB from float64, the file"
    ):
        judged_by_eager_error(
            check, examples, VerifyBounds(), {"forward": lowered.outputs["export"]["program"]}, lowered.store
        )


def test_indices_agree_or_not(lower, made):
    """Integers and booleans count by how many are equal: in int8 some may differ, and with floats hardly any."""
    figures = lower(
        "builders:indices",
        recipe("xnnpack", quantize={"quantizer": "xnnpack"}, verify={"min_sqnr_db": 20, "drawn_inputs": 2}),
    ).figures
    assert 0.8 < figures["overall"]["agreement"] < 1
    assert figures["overall"]["sqnr_db"] is None
    path, examples = made("indices")
    for flat in examples["forward"]["outputs"]:
        flat[2] = (flat[2] + 1) % 9
    with pytest.raises(VerificationFailed, match=r"output 2: 0\.0 % .*< 99 %"):
        verify((path, examples))


def test_examples_in_another_order_in_memory(stages):
    """Examples are what they are to eager, whatever the order in memory of the one that was traced."""
    assert stages.lower("builders:two_layouts", PORTABLE).figures["overall"]["sqnr_db"] > 100
