"""verify: right files pass, wrong ones do not, and the figures are those of what was run."""

from __future__ import annotations

import pytest
from pteforge.artifacts.pte.reader import read_pte
from pteforge.configs import CompileOptions
from pteforge.configs.verify_bounds import VerifyBounds
from pteforge.errors import VerificationFailed
from pteforge.tasks.catalog import StageName
from pteforge.tasks.figures import Figures
from pteforge.tasks.params import CompileParams, EdgeParams, VerifyParams

PORTABLE = {"specializations": [{"target": "portable"}]}


@pytest.fixture
def made(stages, tmp_path):
    """A file and the examples of its methods, by builder."""

    def make(builder, drawn=2, **edge):
        linked, examples = {}, {}
        for method in ["forward", "encode"] if builder == "two_methods" else ["forward"]:
            exported = stages.export(f"chain_models:{builder}", method=method, drawn_inputs=drawn)
            program = stages.run(StageName.EDGE, EdgeParams(**edge), {"program": exported["program"]})["program"]
            linked |= {f"program/{method}": program, "constants": exported["constants"]}
            examples[method] = exported["examples"]
        params = CompileParams(options=CompileOptions(), edge=EdgeParams(**edge))
        payload = stages.run(StageName.COMPILE, params, linked)["payload"]
        from pteforge.artifacts.pte.pieces import write_payload

        write_payload(payload, stages.store, tmp_path / "model.pte")
        return tmp_path / "model.pte", {method: stages.value(ref) for method, ref in examples.items()}

    return make


def verify(made, **bounds):
    """Figures of a file and its examples."""
    from pteforge.tasks.stages.verify import verify_file

    path, examples = made
    return verify_file(path, examples, VerifyParams(bounds=VerifyBounds.model_validate(bounds)))


def test_right_file(made):
    """A file that computes what eager computes passes with figures for every method, case and output."""
    figures = verify(made("two_methods"))

    assert {case.method for case in figures.cases} == set(figures.methods) == {"forward", "encode"}
    assert [case.label for case in figures.cases if case.method == "forward"] == ["example 0", "drawn 0", "drawn 1"]
    assert figures.overall.cases == 6
    assert figures.overall.sqnr_db is None or figures.overall.sqnr_db > 120


def test_stage(stages):
    """The stage stores the figures of all methods, as it reads them from the artifacts."""
    import json

    lowered = stages.lower("chain_models:two_methods", PORTABLE)
    ref = lowered.outputs["verify/tested"]["figures"]
    assert ref.kind == "report/figures"
    figures = Figures.from_json(json.loads(stages.store.read_artifact(ref)))
    assert set(figures.methods) == {"forward", "encode"}


def test_changed_weights(made):
    """One weight that is not the model's, and the file fails; the message says where and by how much."""
    path, examples = made("conv_net")
    content = bytearray(path.read_bytes())
    (weight,) = (each for each in read_pte(bytes(content)).constants if each.tensor.shape == (4, 3, 3, 3))
    content[weight.offset + 3] ^= 0x40  # in the exponent of the first float
    path.write_bytes(content)

    with pytest.raises(VerificationFailed, match=r"method 'forward', example 0, output 0: SQNR \S+ dB < 80\.0 dB"):
        verify((path, examples))


def test_every_violation_is_told(made):
    """The message has every case and figure that is outside the bounds."""
    path, examples = made("conv_net")
    examples["forward"]["outputs"] = [[output + 1 for output in outputs] for outputs in examples["forward"]["outputs"]]
    with pytest.raises(VerificationFailed) as caught:
        verify((path, examples), max_abs_error=0.5)
    text = str(caught.value).removeprefix("the file does not compute what eager computes: ")
    problems = text.removesuffix(" (the recipe's `verify` has the bounds)").split("; ")
    assert len(problems) == 6
    assert sum("max abs error 1 > 0.5" in problem for problem in problems) == 3
    assert [problem.split(", ")[1] for problem in problems[::2]] == ["example 0", "drawn 0", "drawn 1"]


