"""quantize: what PT2E gives for the public functions, stable, with dynamic shapes kept; clear where nothing is done."""

import json

import pytest
import torch
from pteforge.configs import Quantize as Quantization
from pteforge.configs.verification import VerifyBounds
from pteforge.errors import TargetError, VerificationFailed
from pteforge.formats.describe import weight_bytes
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.quantize.stages.quantize import Quantize
from pteforge.tasks.results import quantization
from pteforge.tasks.results.causes import known_causes
from pteforge.tasks.targets.find import check_quantizers
from pteforge.tests.lowering import recipe

FORWARD = "quantize/forward"
STEPS = ("export", FORWARD)


def int8(target="xnnpack", **options):
    quantize = {"quantizer": "xnnpack", "options": options}
    return recipe(target, quantize=quantize, verify={"min_sqnr_db": 15})


def with_public_functions(builder: str) -> bytes:
    """The file that prepare, calibration, convert and one call of `to_edge_transform_and_lower` give."""
    import builders
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    torch.manual_seed(0)
    model, inputs = getattr(builders, builder)()
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(torch.export.export(model.eval(), inputs).module(), quantizer)
    with torch.no_grad():
        prepared(*inputs)
    program = torch.export.export(convert_pt2e(prepared), inputs)
    lowered = to_edge_transform_and_lower(
        program, partitioner=[XnnpackPartitioner()], compile_config=EdgeCompileConfig(_skip_dim_order=False)
    )
    return bytes(lowered.to_executorch().buffer)


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["shared_input", "two_partitions"])
def test_as_public_functions(builder, stages):
    """The file is the one that PT2E and ExecuTorch's public functions give, called one after another."""
    assert stages.lower(f"builders:{builder}", int8()).file == with_public_functions(builder)


def of_the_example(**options):
    """In int8, verified with what quantizers have observed: others of so few values have larger sums."""
    return {**int8(**options), "verify": {"min_sqnr_db": 15, "drawn_inputs": 0}}


@pytest.mark.parametrize("options", [{}, {"dynamic": True}], ids=["static", "dynamic"])
def test_state(options, stages):
    """A model with state keeps it from call to call, and starts with its own, not with what samples made of it."""
    made = stages.lower("builders:streaming", of_the_example(**options))
    state = made.program(FORWARD).state_dict
    assert (state["calls"].item(), {*state["mean"].flatten().tolist()}) == (0, {0.25})
    assert made.figures["overall"]["cases"] == 8
    assert made.figures["overall"]["sqnr_db"] > 25


@pytest.mark.parametrize("options", [{}, {"dynamic": True}], ids=["static", "dynamic"])
def test_weights_that_are_no_constants(options, stages):
    """Layers with an input, something computed or overwritten state as weight stay in floating point, others do not."""
    made = stages.lower("builders:computed", of_the_example(**options))
    assert made.figures["overall"]["sqnr_db"] > 25
    integers = [value for value in made.program(FORWARD).state_dict.values() if value.element_size() == 1]
    assert sorted(value.numel() for value in integers if value.dim()) == [16, 96]


def test_values_computed_from_weights(stages):
    """What a pass computes from weights, on a graph without them, is computed with them then."""
    assert stages.lower("builders:transposed_weight", of_the_example()).figures["overall"]["sqnr_db"] > 25


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="static"),
        pytest.param({"per_channel": False}, id="tensor", marks=pytest.mark.slow),
        pytest.param({"dynamic": True}, id="dynamic", marks=pytest.mark.slow),
    ],
)
def test_dynamic_shapes_are_kept(options, stages):
    """A batch that may vary still may, within the same bounds; the file is verified at both of them."""
    lowered = stages.lower("builders:mlp", int8(**options), dynamic_shapes={"forward": [{0: {"min": 2, "max": 7}}]})
    exported = lowered.program("export")
    quantized = lowered.program(FORWARD)
    bounds = [[(b.lower, b.upper) for b in program.range_constraints.values()] for program in (exported, quantized)]
    assert bounds[0] == bounds[1] != []


