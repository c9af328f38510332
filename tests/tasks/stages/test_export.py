"""The export stage: what it hands on, what it refuses, and that equal params give equal artifacts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from pteforge.errors import SourceError
from pteforge.tasks.call import StageCall
from pteforge.tasks.catalog import StageName
from pteforge.tasks.source_params import ExportParams

BATCH = {"forward": [{"0": {"min": 1, "max": 5, "name": None}}]}


def bounds(program):
    """Lower and upper bound of each symbol."""
    return [(int(found.lower), int(found.upper)) for found in program.range_constraints.values()]


def identities(outputs):
    """What later keys hold. A program's stored bytes have stack traces and the like too."""
    return {role: ref.identity for role, ref in outputs.items()}


def test_outputs(stages):
    """Program, examples with eager's outputs, names of all methods with the first one first, constants."""
    import torch

    outputs = stages.export("sources:definition", drawn_inputs=3)

    assert {role: ref.kind for role, ref in outputs.items()} == {
        "program": "program/aten",
        "examples": "examples",
        "methods": "model/methods",
        "constants": "model/constants",
        "observed": "model/observed",
    }
    program, examples = stages.program(outputs["program"]), stages.value(outputs["examples"])
    assert [flat[0].shape[0] for flat in examples["inputs"]][:4] == [2, 4, 1, 8]
    assert (len(examples["inputs"]), len(examples["outputs"]), examples["drawn"]) == (5, 5, 3)
    module = program.module()
    for flat, expected in zip(examples["inputs"], examples["outputs"], strict=True):
        assert torch.equal(module(*flat), expected[0])
    assert json.loads(stages.store.read_artifact(outputs["methods"])) == ["forward", "encode"]
    constants = stages.value(outputs["constants"])
    assert torch.equal(constants.pop("table"), torch.arange(3))
    assert constants == {"width": 2, "rate": 0.5, "name": "small", "trained": False}


def test_methods(stages):
    """A method is exported by name, without one the first; what describes the whole model is the same for each."""
    first, named, other = (stages.export("sources:definition", method=name) for name in (None, "forward", "encode"))

    assert identities(first) == identities(named)
    assert identities(other)["program"] != identities(first)["program"]
    assert (other["methods"], other["constants"]) == (first["methods"], first["constants"])
    with pytest.raises(SourceError, match=r"the model has no method 'decode'; it has \['forward', 'encode'\]"):
        stages.export("sources:definition", method="decode")


@pytest.mark.parametrize("builder", ["pair", "pair_with_examples", "EagerModel", "DynamicEagerModel", "Nested.build"])
def test_forms(builder, stages):
    """Whatever form the builder has, the method is exported and run on its examples."""
    import torch

    outputs = stages.export(f"sources:{builder}")
    examples = stages.value(outputs["examples"])
    module = stages.program(outputs["program"]).module()
    assert all(
        torch.equal(module(*flat), out[0]) for flat, out in zip(examples["inputs"], examples["outputs"], strict=True)
    )


def test_builder_runs_in_the_zoo_files_folder(stages):
    """A checkpoint is found by its path relative to the zoo file."""
    (stages.folder / "weight.txt").write_text("2.5")
    outputs = stages.export("sources:in_folder")
    assert stages.value(outputs["examples"])["outputs"][0][0].item() == 7.5


def test_observed_modules(stages):
    """The local modules that were loaded are told, for the key."""
    sys.modules.pop("sources", None)
    assert "sources" in json.loads(stages.store.read_artifact(stages.export("sources:pair")["observed"]))


def test_inference_mode(stages):
    """A model left in training mode is exported and run for inference."""
    import torch

    outputs = stages.export("sources:with_dropout")
    examples = stages.value(outputs["examples"])
    assert torch.equal(examples["outputs"][0][0], torch.ones(64))


def test_seed(stages):
    """Equal seeds give equal artifacts, weights and inputs alike; another seed other ones."""
    one, same, other = (stages.export("sources:all_random", seed=seed) for seed in (3, 3, 4))
    assert identities(one) == identities(same)
    assert one["program"].identity != other["program"].identity
    assert one["examples"] != other["examples"]


