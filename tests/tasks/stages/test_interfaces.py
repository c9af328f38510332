"""Models with control flow, or other interfaces than tensors in, tensors out: lowered and verified by all stages."""

import pytest
import torch
from pteforge.errors import PteforgeError, SourceError
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import PORTABLE, XNNPACK, recipe

every_target = pytest.mark.parametrize("recipe", [PORTABLE, XNNPACK], ids=["portable", "xnnpack"])


@every_target
def test_program_files_lower(recipe, lower, tmp_path):
    """A `.pt2` file goes all the way; keyword inputs reach the runtime in the order in which it takes them."""
    from networks import Keywords

    keywords = {"shift": torch.full((2,), 1.0), "factor": torch.full((2,), 3.0)}
    torch.export.save(torch.export.export(Keywords(), (torch.ones(2),), keywords), tmp_path / "scale.pt2")
    assert lower(str(tmp_path / "scale.pt2"), recipe).figures["overall"]["cases"] == 3


@every_target
@pytest.mark.parametrize(
    ("builder", "cases"),
    [
        *(("mixed_inputs", 6), ("mixed_outputs", 15), ("optional_input", 3), ("size_output", 8), ("other_types", 9)),
        *(("hands_out_state", 24), ("smoothing", 8)),  # half of them in a row of calls
    ],
)
def test_unusual_inputs_and_outputs_lower(builder, cases, recipe, lower):
    """Numbers, None, nested structures and other element types reach the runtime, and come back as eager gives them."""
    overall = lower(f"builders:{builder}", recipe).figures["overall"]
    assert overall["cases"] == cases
    assert builder != "hands_out_state" or overall["max_abs_error"] == 0


@every_target
def test_changed_inputs_come_back(recipe, lower):
    """The file gives the inputs that are written to before its outputs, in their order; it is verified like that."""
    from executorch.runtime import Runtime

    lowered = lower("builders:writes_to_inputs", recipe)
    stored = lowered.value("export", "examples")
    first, x, second = stored["inputs"][0]
    given = [tensor.clone() for tensor in (first, x, second)]
    outputs = Runtime.get().load_program(lowered.file).load_method("forward").execute(given)
    assert all(torch.equal(one, other) for one, other in zip(given, (first, x, second), strict=True))
    for output, expected in zip(outputs, stored["outputs"][0], strict=True):
        torch.testing.assert_close(output, expected)
    assert not torch.equal(outputs[0], first)
    assert torch.equal(outputs[1][:, 2:], second[:, 2:])
    assert not torch.equal(outputs[1], second)


def test_programs_on_the_way_give_changed_inputs_too(lower):
    """Every rung of the ladder has the same outputs to compare."""
    rungs = lower("builders:writes_to_inputs", PORTABLE | {"verify": {"ladder": True}}).findings["numerics"]
    assert {rung["name"] for rung in rungs} == {"exported", "edge", "payload"}
    assert all(rung["figures"] for rung in rungs), rungs


@pytest.mark.parametrize(("recipe", "strict"), [(PORTABLE, False), (XNNPACK, True)])
def test_keyword_inputs_of_two_methods(recipe, strict, lower):
    """Several examples, dynamic shapes by name, shared weights, and sequences of calls."""
    lowered = lower("builders:two_methods_with_keywords", recipe, strict=strict)
    figures = lowered.provenance["findings"]["figures"]
    assert set(figures["methods"]) >= {"cross", "own"}
    first, second = (step for step in lowered.steps if step.startswith("export"))
    names = [lowered.program(step).graph_signature.user_inputs for step in (first, second)]
    assert names == [("hidden", "memory", "mask"), ("hidden", 0.5)]


def test_dynamic_shapes_of_unknown_names(lower):
    """The error names the inputs that there are."""
    with pytest.raises(SourceError, match=r"names 'mask'; .*\['memory', 'hidden'\]"):
        lower("builders:only_keywords", PORTABLE, dynamic_shapes={"forward": {"mask": {0: {"min": 1, "max": 2}}}})


@pytest.mark.slow
def test_keyword_inputs_are_calibrated(lower):
    """Quantizers observe keyword inputs, too; sizes vary within dynamic shapes."""
    recipe = XNNPACK | {
        "quantize": {"quantizer": "xnnpack", "options": {}},
        "verify": {"min_sqnr_db": 8},
    }
    lowered = lower("builders:two_methods_with_keywords", recipe)
    assert "quantize/cross" in lowered.steps
    assert 8 < lowered.figures["overall"]["sqnr_db"] < 80