@pytest.mark.parametrize(
    "options", [{"dynamic": True}, pytest.param({}, marks=pytest.mark.slow)], ids=["dynamic", "static"]
)
@pytest.mark.parametrize(
    ("source", "bounds", "shape"),
    [
        ({"builder": "builders:skips", "kwargs": {"step": 4}}, ["VR[2, 8]", "VR[8, 32]"], (1, 3, 32, 8)),
        ("builders:leads", ["VR[2, 8]", "VR[3, 9]"], (9, 8)),
    ],
    ids=["multiple", "longer"],
)
def test_derived_sizes_are_kept(source, bounds, shape, options, stages):
    """Sizes that are multiples of a dimension, or longer by a number, still are, within the same bounds."""
    lowered = stages.lower(source, int8(**options) | {"verify": {"min_sqnr_db": 10}})
    for step in STEPS:
        assert sorted(map(str, lowered.program(step).range_constraints.values())) == bounds
    (method,) = read_pte(lowered.file).methods
    assert method.inputs[0].shape == shape


def test_guarded_sizes_are_kept(stages):
    """Dynamic sizes with guards that torch took when it exported the model are taken again, within the same bounds."""
    lowered = stages.lower("builders:neighbors", int8(dynamic=True))
    bounds = [sorted(str(bound) for bound in lowered.program(step).range_constraints.values()) for step in STEPS]
    assert bounds[0] == bounds[1] != []


def test_calibrated_on_the_example_only(stages):
    """Bounds hold on the example, and random inputs are measured; where the recipe asks for them, bounds hold there."""
    asked, builder = int8() | {"verify": {"min_sqnr_db": 25}}, "builders:calibrated_on_one"
    figures = stages.lower(builder, asked).figures
    assert figures["drawn"]["sqnr_db"] < 25 < figures["overall"]["sqnr_db"]
    assert figures["overall"]["cases"] == 1
    assert figures["calibration"] == {"forward": "1 example"}
    with pytest.raises(VerificationFailed, match=r"drawn .* give .*`calibration` samples"):
        stages.lower(builder, asked | {"verify": {"min_sqnr_db": 25, "drawn_inputs": 2}})


@pytest.mark.slow
def test_calibrated_on_samples(stages):
    """Bounds hold on the example and on the first samples, each compared with what eager makes of it."""
    kwargs = {"count": 30, "rows": 2, "width": 16, "scale": 0.05}
    calibration = {"forward": {"dataset": "callables:batches", "kwargs": kwargs, "samples": 30}}
    asked, builder = int8() | {"verify": {"min_sqnr_db": 25}}, "builders:calibrated_on_one"
    lowered = stages.lower(builder, asked, calibration=calibration)
    figures = lowered.figures
    assert figures["calibration"] == {"forward": "30 samples"}
    assert [case["label"] for case in figures["cases"]][:6] == [
        "example 0", "sample 0", "sample 1", "sample 2", "sample 3", "drawn 0",
    ]  # fmt: skip
    assert figures["overall"]["cases"] == 5
    assert figures["drawn"]["cases"] == 3
    kwargs["scale"] = 50.0  # ranges for which the example is next to nothing
    with pytest.raises(VerificationFailed, match=r"example 0"):
        stages.lower(builder, asked, calibration=calibration)