@pytest.mark.parametrize(
    ("within", "outside"),
    [
        ({"max_abs_error": 0.501}, {"max_abs_error": 0.499}),
        ({"max_relative_error": 0.251}, {"max_relative_error": 0.249}),
        ({"min_sqnr_db": 12.0}, {"min_sqnr_db": 12.1}),
    ],
)
def test_bounds(within, outside, made):
    """Each bound decides by itself: a file that gives 1.5 where eager gives 2 is off by 0.5, a quarter and 12.04 dB."""
    import torch

    path, examples = made("constant", drawn=0)
    assert examples["forward"]["outputs"][0][0].tolist() == [1.5] * 4
    examples["forward"]["outputs"] = [[torch.full((4,), 2.0)]]
    assert verify((path, examples), **{"min_sqnr_db": None} | within).overall.max_abs_error == 0.5
    with pytest.raises(VerificationFailed):
        verify((path, examples), **{"min_sqnr_db": None} | outside)


def test_wrong_number_of_outputs(made):
    """Outputs that eager does not give, or that the file lacks, are never compared pairwise."""
    path, examples = made("conv_net", drawn=0)
    (outputs,) = examples["forward"]["outputs"]
    for wrong in ([], outputs * 2):
        examples["forward"]["outputs"] = [wrong]
        with pytest.raises(VerificationFailed, match=f"gives 1 outputs on example 0, eager gives {len(wrong)}"):
            verify((path, examples))


def test_dynamic_shapes(made):
    """A dynamic file is run at every size: the examples', the bounds'."""
    path, examples = made("mlp", drawn=3)
    rows = [flat[0].shape[0] for flat in examples["forward"]["inputs"]]
    assert rows[:4] == [3, 5, 1, 16]
    figures = verify((path, examples), drawn_inputs=3)
    assert [case.label for case in figures.cases] == ["example 0", "example 1", "drawn 0", "drawn 1", "drawn 2"]


@pytest.mark.parametrize(("asked", "run"), [(0, 0), (1, 1), (3, 3), (9, 3)])
def test_drawn_inputs(asked, run, made):
    """No more drawn inputs are run than the recipe asks for, whatever `export` drew for other recipes."""
    figures = verify(made("mlp", drawn=3), drawn_inputs=asked)
    assert sum(case.label.startswith("drawn") for case in figures.cases) == run
    assert sum(case.label.startswith("example") for case in figures.cases) == 2


def test_state_does_not_reach_the_next_case(made):
    """Every case starts from the state that the model was built with, as eager's did."""
    figures = verify(made("counter"))
    assert figures.overall.cases == 4
    assert figures.overall.max_abs_error < 1e-5


def test_missing_method(made):
    """A method that the file lacks is a failure of the file."""
    path, examples = made("conv_net")
    examples["decode"] = examples["forward"]
    with pytest.raises(VerificationFailed, match="the runtime cannot load method 'decode'"):
        verify((path, examples))


def test_missing_kernel(made):
    """So is an operator that no kernel runs."""
    with pytest.raises(VerificationFailed, match=r"cannot load method 'forward'.* its log says whether"):
        verify(made("keeps_hardswish", preserve_operators=("aten.hardswish.default",)))


def test_inputs_that_the_file_does_not_take(made):
    """So is a file that cannot be run on the inputs that eager was run on."""
    import torch

    path, examples = made("conv_net", drawn=0)
    examples["forward"]["inputs"] = [[torch.ones(1, 3, 9, 9)]]
    with pytest.raises(VerificationFailed, match=r"method 'forward' fails on example 0, with inputs of \[\(.*\)\]: "):
        verify((path, examples))


def test_damaged_file(made):
    """What is no program is not run."""
    path, examples = made("conv_net", drawn=0)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(VerificationFailed, match="the file is damaged or cut short"):
        verify((path, examples))


def test_plain_file_without_its_backend(stages):
    """A plain file for a backend that is not here cannot be verified: the message says which, and what can be done."""
    with pytest.raises(VerificationFailed, match=r"needs VulkanBackend, which .* `output: {form: fat}`"):
        stages.lower("chain_models:mlp", {"specializations": [{"target": "vulkan"}]})
