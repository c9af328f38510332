"""source_transform: what torchao and callables do to modules, on a copy, stable, and clear where it cannot be done."""

import sys
from pathlib import Path

import pytest
import torch
from pteforge.configs.nodes import plain
from pteforge.configs.presets import preset_names
from pteforge.configs.recipe import Recipe
from pteforge.configs.recipe_lookup import read_preset
from pteforge.errors import SourceError, TargetError
from pteforge.tasks.engine.stage import CallableParams
from pteforge.tasks.programs.weights import TensorFiles
from pteforge.tasks.quantize import module_transforms
from pteforge.tasks.quantize.module_transforms import transform_copy
from pteforge.tasks.quantize.stages.source_transform import SourceTransform
from pteforge.tasks.quantize.torchao_configs import TorchaoParams, class_name
from pteforge.tests.lowering import recipe

STEP = "source_transform/forward"
INT4 = {"weight_dtype": "int4", "weight_granularity": {"per_group": 32}}
CHANNEL = {"weight_dtype": "int4", "weight_granularity": {"per_axis": 0}}
EIGHT_FOUR = "Int8DynamicActivationIntxWeightConfig"


@pytest.fixture
def transform(stages):
    """Runs the stage on a builder with transforms; gives the program."""

    def run(builder, *transforms, method=None):
        params = SourceTransform.Params(
            source={"builder": f"builders:{builder}", "kwargs": {}}, method=method, transforms=transforms
        )
        return stages.program(stages.run(SourceTransform, params)["program"])

    return run


def call(name, **kwargs):
    return CallableParams(source={"builder": f"callables:{name}", "kwargs": kwargs})


def quantized(program):
    """Names of the layers whose weights are integers; the module's own one is empty."""
    return {
        name.partition("parametrizations.weight")[0].rstrip(".")
        for name, value in program.state_dict.items()
        if is_int8(value)
    }


def is_int8(value):
    return value.dtype is torch.int8 and value.dim() == 2


def transforming(*transforms, sqnr=10.0):
    return recipe("xnnpack", source_transforms=list(transforms), verify={"min_sqnr_db": sqnr})


@pytest.mark.parametrize(
    ("builder", "given", "layers"),
    [
        ("stack", {}, {"first", "second", "head"}),
        ("stack", {"include": ("*d",)}, {"second", "head"}),
        ("stack", {"exclude": ("head", "f*")}, {"second"}),
        ("stack", {"include": ("first", "second"), "exclude": ("second",)}, {"first"}),
        ("one_layer", {}, {""}),
    ],
)
def test_layers_are_chosen_by_name(builder, given, layers, transform):
    """A layer is quantized where a pattern matches its name and none of those to leave out does."""
    assert quantized(transform(builder, TorchaoParams(config=EIGHT_FOUR, fields=INT4, **given))) == layers


def test_earlier_transforms_go_first(transform):
    """What one has quantized the next leaves alone, so that the last may take the rest."""
    program = transform(
        "stack",
        TorchaoParams(config=EIGHT_FOUR, fields=CHANNEL, include=("head",)),
        TorchaoParams(config="Int8WeightOnlyConfig"),
    )
    assert quantized(program) == {"first", "second", "head"}
    targets = [node.target for node in program.graph.nodes]
    assert targets.count(torch.ops.torchao.choose_qparams_affine.default) == 1


def test_callables(transform):
    """A function may change the module or give another one, with arguments; what it gives runs in inference mode."""
    values = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    plain_model = transform("stack", call("wrapped", factor=1.0)).module()
    changed = transform("stack", call("double"), call("wrapped", factor=0.5)).module()
    assert not torch.equal(changed(values), plain_model(values))
    weights = plain_model.state_dict(), changed.state_dict()
    assert torch.equal(weights[1]["inner.head.weight"], 2 * weights[0]["inner.head.weight"])
    assert torch.equal(changed(values), changed(values))


@pytest.mark.parametrize("first", [[call("double")], [TorchaoParams(config="Int8WeightOnlyConfig", include=("head",))]])
def test_the_models_own_module_is_left_alone(first, transform):
    """Transforms work on a copy: a module that the user's code holds on to is as it was."""
    import builders

    before = {name: value.clone() for name, value in builders.kept()[0].state_dict().items()}
    transform("kept", *first, TorchaoParams(config=EIGHT_FOUR, fields=INT4))
    after = builders.kept()[0].state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_embeddings_and_methods(transform):
    """Embeddings are quantized where a transform asks for them, and linear layers are then left alone."""
    given = TorchaoParams(config="IntxWeightOnlyConfig", fields={"weight_dtype": "int4"}, layers=("embedding",))
    assert quantized(transform("tagger", given)) == {"words"}
    both = TorchaoParams(config="IntxWeightOnlyConfig", layers=("embedding", "linear"))
    assert quantized(transform("tagger", both)) == {"words", "tags"}
    both, one = (TorchaoParams(config=EIGHT_FOUR, fields=INT4, include=(name,)) for name in ("shared", "only_here"))
    assert quantized(transform("two_named_stacks", both, one, method="encode")) == {"shared"}
    assert quantized(transform("two_named_stacks", both, one, method="decode")) == {"shared", "only_here"}


