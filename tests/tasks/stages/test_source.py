"""Models from their sources: every form of builder, and every way it can be wrong."""

from __future__ import annotations

import random

import pytest
from pteforge.errors import SourceError

pytestmark = pytest.mark.usefixtures("stages")


def build(name, **kwargs):
    """Builds from the test zoo's module."""
    from pteforge.tasks.stages.source import build

    return build(f"sources:{name}", kwargs)


def test_definition():
    """A definition is taken as it is, and the builder gets its arguments."""
    built = build("definition", width=5)
    assert list(built.definition.methods) == ["forward", "encode"]
    assert built.definition.methods["forward"].module.out_features == 5
    assert built.definition.constant_methods["width"] == 5
    assert built.program is None


@pytest.mark.parametrize(("name", "examples"), [("pair", 1), ("pair_with_examples", 2), ("Nested.build", 1)])
def test_pairs(name, examples):
    """A module with a tuple is one example, with a list several; the method is called forward."""
    methods = build(name).definition.methods
    assert list(methods) == ["forward"]
    assert [type(example) for example in methods["forward"].example_inputs] == [tuple] * examples
    assert methods["forward"].dynamic_shapes is None


@pytest.mark.parametrize(("name", "dynamic"), [("EagerModel", False), ("DynamicEagerModel", True)])
def test_eager_model_kind(name, dynamic):
    """A class like those of ExecuTorch's examples: made with the arguments, then asked."""
    method = build(name, width=4).definition.methods["forward"]
    assert method.module.out_features == 4
    assert len(method.example_inputs) == 1
    assert (method.dynamic_shapes is not None) == dynamic


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        ("no_such_module:build", "builder no_such_module:build failed: ModuleNotFoundError: No module named"),
        ("sources:no_such_builder", "builder sources:no_such_builder failed: AttributeError"),
        ("sources:raises", "builder sources:raises failed: RuntimeError: no checkpoint"),
        ("sources:wrong_type", "returned dict; it must return a pteforge.ModelDefinition"),
        ("sources:wrong_pair", "returned tuple; it must return a pteforge.ModelDefinition"),
        ("sources:no_methods", "builder sources:no_methods defines no method"),
        ("sources:bad_name", "method name 'two words' is not a Python identifier"),
        ("sources:no_module", "method 'forward' has a .* as its module"),
        ("sources:no_examples", "example_inputs of 'forward' must be a list of tuples, at least one"),
        ("sources:lists_of_lists", "example_inputs of 'forward' must be a list of tuples, at least one"),
        ("sources:clash", r"\['forward'\] are methods and constant methods at once"),
    ],
)
def test_broken_builders(builder, message):
    """Each mistake of a builder has a message that names the builder and what is wrong."""
    from pteforge.tasks.stages.source import build

    with pytest.raises(SourceError, match=message) as caught:
        build(builder, {})
    assert builder in str(caught.value)


def test_wrong_arguments():
    """Arguments that the builder does not take are its failure, with Python's own message."""
    with pytest.raises(SourceError, match="unexpected keyword argument 'depth'"):
        build("pair", depth=3)


def test_failures_keep_their_cause():
    """The log shows the builder's own traceback."""
    with pytest.raises(SourceError) as caught:
        build("raises")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_seeds():
    """One seed makes torch, numpy and random start alike; another makes them start elsewhere."""
    import numpy as np
    import torch
    from pteforge.tasks.stages.source import seed_everything

    drawn = []
    for seed in (1, 1, 2):
        seed_everything(seed)
        drawn.append((torch.rand(1).item(), float(np.random.rand()), random.random()))  # noqa: NPY002, S311 - as users do
    first, again, other = drawn
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_program_file(tmp_path):
    """A `.pt2` file is a model of one method, whose module computes what the program does; keywords are kept."""
    import torch
    from pteforge.tasks.stages.source import load_program_file

    class Scale(torch.nn.Module):
        """Takes keywords."""

        def forward(self, values, *, factor, shift):
            """Any computation."""
            return values * factor + shift

    values, keywords = torch.ones(2), {"shift": torch.tensor(1.0), "factor": torch.tensor(3.0)}
    torch.export.save(torch.export.export(Scale(), (values,), keywords), tmp_path / "scale.pt2")
    built = load_program_file(tmp_path / "scale.pt2")

    assert list(built.definition.methods) == ["forward"]
    (example,) = built.definition.methods["forward"].example_inputs
    assert built.definition.methods["forward"].module(*example, **built.keyword_inputs).tolist() == [4.0, 4.0]
    assert built.program is not None


def test_damaged_program_files(tmp_path):
    """What torch cannot load, and what was saved without inputs, says so and names the file, not its folder."""
    import torch
    from pteforge.tasks.stages.source import load_program_file

    damaged = tmp_path / "damaged.pt2"
    damaged.write_bytes(b"not a zip file")
    with pytest.raises(SourceError, match=r"^damaged\.pt2 is not a program that torch .* can load"):
        load_program_file(damaged)

    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    program.example_inputs = None
    torch.export.save(program, tmp_path / "bare.pt2")
    with pytest.raises(SourceError, match=r"^bare\.pt2 holds no example inputs"):
        load_program_file(tmp_path / "bare.pt2")
