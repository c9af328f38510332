"""The export stage: what it hands on, what it refuses, and that equal params give equal artifacts."""

import sys

import pytest
import torch
from pteforge.errors import SourceError
from pteforge.tests.lowering import PORTABLE, XNNPACK
from pteforge.tests.zoo.networks import Function

ONE_TO_FIVE = {"min": 1, "max": 5, "name": None}
BATCH = {"forward": [{"0": ONE_TO_FIVE}]}


def bounds(program):
    return [(int(found.lower), int(found.upper)) for found in program.range_constraints.values()]


def identities(outputs):
    """What later keys hold. A program's stored bytes have stack traces and the like too."""
    return {role: ref.identity for role, ref in outputs.items()}


def test_outputs(stages):
    """Program, examples with eager's outputs, names of all methods with the first one first, constants."""
    outputs = stages.export("builders:definition", drawn_inputs=3)

    assert {role: ref.kind for role, ref in outputs.items()} == {
        "program": "program/aten",
        "examples": "examples",
        "methods": "model/methods",
        "weights": "model/weights",
        "constants": "model/constants",
        "sizes": "model/sizes",
        "observed": "model/observed",
    }
    assert stages.json(outputs["sizes"]) == [[0, 0, 1, 8, 1]]
    program, examples = stages.program(outputs["program"]), stages.value(outputs["examples"])
    assert [flat[0].shape[0] for flat in examples["inputs"]][:4] == [2, 4, 1, 8]
    assert (len(examples["inputs"]), len(examples["outputs"]), examples["drawn"]) == (5, 5, 3)
    module = program.module()
    for flat, expected in zip(examples["inputs"], examples["outputs"], strict=True):
        assert torch.equal(module(*flat), expected[0])
    assert stages.json(outputs["methods"]) == ["forward", "encode"]
    constants = stages.value(outputs["constants"])
    assert torch.equal(constants.pop("table"), torch.arange(3))
    assert constants == {"width": 2, "rate": 0.5, "name": "small", "trained": False}


def test_methods(stages):
    """A method is exported by name, without one the first; what describes the whole model is the same for each."""
    first, named, other = (stages.export("builders:definition", method=name) for name in (None, "forward", "encode"))

    assert identities(first) == identities(named)
    assert identities(other)["program"] != identities(first)["program"]
    assert (other["methods"], other["constants"]) == (first["methods"], first["constants"])
    with pytest.raises(SourceError, match=r"no method 'decode'; .*\['forward', 'encode'\]"):
        stages.export("builders:definition", method="decode")


@pytest.mark.parametrize(
    ("function", "drawing"),
    [
        (lambda t, x: t.nn.functional.dropout(x), ["aten.dropout.default"]),
        (lambda t, x: t.nn.functional.dropout(x, training=False), None),
        (lambda t, x: t.nn.functional.scaled_dot_product_attention(x, x, x), None),
        (
            lambda t, x: t.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
            ["aten.scaled_dot_product_attention.default"],
        ),
        (lambda t, x: t.cond(x.sum() > 0, t.rand_like, t.zeros_like, (x,)), ["aten.rand_like.default"]),
    ],
    ids=["dropout", "no dropout", "attention", "attention with dropout", "branch"],
)
def test_random_numbers(function, drawing):
    """Operators that draw numbers are known, unless they do so in training only."""
    from pteforge.configs.model import MethodDefinition, ModelDefinition
    from pteforge.tasks.export.eager import eager_examples
    from pteforge.tasks.usercode.model_source import BuiltModel

    module, example = Function(lambda x: function(torch, x)), (torch.ones(2, 3, 4),)
    model = BuiltModel(ModelDefinition({"forward": MethodDefinition(module, [example])}))
    assert eager_examples(model, "forward", torch.export.export(module, example), 0).get("random") == drawing