INT8 = {"weight_dtype": "int8", "weight_granularity": {"per_axis": 0}}


def test_layers_that_groups_do_not_divide(transform):
    """They are quantized with other fields, if there are some and another layer is divided."""
    given = TorchaoParams(config=EIGHT_FOUR, fields=INT4, otherwise=INT8)
    program = transform("odd_stack", given)
    assert quantized(program) == {"0", "1"}
    weights = [value for value in program.state_dict.values() if is_int8(value) and value.shape[1] in (30, 64)]
    assert [value.abs().max() > 8 for value in sorted(weights, key=lambda value: -value.shape[1])] == [False, True]
    with pytest.raises(TargetError, match=r"layer '1' has 30 input features, and groups of 32"):
        transform("odd_stack", given.model_copy(update={"include": ("1",)}))


@pytest.mark.parametrize(
    ("builder", "given", "message"),
    [
        ("stack", {"include": ("body.*",)}, r"\[0\] matches no layer .*'first', 'second'"),
        ("two_named_stacks", {"include": ("x",)}, r"no method of the model; .*'shared'"),
        ("stack", {"layers": ("embedding",)}, r"has no layer of these kinds"),
        ("odd_stack", {"fields": INT4}, r"layer '1' has 30 input features, and groups of 32"),
        ("stack", {"config": "Int8Config"}, r"torchao.quantization has no config 'Int8Config'"),
        ("stack", {"fields": {"weight_dtype": "float32"}}, r"refuses \{'weight_dtype': 'float32'\}: Ass"),
    ],
)
def test_what_torchao_cannot_do(builder, given, message, transform):
    """Wrong names, values and sizes are the user's to mend, and the message says what is wrong with which layer."""
    with pytest.raises(TargetError, match=message):
        transform(builder, TorchaoParams(**{"config": EIGHT_FOUR, **given}))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_module", "returned list; it must return a module, or None"),
        ("failing", "failing failed: KeyError: 'Sequential'"),
        ("gone", "gone failed: AttributeError"),
    ],
)
def test_what_callables_may_not_do(name, message, transform):
    """A function that raises or returns something else is named."""
    with pytest.raises(SourceError, match=message):
        transform("stack", call("double"), call(name))


def test_sources(stages, tmp_path):
    """Modules that a callable loads by a computed name are an output, for the key; a program file has no modules."""
    for name in ("callables", "hidden_plugin"):
        sys.modules.pop(name, None)
    source = {"builder": "builders:stack", "kwargs": {}}
    params = SourceTransform.Params(source=source, transforms=(call("by_hidden_plugin"),))
    assert {"callables", "hidden_plugin"} <= set(
        stages.json(stages.run(SourceTransform, params)["observed"])["modules"]
    )

    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), tmp_path / "program.pt2")
    params = SourceTransform.Params(source={"program": "0"}, transforms=(call("double"),))
    with pytest.raises(SourceError, match=r"a .pt2 file has none"):
        stages.run(SourceTransform, params, program_file=tmp_path / "program.pt2")