@pytest.mark.filterwarnings("ignore:The tensor attribute self.weight was assigned", "ignore:While compiling, we found")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("builder", ["weight_norm", "ran_before", "with_a_lock"])
def test_modules_that_deepcopy_refuses(builder, strict, lower):
    """Results of computations, static caches that were written to, locks and generators in a module are no obstacle."""
    assert lower(f"builders:{builder}", PORTABLE, strict=strict).figures["overall"]["cases"] >= 1


@pytest.mark.parametrize(
    ("builder", "cases"), [("named_tuple", 9), ("data_class", 6), ("returned_type", 6), ("named_tuple_as_input", 3)]
)
def test_classes_of_inputs_and_outputs(builder, cases, lower):
    """Namedtuples, dataclasses and torch's return types are flat in the file, and stages do not need the classes."""
    assert lower(f"builders:{builder}", PORTABLE).figures["overall"]["cases"] == cases


def test_sixteen_bits_on_the_way(lower):
    """An output in 32 bits that was computed in 16 has the bounds of these."""
    overall = lower("builders:half_inside", PORTABLE).figures["overall"]
    assert overall["rounded_to"] == "float16"
    assert 40 < overall["sqnr_db"] < 80


def test_int8_on_the_way(lower):
    """A method that quantizes to int8 by scales that it computes has the bounds of that."""
    assert lower("builders:int8_inside", PORTABLE).figures["overall"]["rounded_to"] == "int8"


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        ("unregistered", "returns a Unregistered, which torch.export does not know; call torch.export.register_datacl"),
        ("sorted_values", "cannot load method 'forward': it has no kernel for aten::sort.values; write the"),
        ("without_upper_bound", "method 'forward': dimension 0 of input 0 has no upper bound, .*; give one, as in Dim"),
    ],
)
def test_what_cannot_be_lowered(builder, message, lower):
    """The message says which method, why, and what to do."""
    with pytest.raises(PteforgeError, match=message):
        lower(f"builders:{builder}", PORTABLE)


WEIGHTS_AS_INPUTS = recipe({"target": "xnnpack", "options": {"force_non_static_weights_for_f32_linear": True}})


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [PORTABLE, XNNPACK], ids=["portable", "xnnpack"])
@pytest.mark.parametrize(("builder", "examples"), [("branches", 2), ("nested_branches", 3), ("rows", 1), ("sums", 1)])
def test_control_flow_is_lowered(builder, examples, recipe, lower):
    """`cond`, also nested, `map` and `scan` run on the runtime as in eager, whichever way an input goes."""
    lowered = lower(f"builders:{builder}", recipe)
    labels = {case["label"] for case in lowered.json("verify", "figures")["cases"]}
    (method,) = read_pte(lowered.file).methods
    assert {f"example {number}" for number in range(examples)} <= labels
    assert bool(method.delegates) is (recipe is XNNPACK)
    if builder == "branches":
        assert any("addmm" in operator for operator in method.operators)


def test_partitions_inside_of_branches(lower):
    """XNNPACK takes what it can in each branch; layers whose weights are inputs there only if the recipe says so."""
    from pteforge.tasks.programs.graphs import lowered_modules

    lowered = lower("builders:branches", WEIGHTS_AS_INPUTS)
    program = lowered.program("partition/forward")
    owners = [owner is program.graph_module for owner, _, _ in lowered_modules(program)]
    assert sorted(owners) == [False, False, True]  # a branch each, and the layer before
    (method,) = read_pte(lowered.file).methods
    assert len(method.delegates) == 3
    assert not any("addmm" in operator or "linear" in operator for operator in method.operators)


def test_loops_are_refused(lower):
    """ExecuTorch emits no `while_loop`; the error says so and what to do instead. When it does, this fails."""
    with pytest.raises(SourceError, match="'forward' has a while_loop"):
        lower("faulty:loop", PORTABLE)
    import faulty
    from executorch.exir import to_edge_transform_and_lower

    manager = to_edge_transform_and_lower(torch.export.export(*faulty.loop()))
    with pytest.raises(Exception, match="Unsupported control flow operator: while_loop"):
        manager.to_executorch()