def test_random_inputs_of_a_file_calibrated_on_its_example(stages, tmp_path):
    """They are held to what the quantized program computes: a file that computes something else there is wrong."""
    from pteforge.tasks.verify.verification import as_quantized, verify_file

    lowered = stages.lower("builders:calibrated_on_one", int8())
    (path := tmp_path / "model.pte").write_bytes(lowered.file)
    stored = lowered.value("export", "examples")
    like = as_quantized(stored, lowered.outputs[FORWARD]["program"], 2, lowered.store)
    bounds = VerifyBounds(min_sqnr_db=20)
    assert verify_file(path, {"forward": stored}, bounds, on_examples={"forward": like}).drawn.cases == 3
    like["outputs"][1][0].neg_()
    with pytest.raises(VerificationFailed, match=r"on random inputs.*its quantized program computes"):
        verify_file(path, {"forward": stored}, bounds, on_examples={"forward": like})


def test_quantized_programs_run_on_portable_kernels(stages):
    """A quantized program needs no backend: the portable kernels have its operators."""
    lowered = stages.lower("builders:mlp", int8("portable"))
    assert read_pte(lowered.file).backends == ()


@pytest.mark.parametrize(
    ("quantizers", "names"),
    [
        ([{"quantizer": "xnnpack"}], "xnnpack"),
        ([{"quantizer": "vulkan"}, {"quantizer": "coreml"}], "vulkan and coreml"),
    ],
)
def test_nothing_to_quantize(quantizers, names, stages):
    """A program without any operator that one of the quantizers takes is an error before anything is lowered."""
    exported = stages.export("builders:inverse", drawn_inputs=0)
    inputs = {role: exported[role] for role in ("program", "examples")}
    params = Quantize.Params(quantizers=check_quantizers(Quantization.model_validate({"quantizers": quantizers})))
    with pytest.raises(TargetError, match=f"quantizer of {names} finds no operator"):
        stages.run(Quantize, params, inputs)