def test_dynamic_shapes_are_kept(transform):
    """A batch that may vary still may, within the same bounds."""
    program = transform("layer_of_any_batch", TorchaoParams(config=EIGHT_FOUR, fields=INT4))
    assert [(bounds.lower, bounds.upper) for bounds in program.range_constraints.values()] == [(2, 9)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::executorch.exir._warnings.ExperimentalWarning")  # of every ExportRecipe
@pytest.mark.parametrize("kind", ["channel", "tensor"])
def test_presets_are_upstreams(kind, stages):
    """The shipped recipes lose as much as ExecuTorch's own session loses with the recipe type of that name."""
    import builders
    from executorch.backends.xnnpack.recipes.xnnpack_recipe_types import XNNPackRecipeType
    from executorch.export import ExportRecipe, export
    from executorch.runtime import Runtime

    given = plain(read_preset(f"xnnpack-int8da-int4w-per-{kind}"))
    lowered = stages.lower("builders:stack", given)
    torch.manual_seed(0)
    model, inputs = builders.stack()
    recipe_type = XNNPackRecipeType[f"TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_{kind.upper()}"]
    theirs = bytes(export(model.eval(), [inputs], ExportRecipe.get_recipe(recipe_type)).get_pte_buffer())
    outputs = [
        Runtime.get().load_program(file).load_method("forward").execute(inputs)[0] for file in (lowered.file, theirs)
    ]
    with torch.no_grad():
        reference = model(*inputs)
        sqnr = [float(10 * torch.log10(reference.square().sum() / (reference - out).square().sum())) for out in outputs]
    assert sqnr[0] == pytest.approx(sqnr[1], abs=1)
    assert sqnr[0] > given["verify"]["min_sqnr_db"]
    assert torch.equal(*outputs)


def test_what_transforms_reach(lower):
    """Provenance has the share of the weights, and a recipe may ask for one; where quantizers follow, theirs counts."""
    embeddings = {
        "torchao": "intx_weight_only",
        "params": {"weight_dtype": "int8", "granularity": {"per_axis": 0}},
        "layers": ["embedding"],
    }
    made = lower("builders:linear_and_embedding", transforming(embeddings)).findings["quantization"][0]
    assert made["sizes"] == {"float32": 4 * 16 * 16, "int8": 512 * 16}
    assert [weight["why"] for weight in made["left"]] == ["no transform has `layers: [linear]`"]
    with pytest.raises(TargetError, match=r"99% \(`source_transforms.at_least`\), .*97% of"):
        lower("builders:linear_and_embedding", transforming({**embeddings, "at_least": 0.99}))
    asked = transforming({**embeddings, "at_least": 0.9}) | {
        "quantize": {"quantizer": "xnnpack", "options": {"dynamic": True}, "at_least": 1.0}
    }
    made = lower("builders:linear_and_embedding", asked).findings["quantization"][0]
    assert (made["sizes"], made["left"]) == ({"int8": 528 * 16}, [])


def test_tables_that_transforms_leave(lower):
    """Where quantizers follow, a table that the transforms leave has their reason, and not the advice to add some."""
    params = {"weight_dtype": "int8", "granularity": {"per_axis": 0}}
    embeddings = {"torchao": "intx_weight_only", "params": params, "layers": ["embedding"], "exclude": "small"}
    asked = transforming(embeddings) | {"quantize": {"quantizer": "xnnpack", "options": {"dynamic": True}}}
    (left,) = lower("builders:two_embeddings", asked).findings["quantization"][0]["left"]
    assert (left["name"], left["why"]) == ("small.weight", "a transform's `filter_fn` or `exclude` leaves it out")


class Tied(torch.nn.Module):
    """Layers of many kinds, with a large one and one that stands in two places."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(4096, 64)
        self.large = torch.nn.Linear(64, 4096)
        self.back = torch.nn.Linear(4096, 64, bias=False)
        self.again = self.back
        self.head = torch.nn.Linear(64, 2080)

    def forward(self, tokens):
        states = self.again(self.large(self.back(self.large(self.table(tokens)))))
        return self.head(states)


TRANSFORMING = [name for name in preset_names() if "source_transforms" in plain(read_preset(name))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in TRANSFORMING),
        *((name, torch.bfloat16) for name in TRANSFORMING if "codebook" not in name),  # torchao makes them of float32
    ],
)
def test_weights_leave_memory_and_stay_the_same(name, dtype, tmp_path, monkeypatch):
    """Layer by layer, large ones by rows, quantized weights move to files; they are those of one call of torchao's."""
    ours = Recipe.model_validate(plain(read_preset(name)))
    transforms = [
        TorchaoParams(config=class_name(made.torchao), fields=made.params, layers=made.layers, exclude=made.exclude)
        for made in ours.source_transforms
    ]
    module = Tied().to(dtype).eval()
    at_once, matched = transform_copy(module, transforms)
    monkeypatch.setattr(module_transforms, "_ROWS", 1 << 17)
    moved, also_matched = transform_copy(module, transforms, files=TensorFiles(tmp_path))
    assert matched == also_matched
    expected, state = at_once.state_dict(), moved.state_dict()
    assert expected.keys() == state.keys()
    assert all(torch.equal(expected[key], value) and expected[key].dtype == value.dtype for key, value in state.items())
    mapped = [
        row.split()[0].split("-") for row in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in row
    ]
    large = [value for value in state.values() if not value.is_floating_point() and value.nbytes > 1 << 17]
    assert large
    for value in large:
        assert any(int(start, 16) <= value.data_ptr() < int(end, 16) for start, end in mapped)
