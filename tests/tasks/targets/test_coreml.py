"""Core ML's options reach its partitioner and converter; its shipped recipes are those of `executorch.export`."""

import importlib
import platform
import sys

import pteforge
import pytest
from pteforge.configs import Recipe
from pteforge.configs.nodes import plain
from pteforge.configs.recipe_lookup import read_preset
from pteforge.errors import TargetError
from pteforge.tasks.quantize.torchao_configs import class_name
from pteforge.tasks.targets import coreml, find_target
from pteforge.tasks.targets.find import check_quantizers, make_quantizer

SYSTEMS = {
    b"6": ("iOS15", "macOS12"),
    b"7": ("iOS16", "macOS13"),
    b"8": ("iOS17", "macOS14"),
    b"9": ("iOS18", "macOS15"),
    b"10": ("iOS26", "macOS26"),
}
DEFAULTS = {
    "compute_units": b"all",
    "min_deployment_target": b"",
    "model_compute_precision": b"float16",
    "model_type": b"model",
}


@pytest.mark.parametrize(
    ("python", "system", "machine", "expected"),
    [
        ((3, 13), "Linux", "x86_64", "pip install coremltools==9.0"),
        ((3, 11), "Darwin", "arm64", "pip install coremltools==9.0"),
        ((3, 14), "Linux", "x86_64", "this is Python 3.14 on Linux for x86_64"),
        ((3, 14), "Darwin", "arm64", "this is Python 3.14 on Darwin for arm64"),
        ((3, 11), "Linux", "aarch64", "this is Python 3.11 on Linux for aarch64"),
    ],
)
def test_where_it_can_be_made(monkeypatch, python, system, machine, expected):
    """Without coremltools, the reason is what to install, or that there are no wheels for this system."""
    monkeypatch.setattr(coreml, "find_spec", lambda _name: None)
    monkeypatch.setattr(sys, "version_info", (*python, 0, "final", 0))
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    reason = type(find_target("coreml")).available()
    assert expected in reason
    assert ("pip install" in reason) == ("this is" not in reason)


needs_coremltools = pytest.mark.skipif(type(find_target("coreml")).available() is not None, reason="no coremltools")


@needs_coremltools
@pytest.mark.parametrize(
    ("options", "specs"),
    [
        ({}, {}),
        *(
            ({"minimum_deployment_target": name}, {"min_deployment_target": version})
            for version, names in SYSTEMS.items()
            for name in names
        ),
        ({"compute_unit": "cpu_and_ne"}, {"compute_units": b"cpu_and_ne"}),
        ({"compute_precision": "float32"}, {"model_compute_precision": b"float32"}),
        ({"share_weights": False}, {"multimethod_weight_sharing_strategy": b"disabled"}),
    ],
)
def test_options_are_compile_specs(options, specs, compile_specs):
    """What the converter reads is what the option says; coremltools knows every system that can be named."""
    assert compile_specs("coreml", **options) == DEFAULTS | specs


@needs_coremltools
def test_options_of_the_partitioner():
    """The others are arguments of the partitioner; operators go by the names of both dialects."""
    options = {"skip_operators": ["aten.add.Tensor", "aten.relu"], "take_over_mutable_buffers": False}
    state = {"minimum_deployment_target": "macOS15"}
    plain, made, full, with_state = (
        next(iter(find_target("coreml", chosen).partitioners()))
        for chosen in ({}, options, {"lower_full_graph": True}, state)
    )
    assert not plain.skip_ops_for_coreml_delegation
    assert (plain.take_over_mutable_buffer, plain.lower_full_graph) == (False, False)
    assert with_state.take_over_mutable_buffer
    assert made.skip_ops_for_coreml_delegation == ["aten.add.tensor", "add.tensor", "aten.relu.default", "relu.default"]
    assert not made.take_over_mutable_buffer
    assert full.lower_full_graph

    plain = find_target("coreml").decomposition_options()
    assert find_target("coreml", {"skip_operators": ["aten.add.Tensor"]}).decomposition_options() != plain
    others = {"compute_precision": "float32", "lower_full_graph": True, "take_over_mutable_buffers": False}
    assert find_target("coreml", others).decomposition_options() == plain


def test_compiled_models_need_a_mac():
    """What only a Mac can do is refused elsewhere, before any work starts."""
    if sys.platform == "darwin":
        assert find_target("coreml", {"model_type": "compiled_model"}).options.model_type == "compiled_model"
    else:
        with pytest.raises(TargetError, match=r"model_type: .*only a Mac"):
            find_target("coreml", {"model_type": "compiled_model"})