def test_surroundings(stages):
    """A checkpoint is found by its path relative to the zoo file; local modules that were loaded are an output."""
    (stages.folder / "weight.txt").write_text("2.5")
    sys.modules.pop("builders", None)
    outputs = stages.export("builders:in_folder")
    assert stages.value(outputs["examples"])["outputs"][0][0].item() == 7.5
    assert "builders" in stages.json(outputs["observed"])["modules"]


def test_what_decides(stages):
    """Equal seeds give equal weights and inputs, another seed other ones; tracing in strict mode is another trace."""
    one, same, other = (stages.export("builders:all_random", seed=seed) for seed in (3, 3, 4))
    assert identities(one) == identities(same)
    assert one["program"].identity != other["program"].identity
    assert one["examples"] != other["examples"]
    loose, strict = (stages.export("builders:pair", strict=strict)["program"] for strict in (False, True))
    assert loose.identity != strict.identity


@pytest.mark.parametrize(
    ("builder", "given", "expected"),
    [("DynamicEagerModel", {}, (1, 8)), ("DynamicEagerModel", BATCH, (1, 5)), ("pair", BATCH, (1, 5))],
)
def test_dynamic_shapes(builder, given, expected, stages):
    """A builder's dynamic shapes arrive in the program; those of the zoo file replace them, by method."""
    outputs = stages.export(f"builders:{builder}", dynamic_shapes=given)
    assert bounds(stages.program(outputs["program"])) == [expected]


PAIR, MIXED = "builders:pair", "builders:mixed_inputs"


@pytest.mark.parametrize(
    ("builder", "shapes", "message"),
    [
        (PAIR, [None, None], "'forward' has 2 entries, and there are 1 inputs"),
        (PAIR, [{"7": ONE_TO_FIVE}], "'forward', input 0 has dimension 7, the tensor has 2"),
        (PAIR, [[None]], "'forward', input 0 is a list, and that is no tuple"),
        (MIXED, [None, {"0": ONE_TO_FIVE}, None], "'forward', input 1 has dimensions, and that is no tensor"),
        (MIXED, [[None], None, None], "'forward', input 0 has 1 entries, and there are 2 inputs"),
        ("faulty:static_batch", [{"0": ONE_TO_FIVE}], "'forward' cannot be exported with its dynamic shapes: "),
    ],
)
def test_wrong_dynamic_shapes(builder, shapes, message, stages):
    """Shapes that do not belong to the model are the user's to mend, and the message says which."""
    with pytest.raises(SourceError, match=message):
        stages.export(builder, dynamic_shapes={"forward": shapes})
    with pytest.raises(SourceError, match=r"methods \['decode'\]; .*\['forward'\]"):
        stages.export(PAIR, dynamic_shapes={"decode": [None]})


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        ("wrong_shape", r"the model does not take its own example inputs of method 'forward': \[\(2, 4\)\]: RuntimeEr"),
        ("wrong_count", r"the model does not take its own example inputs of method 'forward': .* TypeError"),
        ("other_shape", "example 1 of method 'forward': input 0 has size 3 in dimension 0, the program takes 2"),
        ("text_input", "example 0 of method 'forward': input 1 is a str; ExecuTorch takes tensors, numbers, bool and "),
        ("picky", r"does not take inputs drawn for method 'forward' .*drawn_inputs to 0.*\[\(1,\)\]: ValueError: too"),
    ],
)
def test_inputs_that_do_not_fit(builder, message, stages):
    """Inputs that eager or the program does not take are bad input, with their shapes in the message."""
    with pytest.raises(SourceError, match=message):
        stages.export(f"faulty:{builder}")


@pytest.mark.parametrize(("kind", "drawn"), [("order", 2), ("rows", 3), ("values", 0)])
def test_inputs_that_eager_does_not_take(kind, drawn, stages):
    """Random values never refuse a model: milder ones take their place, or none where the sizes are fixed."""
    outputs = stages.export("faulty:picky_about_values", kwargs={"kind": kind})
    examples = stages.value(outputs["examples"])
    assert examples["drawn"] == drawn
    ids = [flat[1].tolist() for flat in examples["inputs"]]
    assert ids == [[[1, 2], [3, 5]]] * 3 if kind == "order" else [[1, 1], [1, 1]] in ids or kind == "values"


