"""Core ML's options reach its partitioner and converter."""

from __future__ import annotations

import sys

import pytest
from pteforge.errors import TargetError
from pteforge.tasks.targets import find_target

DEFAULTS = {
    "compute_units": b"all",
    "min_deployment_target": b"",
    "model_compute_precision": b"float16",
    "model_type": b"model",
}


@pytest.mark.parametrize(
    ("options", "specs"),
    [
        ({}, {}),
        ({"minimum_deployment_target": "iOS18"}, {"min_deployment_target": b"9"}),
        ({"minimum_deployment_target": "macOS15"}, {"min_deployment_target": b"9"}),
        ({"compute_unit": "cpu_and_ne"}, {"compute_units": b"cpu_and_ne"}),
        ({"compute_precision": "float32"}, {"model_compute_precision": b"float32"}),
        ({"share_weights": False}, {"multimethod_weight_sharing_strategy": b"disabled"}),
    ],
)
def test_options_are_compile_specs(options, specs, compile_specs):
    """What the converter reads is what the option says."""
    assert compile_specs("coreml", **options) == DEFAULTS | specs


@pytest.mark.parametrize(
    "name", ["iOS15", "iOS16", "iOS17", "iOS18", "iOS26", "macOS12", "macOS13", "macOS14", "macOS15", "macOS26"]
)
def test_systems(name, compile_specs):
    """Coremltools knows every system that can be named."""
    assert compile_specs("coreml", minimum_deployment_target=name)["min_deployment_target"]


def test_options_of_the_partitioner():
    """The others are arguments of the partitioner; operators go by the names of both dialects."""
    (plain,) = find_target("coreml").partitioners()
    assert (plain.skip_ops_for_coreml_delegation, plain.take_over_mutable_buffer, plain.lower_full_graph) == (
        [],
        True,
        False,
    )
    options = {"skip_operators": ["aten.add.Tensor", "aten.relu"], "take_over_mutable_buffers": False}
    (made,) = find_target("coreml", options).partitioners()
    names = ["aten.add.tensor", "add.tensor", "aten.relu.default", "relu.default"]
    assert made.skip_ops_for_coreml_delegation == names
    assert not made.take_over_mutable_buffer
    (full,) = find_target("coreml", {"lower_full_graph": True}).partitioners()
    assert full.lower_full_graph


def test_what_is_preserved():
    """Skipped operators are decomposed, nothing else decides on it."""
    plain = find_target("coreml").preserving()
    assert find_target("coreml", {"skip_operators": ["aten.add.Tensor"]}).preserving() != plain
    others = {"compute_precision": "float32", "lower_full_graph": True, "take_over_mutable_buffers": False}
    assert find_target("coreml", others).preserving() == plain


def test_compiled_models_need_a_mac():
    """What only a Mac can do is refused elsewhere, before any work starts."""
    if sys.platform == "darwin":
        assert find_target("coreml", {"model_type": "compiled_model"}).options.model_type == "compiled_model"
    else:
        with pytest.raises(TargetError, match=r"model_type: .*only a Mac can compile models"):
            find_target("coreml", {"model_type": "compiled_model"})


def test_is_not_reproducible():
    """Payloads carry random identifiers, and the target says so."""
    assert not type(find_target("coreml")).reproducible


@pytest.mark.slow
def test_options_change_the_payload(lower_apart, operators, tmp_path, monkeypatch):
    """Weights take twice as much in float32, and skipped operators run on the CPU, as do those that Core ML lacks.

    No copy of a model is left to the end of the process: stage processes end without cleaning up.
    """
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    made = lower_apart(
        "coreml",
        half=("mlp", {}),
        full=("mlp", {"compute_precision": "float32"}),
        skipping=("mlp", {"skip_operators": ["aten.relu.default"]}),
        state=("counter", {"minimum_deployment_target": "iOS18"}),
        no_state=("counter", {"take_over_mutable_buffers": False}),
        some=("uncommon", {}),
        all_or_nothing=("uncommon", {"lower_full_graph": True}),
    )
    weights = 4 * 64 * 512
    assert len(made["half"]) < weights < len(made["full"])
    assert operators(made["half"]) == set()
    assert operators(made["skipping"]) == {"aten::relu.out"}
    assert operators(made["state"]) == set()
    assert "aten::copy_" in operators(made["no_state"])
    assert operators(made["some"])
    assert made["all_or_nothing"].startswith(b"NotImplementedError: CoreML does not support the op aten.asinh.default")
    assert [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")] == []