@pytest.mark.slow
def test_two_processes_give_equal_artifacts(stages):
    """Nothing of the process enters the artifacts' identities: neither its hash seed nor the folder it runs in."""
    found = []
    for number in (1, 2):
        folder = stages.folder / str(number)
        folder.mkdir()
        params = ExportParams(source={"builder": "sources:all_random", "kwargs": {}})
        call = StageCall(StageName.EXPORT, {}, params, stages.store.root, folder)
        program = (
            "import json, sys\n"
            "from pteforge.tasks.stages.entry import run\n"
            "print(json.dumps(run(json.loads(sys.argv[1])), sort_keys=True))"
        )
        finished = subprocess.run(
            [sys.executable, "-c", program, json.dumps(call.to_json())],
            env=os.environ | {"PYTHONHASHSEED": str(number), "PYTHONPATH": sys.path[0]},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert finished.returncode == 0, finished.stderr
        refs = json.loads(finished.stdout.splitlines()[-1])
        found.append({role: ref["identity"] for role, ref in refs.items()})
    assert found[0] == found[1]


def test_dynamic_shapes_of_the_builder(stages):
    """They arrive in the program."""
    assert bounds(stages.program(stages.export("sources:DynamicEagerModel")["program"])) == [(1, 8)]


@pytest.mark.parametrize("builder", ["pair", "DynamicEagerModel", "definition"])
def test_dynamic_shapes_of_the_zoo_file(builder, stages):
    """They replace the builder's, for the methods that they name."""
    outputs = stages.export(f"sources:{builder}", dynamic_shapes=BATCH)
    assert bounds(stages.program(outputs["program"])) == [(1, 5)]


@pytest.mark.parametrize(
    ("builder", "shapes", "message"),
    [
        ("pair", {"decode": [None]}, r"dynamic_shapes names the methods \['decode'\]; the model has \['forward'\]"),
        ("pair", {"forward": [None, None]}, "dynamic_shapes of method 'forward' has 2 entries, and there are 1 inputs"),
        ("static_batch", BATCH, "method 'forward' cannot be exported with its dynamic shapes: "),
        (
            "pair",
            {"forward": [{"7": {"min": 1, "max": 5, "name": None}}]},
            "dynamic_shapes of method 'forward', input 0 has dimension 7, the tensor has 2",
        ),
        ("pair", {"forward": [[None]]}, "dynamic_shapes of method 'forward', input 0 is a list, and that is no tuple"),
        (
            "mixed_inputs",
            {"forward": [None, {"0": {"min": 1, "max": 5, "name": None}}, None]},
            "dynamic_shapes of method 'forward', input 1 has dimensions, and that is no tensor",
        ),
        (
            "mixed_inputs",
            {"forward": [[None], None, None]},
            "dynamic_shapes of method 'forward', input 0 has 1 entries, and there are 2 inputs",
        ),
    ],
)
def test_wrong_dynamic_shapes(builder, shapes, message, stages):
    """Shapes that do not belong to the model are the user's to mend, and the message says which."""
    with pytest.raises(SourceError, match=message):
        stages.export(f"sources:{builder}", dynamic_shapes=shapes)


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        ("wrong_shape", r"the model does not take its own example inputs of method 'forward': \[\(2, 4\)\]: RuntimeEr"),
        ("wrong_count", r"the model does not take its own example inputs of method 'forward': .* TypeError"),
        ("other_shape", "example 1 of method 'forward': input 0 has size 3 in dimension 0, the program takes 2"),
        (
            "text_input",
            "example 0 of method 'forward': input 1 is a str; ExecuTorch takes tensors, numbers, bool and None",
        ),
        (
            "transposed_input",
            r"input 0 has the strides \(1, 3\); ExecuTorch takes contiguous and channels-last tensors",
        ),
        ("picky", r"does not take inputs drawn for method 'forward' .*drawn_inputs to 0.*\[\(1,\)\]: ValueError: too"),
    ],
)
def test_inputs_that_do_not_fit(builder, message, stages):
    """Inputs that eager or the program does not take are bad input, with their shapes in the message."""
    with pytest.raises(SourceError, match=message):
        stages.export(f"sources:{builder}")


def test_state_starts_anew_for_each_example(stages):
    """Each example sees the state that the model was built with, and outputs that alias it keep their values."""
    examples = stages.value(stages.export("sources:hands_out_state", drawn_inputs=1)["examples"])
    assert [[value.tolist() for value in outputs] for outputs in examples["outputs"]] == [
        [[11.0] * 3, [1.0] * 3, [1.0] * 3],
        [[12.0] * 3, [2.0] * 3, [1.0] * 3],
        [[11.0] * 3, [1.0] * 3, [1.0] * 3],
    ]


def test_the_program_keeps_the_state_it_was_built_with(stages):
    """Running eager does not leave its state in the program."""
    program = stages.program(stages.export("sources:hands_out_state")["program"])
    assert dict(program.named_buffers())["state"].tolist() == [10.0] * 3


def test_inputs_are_stored_as_they_were(stages):
    """Whatever the model does to its inputs, the stored ones are those it was called with."""
    examples = stages.value(stages.export("sources:changes_input", drawn_inputs=0)["examples"])
    assert examples["inputs"][0][0].tolist() == [0.0] * 3
    assert examples["outputs"][0][0].tolist() == [1.0] * 3


def test_nested_inputs_and_outputs_are_flat(stages):
    """Tuples, dictionaries and numbers become flat lists, as the runtime takes and gives them."""
    examples = stages.value(stages.export("sources:mixed_inputs", drawn_inputs=0)["examples"])
    (flat,) = examples["inputs"]
    assert [value if isinstance(value, int) else tuple(value.shape) for value in flat] == [(2, 2), (2, 2), 3, (2,)]
    assert len(examples["outputs"][0]) == 2


def test_strict_reaches_torch(stages):
    """Tracing in strict mode is another trace: the program is another one."""
    loose, strict = (stages.export("sources:pair", strict=strict)["program"] for strict in (False, True))
    assert loose.identity != strict.identity


def test_program_files(stages, tmp_path):
    """A `.pt2` file is taken as it is, its keyword inputs included, and gives the artifacts that its builder gives."""
    import torch

    class Scale(torch.nn.Module):
        """Takes keywords."""

        def forward(self, values, *, factor, shift):
            """Any computation."""
            return values * factor - shift

    keywords = {"shift": torch.tensor(1.0), "factor": torch.tensor(3.0)}
    program = torch.export.export(
        Scale(),
        (torch.ones(2),),
        keywords,
        dynamic_shapes={"values": {0: torch.export.Dim("n", max=4)}, "factor": None, "shift": None},
    )
    torch.export.save(program, tmp_path / "scale.pt2")
    outputs = stages.export("", program_file=tmp_path / "scale.pt2")

    examples = stages.value(outputs["examples"])
    assert [flat[0].shape[0] for flat in examples["inputs"]] == [2, 1, 4]
    assert [out[0].tolist() for out in examples["outputs"]] == [[2.0] * 2, [2.0], [2.0] * 4]
    assert bounds(stages.program(outputs["program"])) == bounds(program)
    assert json.loads(stages.store.read_artifact(outputs["methods"])) == ["forward"]
    assert stages.value(outputs["constants"]) == {}