@pytest.mark.filterwarnings("ignore:The tensor attribute self.anchors was assigned")
def test_what_tracing_leaves_in_a_module(stages):
    """Eager runs on a module that was not traced: tensors that it keeps of an earlier call are real."""
    examples = stages.value(stages.export("builders:keeps_anchors")["examples"])
    assert len(examples["outputs"]) == 3


def test_each_example_starts_from_the_initial_state(stages):
    """Outputs that alias the state keep their values, and running eager does not leave its state in the program."""
    outputs = stages.export("builders:hands_out_state", drawn_inputs=1)
    examples = stages.value(outputs["examples"])
    assert [flat[0].unique().tolist() for flat in examples["inputs"]] == [[1.0], [2.0], [1.0, 2.0]]
    assert [[value.tolist() for value in flat] for flat in examples["outputs"]] == [
        [(given + 10).tolist(), given.tolist(), [1.0] * 3] for (given,) in examples["inputs"]
    ]
    assert dict(stages.program(outputs["program"]).named_buffers())["state"].tolist() == [10.0] * 3


def test_examples_are_stored(stages):
    """Inputs are those that the model was called with, whatever it does to them; it runs in inference mode."""

    def only(builder):
        examples = stages.value(stages.export(f"builders:{builder}", drawn_inputs=0)["examples"])
        (inputs,), (outputs,) = examples["inputs"], examples["outputs"]
        return inputs, outputs

    changed, dropped = only("changes_input"), only("with_dropout")
    assert [flat[0].tolist() for flat in changed] == [[0.0] * 3, [1.0] * 3]
    assert [flat[0].tolist() for flat in dropped] == [[1.0] * 64] * 2
    inputs, outputs = only("mixed_inputs")
    assert [value if isinstance(value, int) else tuple(value.shape) for value in inputs] == [(2, 2), (2, 2), 3, (2,)]
    assert len(outputs) == 2


def test_a_program_that_was_exported_with_one_tensor_for_two_inputs(stages, tmp_path):
    """It ignores one of them, which cannot be mended any more: it is said."""
    from networks import Function

    one, other = torch.ones(2), torch.ones(2)
    for example, said in (((one, one), ["input 0, whose example is the tensor of input 1"]), ((one, other), [])):
        program = torch.export.export(Function(lambda one, other: one - 2 * other), example)
        torch.export.save(program, path := tmp_path / "tied.pt2")
        notes = stages.value(stages.export("", program_file=path)["examples"])["notes"]
        assert [text in note for text, note in zip(said, notes, strict=True)] == [True] * len(said)


def test_program_files(stages, tmp_path):
    """A `.pt2` file is taken as it is, its keyword inputs included, and gives the artifacts that its builder gives."""
    from networks import Keywords

    keywords = {"shift": torch.tensor(1.0), "factor": torch.tensor(3.0)}
    program = torch.export.export(
        Keywords(),
        (torch.ones(2),),
        keywords,
        dynamic_shapes={"values": {0: torch.export.Dim("n", max=4)}, "factor": None, "shift": None},
    )
    torch.export.save(program, tmp_path / "scale.pt2")
    outputs = stages.export("", program_file=tmp_path / "scale.pt2")

    examples = stages.value(outputs["examples"])
    assert [flat[0].shape[0] for flat in examples["inputs"]] == [2, 1, 4, 3]
    for (values, shift, factor), (out,) in zip(examples["inputs"], examples["outputs"], strict=True):
        assert torch.equal(out, values * factor - shift)
    assert bounds(stages.program(outputs["program"])) == bounds(program)
    assert stages.json(outputs["methods"]) == ["forward"]
    assert stages.value(outputs["constants"]) == {}