@needs_coremltools
@pytest.mark.slow
def test_options_change_the_payload(lower_apart, operators, tmp_path, monkeypatch):
    """Weights take twice as much in float32, and skipped operators run on the CPU, as do those that Core ML lacks."""
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
        older=("counter", {}),
        circular=("circular", {}),
        some=("uncommon", {}),
        all_or_nothing=("uncommon", {"lower_full_graph": True}),
    )
    weights = 4 * 64 * 512
    assert len(made["half"]) < weights < len(made["full"])
    assert operators(made["half"]) == set()
    assert operators(made["skipping"]) == {"aten::relu.out"}
    assert operators(made["state"]) == set()
    assert "aten::copy_" in operators(made["no_state"])
    assert "aten::copy_" in operators(made["older"])
    assert len(made["circular"]) > 0
    assert operators(made["some"])
    assert made["all_or_nothing"].startswith(b"NotImplementedError: CoreML does not support the op aten.asinh.default")
    assert [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")] == []


PRESETS = {
    "coreml-fp32": ("FP32", {}),
    "coreml-fp16": ("FP16", {}),
    "coreml-int8-static": ("PT2E_INT8_STATIC", {}),
    "coreml-int8-weight-only": ("PT2E_INT8_WEIGHT_ONLY", {}),
    "coreml-int4-weight-only-per-channel": ("TORCHAO_INT4_WEIGHT_ONLY_PER_CHANNEL", {}),
    "coreml-int4-weight-only-per-group": ("TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP", {}),
    "coreml-int8-weight-only-per-channel": ("TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL", {}),
    "coreml-int8-weight-only-per-group": ("TORCHAO_INT8_WEIGHT_ONLY_PER_GROUP", {}),
    "coreml-codebook-weight-only": ("CODEBOOK_WEIGHT_ONLY", {"bits": 4, "block_size": [-1, 16]}),
}


@needs_coremltools
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This API and all of its related functionality")  # ExecuTorch's, of its recipes
@pytest.mark.parametrize("name", PRESETS)
def test_as_upstreams_recipe(name):
    """The converter gets the same settings, and the same quantizer or transform goes before it."""
    from executorch.backends.apple.coreml.recipes import CoreMLRecipeProvider, CoreMLRecipeType
    from pteforge.tasks.quantize.module_transforms import make_config

    kind, arguments = PRESETS[name]
    theirs = CoreMLRecipeProvider().create_recipe(CoreMLRecipeType[kind], **arguments)
    ours = Recipe.model_validate(plain(read_preset(name)))
    (partitioner,) = find_target("coreml", dict(ours.specializations[0].options)).partitioners()
    (expected,) = theirs.lowering_recipe.partitioners
    assert settings(partitioner) == settings(expected)
    assert partitioner.take_over_mutable_buffer <= expected.take_over_mutable_buffer  # only where there is state
    wanted = theirs.quantization_recipe
    quantizers = [make_quantizer(check_quantizers(ours.quantize))._config] if ours.quantize else []
    assert quantizers == [quantizer._config for quantizer in (wanted and wanted.quantizers) or []]
    transforms = [make_config(class_name(transform.torchao), transform.params) for transform in ours.source_transforms]
    assert transforms == [config.ao_base_config for config in (wanted and wanted.ao_quantization_configs) or []]

    translated = pteforge.recipe_from_executorch(theirs)
    (own,), (coreml, _) = translated.specializations, ours.specializations
    defaults = find_target("coreml", {}).options.model_dump()
    assert defaults | own.options == defaults | coreml.options
    assert check_quantizers(translated.quantize) == check_quantizers(ours.quantize)
    assert [transform.torchao for transform in translated.source_transforms] == [
        class_name(transform.torchao) for transform in ours.source_transforms
    ]


def settings(partitioner) -> tuple[object, ...]:
    """The settings of a partitioner and of the converter behind it."""
    specs = {spec.key: spec.value for spec in partitioner.delegation_spec.compile_specs}
    return specs, partitioner.lower_full_graph


SOURCE = """
import torch

class Scaled(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x * torch.tensor([1.0, 2.0, 3.0])) + 1
"""


@needs_coremltools
@pytest.mark.slow
def test_source_is_not_in_the_payload(lower_for, operators, tmp_path, monkeypatch):
    """The same model from another file, with other lines before it, gives the same bytes; all of it is delegated."""
    import torch

    assert type(find_target("mlx")).available() is None  # the wheel has everything that it needs
    (tmp_path / "scaled_one.py").write_text(SOURCE)
    (tmp_path / "scaled_other.py").write_text("# a comment\n" + SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    one, other = (
        lower_for("mlx", importlib.import_module(name).Scaled(), torch.ones(2, 3))
        for name in ("scaled_one", "scaled_other")
    )
    assert one == other
    assert operators(one) == set()