@pytest.mark.parametrize("dynamic", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_products_with_weights(dynamic, stages):
    """Layers written as products are quantized as linear layers are, for any batch; none stays in floating point."""
    shapes = {"forward": [{0: {"min": 1, "max": 6}}]}
    made = int8(dynamic=dynamic) | {"verify": {"min_sqnr_db": 10}}  # static scales are those of one example
    lowered = stages.lower("builders:products", made, dynamic_shapes=shapes)
    state = lowered.program(FORWARD).state_dict
    integers = {value.numpy().tobytes() for value in state.values() if value.element_size() == 1}
    assert sorted(map(len, integers)) == [192, 384, 576]
    assert max(value.numel() for value in state.values() if value.is_floating_point()) == 24
    (method,) = read_pte(lowered.file).methods
    assert not [operator for operator in method.operators if "mm" in operator]


def test_quantizers_compose(stages):
    """Of several quantizers each takes what those before it have left: linear layers dynamically, the rest statically.

    The first one in the list is the first choice, so the other way round nothing is left for the second.
    """
    exported = stages.export("builders:conv_net")
    inputs = {role: exported[role] for role in ("program", "examples")}
    rules = [{"operator": "aten.linear.default", "dynamic": True}]
    dynamic, static = (
        {"quantizer": "xnnpack", "options": options} for options in ({"only_rules": True, "rules": rules}, {})
    )

    def by_layer(*quantizers):
        chosen = check_quantizers(Quantization.model_validate({"quantizers": quantizers}))
        quantized = stages.run(Quantize, Quantize.Params(quantizers=chosen), inputs)
        return scales(stages.program(quantized["program"]))

    fixed, computed = "quantize_per_tensor.default", "quantize_per_tensor.tensor"
    assert by_layer(dynamic, static) == {"conv2d": fixed, "linear": computed}
    assert by_layer(static, dynamic) == {"conv2d": fixed, "linear": fixed}


@pytest.mark.slow
def test_layers_that_lose_most(stages):
    """The message has as many of them as have to stay in floating point for the file to pass, which it then does."""
    asked = int8()
    advice = r"loses most in 'fragile'.*passes with 1 of 2 .*`quantize: \{exclude: \['fragile'\]"
    with pytest.raises(VerificationFailed, match=advice):
        stages.lower("builders:fragile_layer", asked)
    assert stages.lower("builders:fragile_layer", asked | {"quantize": asked["quantize"] | {"exclude": "fragile"}}).file


@pytest.mark.slow
def test_where_half_of_the_layers_is_not_enough(stages):
    """The message says so, and names computed scales, with which the file passes, where the recipe has fixed ones."""
    from pteforge.errors import VerificationFailed

    advice = r"does not pass with half of 4 layers .*; it passes with .*`quantize: \{options: \{dynamic: true\}\}`"
    with pytest.raises(VerificationFailed, match=advice):
        stages.lower("builders:loud_and_quiet", int8())
    assert stages.lower("builders:loud_and_quiet", int8(dynamic=True)).file
    with pytest.raises(VerificationFailed, match=r"not pass with half of [^;]*\Z"):
        stages.lower("builders:loud_and_quiet", int8(dynamic=True) | {"verify": {"min_sqnr_db": 70}})


@pytest.mark.slow
def test_where_random_inputs_alone_miss(stages):
    """The message says what the examples reach, and names no layers, which they are ranked by, unless it is asked to.

    The way out that the known cause names is one.
    """
    from pteforge.errors import VerificationFailed

    asked = int8(dynamic=True) | {"verify": {"min_sqnr_db": 20}}
    with pytest.raises(VerificationFailed, match=r"drawn .*examples pass with [34]\d\.\d dB \(") as caught:
        stages.lower("builders:loud_in_one_place", asked)
    message = str(caught.value)
    assert not any(words in message for words in ("example 0", "loses most", "calibration"))
    (finding,) = known_causes("verify", message, "", {"quantized"})
    assert "passes on its examples with" in finding.problem
    assert "`verify: {drawn_inputs: 0}`" in finding.remedies[0]
    assert stages.lower("builders:loud_in_one_place", asked | {"verify": {"min_sqnr_db": 20, "drawn_inputs": 0}}).file
    with pytest.raises(VerificationFailed, match=r"examples pass .*loses most in '(first|second)'"):
        stages.lower("builders:loud_in_one_place", asked | {"verify": {"min_sqnr_db": 20, "drawn_inputs": 2}})


@pytest.mark.slow
def test_excluded_layers(stages):
    """Modules that a pattern matches stay in floating point, with all that is in them, and others are quantized."""
    exported = stages.export("builders:nested_layers")
    inputs = {role: exported[role] for role in ("program", "examples")}
    chosen = check_quantizers(Quantization())

    def quantized(*exclude):
        made = stages.run(Quantize, Quantize.Params(quantizers=chosen, exclude=exclude), inputs)["program"]
        linears = [node for node in stages.program(made).graph.nodes if str(node.target) == "aten.linear.default"]
        return ["dequantize" in str(node.args[1].target) for node in linears]

    assert quantized() == [True, True, True]
    assert quantized("head") == [True, True, False]
    assert quantized("blocks.*") == [False, False, True]
    assert quantized("blocks") == [False, False, True]
    assert quantized("blocks.1", "nothing") == [True, False, True]
    with pytest.raises(TargetError, match=r"finds no operator .*`quantize.exclude` may"):
        quantized("blocks", "head")
    recipe = int8()
    lowered = stages.lower("builders:nested_layers", {**recipe, "quantize": {"exclude": "head"}})
    assert lowered.steps[FORWARD].call.params.exclude == ("head",)
    weight = lowered.program("export").state_dict["head.weight"]
    kept = [value for value in lowered.program(FORWARD).state_dict.values() if value.shape == weight.shape]
    assert any((value == weight).all() for value in kept)


def scales(program) -> dict[str, str]:
    """By layer, the operator that quantizes its input: scales are numbers, or tensors computed from the input."""
    layers = {"aten.conv2d.default": "conv2d", "aten.linear.default": "linear"}
    return {
        layers[str(node.target)]: str(node.args[0].args[0].target).partition(".")[2]
        for node in program.graph.nodes
        if str(node.target) in layers
    }


@pytest.mark.slow
def test_methods_are_quantized_by_themselves(stages):
    """Each method is calibrated with its own examples."""
    steps = stages.lower("builders:two_networks", int8(), until="quantize").steps
    for method, export in (("forward", "export"), ("encode", "export/encode")):
        assert steps[f"quantize/{method}"].call.inputs["examples"] == steps[export].outputs.examples


def test_what_quantization_reached(lower):
    """Provenance has the weights by dtype, and those in floating point with the operators that take them."""
    lowered = lower("builders:linear_and_embedding", int8(dynamic=True))
    made = lowered.findings["quantization"][0]
    assert weight_bytes(read_pte(lowered.file), memoryview(lowered.file)).sizes == made["sizes"]
    linear, table = 16 * 16, 512 * 16
    assert made["sizes"] == {"float32": 4 * table, "int8": linear}
    assert (made["elements"], made["quantized"]) == (linear + table, linear)
    assert [(weight["name"], weight["operators"]) for weight in made["left"]] == [("table.weight", ["aten.embedding"])]
    text = str(quantization.Quantization.from_json(made))
    assert text.startswith("3% of the weights are integers; in floating point: table.weight (")
    assert "quantizers leave tables of embeddings" in text


RECURRENT = [
    ("recurrent_layers", {"kind": "LSTM", "num_layers": 2, "bidirectional": True}),
    ("recurrent_layers", {"kind": "LSTM", "proj_size": 6, "bias": False}),
    ("recurrent_layers", {"kind": "GRU", "bidirectional": True}),
    ("recurrent_layers", {"kind": "GRU", "num_layers": 2, "bias": False}),
    ("recurrent_layers", {"kind": "RNN", "nonlinearity": "relu", "bidirectional": True}),
    ("recurrent_cells", {}),
]


@pytest.mark.filterwarnings("ignore:The tensor attributes self.layers", "ignore:LSTM with projections is not supported")
@pytest.mark.parametrize("options", [{"dynamic": True}, {}], ids=["dynamic", "static"])
@pytest.mark.parametrize(("builder", "kwargs"), RECURRENT)
@pytest.mark.slow
def test_recurrent_layers(builder, kwargs, options, stages):
    """All matrices of recurrent layers and cells become integers, and a file has each of them once."""
    asked = {**int8(**options), "verify": {"min_sqnr_db": 25, "drawn_inputs": 0}}
    lowered = stages.lower({"builder": f"builders:{builder}", "kwargs": kwargs}, asked)
    stored = lowered.store.read_artifact(lowered.outputs[FORWARD]["quantization"])
    reached = quantization.Quantization.from_json(json.loads(stored)[0])
    assert (reached.share, reached.left) == (1, ())
    weights = [value for value in lowered.program("export").state_dict.values() if value.dim() == 2]
    assert reached.sizes == {"int8": sum(value.numel() for value in weights)}
    pte = read_pte(lowered.file)
    assert sum(pte.segments[named.segment].size for named in pte.named_data) < 0.75 * 4 * reached.elements


def test_state_is_no_weight(lower):
    """State is not counted, and neither are biases: everything else is reached here."""
    lowered = lower("builders:notes", int8(dynamic=True) | {"compile": {"share_mutable_buffers": True}})
    assert [made["share"] for made in lowered.findings["quantization"]] == [1, 1]


def test_quantization_must_reach_at_least(lower):
    """A recipe may say how much; where less is reached, no file is made, and the layers are named."""
    asked = int8(dynamic=True)
    asked["quantize"]["at_least"] = 0.8
    with pytest.raises(TargetError, match=r"asks for 80%.* 3% of the weights.*table\.weight"):
        lower("builders:linear_and_embedding", asked)
    lower("builders:conv_net", {**asked, "quantize": {"quantizer": "xnnpack", "at_least": 1.0}}, until="quantize")