@pytest.mark.parametrize("made", [PORTABLE, XNNPACK])
def test_weights_with_channels_last(lower, made):
    """They are laid out as usual in the file, also one that two layers share; the module keeps them as they are."""
    import builders
    from pteforge.configs.model import MethodDefinition
    from pteforge.tasks.export.method import export_method

    assert lower("builders:channels_last_weights", made).figures["overall"]["sqnr_db"] > 100
    net, inputs = builders.channels_last_weights()
    strides = {name: weight.stride() for name, weight in net.state_dict().items()}
    program = export_method("forward", MethodDefinition(net, [inputs]), None, strict=False)
    assert {name: weight.stride() for name, weight in net.state_dict().items()} == strides
    assert all(weight.is_contiguous() for weight in program.state_dict.values())
    torch.testing.assert_close(program.module()(*inputs), net(*inputs))
    assert program.state_dict["layers.1.weight"] is program.state_dict["layers.2.weight"]


LAYOUTS = {
    "transposed, 2 dimensions": torch.randn(4, 3).t(),
    "transposed, 3 dimensions": torch.randn(2, 4, 3).transpose(1, 2),
    "transposed, 4 dimensions": torch.randn(2, 4, 3, 5).transpose(1, 2),
    "transposed, 5 dimensions": torch.randn(2, 4, 3, 5, 6).transpose(1, 2),
    "reversed": torch.randn(5, 4, 3, 2).permute(3, 2, 1, 0),
    "channels last, 3d": torch.randn(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
    "every second": torch.randn(3, 8)[:, ::2],
    "expanded": torch.randn(1, 3, 4).expand(2, 3, 4),
    "one column": torch.randn(1, 3, 4).transpose(0, 1),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
}


@pytest.mark.filterwarnings("ignore:No complete tensor found")  # of torch.export.save
@pytest.mark.parametrize("x", LAYOUTS.values(), ids=LAYOUTS)
def test_programs_with_other_layouts(stages, tmp_path, x):
    """A `.pt2` file is exported for inputs as hosts have them: contiguous, or with channels last, as builders' are."""
    net = Function(lambda x: (x.relu().reshape(x.shape[0], -1).cumsum(1), x.clone()))
    torch.export.save(torch.export.export(net, (x,)), tmp_path / "net.pt2")
    outputs = stages.export("", program_file=tmp_path / "net.pt2")
    (given,) = [node.meta["val"] for node in stages.program(outputs["program"]).graph.find_nodes(op="placeholder")]
    usual = x.stride() if x.is_contiguous(memory_format=torch.channels_last) else torch.empty(x.shape).stride()
    assert given.stride() == stages.value(outputs["examples"])["inputs"][0][0].stride() == usual


@pytest.mark.filterwarnings("ignore:No complete tensor found")  # of torch.export.save
@pytest.mark.parametrize("channels", [1, 3])
def test_programs_with_channels_last(stages, tmp_path, channels):
    """A `.pt2` file with such weights, or with an image of one channel, is exported again: names and sizes stay."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(channels, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3)).eval()
    image = torch.randn(2, channels, 8, 8).to(memory_format=torch.channels_last)
    if channels > 1:
        net.to(memory_format=torch.channels_last)
    program = torch.export.export(net, (image,), dynamic_shapes=({0: torch.export.Dim("rows", max=4)},))
    torch.export.save(program, tmp_path / "net.pt2")
    outputs = stages.export("", program_file=tmp_path / "net.pt2")
    made = stages.program(outputs["program"])
    assert made.state_dict.keys() == program.state_dict.keys()
    assert all(weight.is_contiguous() for weight in made.state_dict.values())
    assert bounds(made) == bounds(program)
    (given,) = [node.meta["val"] for node in made.graph.find_nodes(op="placeholder")][-1:]
    assert given.stride() == ((64, 64, 8, 1) if channels == 1 else image.stride())
    torch.testing.assert_close(made.module()(image), net(image))
