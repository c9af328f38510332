"""Models from their sources: every form of builder, and every way it can be wrong."""

import pytest
import torch
from pteforge.errors import SourceError

pytestmark = pytest.mark.usefixtures("zoo")


def build(builder, **kwargs):
    from pteforge.tasks.usercode.model_source import build

    return build(builder, kwargs)


def test_definition():
    """A definition is taken as it is, and the builder gets its arguments."""
    built = build("builders:definition", width=5)
    assert list(built.definition.methods) == ["forward", "encode"]
    assert built.definition.methods["forward"].module.out_features == 5
    assert built.definition.constant_methods["width"] == 5
    assert built.program is None


@pytest.mark.parametrize(
    ("name", "examples", "dynamic"),
    [
        *(("pair", 1, False), ("pair_with_examples", 2, False), ("Nested.build", 1, False)),
        *(("EagerModel", 1, False), ("DynamicEagerModel", 1, True)),
    ],
)
def test_forms(name, examples, dynamic):
    """A module with a tuple is one example, with a list several; a class like ExecuTorch's examples is asked for both.

    The method is called forward.
    """
    ((method, made),) = build(f"builders:{name}").definition.methods.items()
    assert method == "forward"
    assert [type(example) for example in made.example_inputs] == [tuple] * examples
    assert (made.dynamic_shapes is not None) == dynamic


@pytest.mark.parametrize("name", ["keywords", "EagerKeywords"])
def test_keywords_follow_by_position(name):
    """The module takes all inputs by position, in the order of the example, and shares everything with the user's."""
    method = build(f"builders:{name}").definition.methods["forward"]
    ((values, shift, factor),) = method.example_inputs
    assert torch.equal(method.module(values, shift, factor), torch.full((2,), 2.0))
    assert type(method.module).__name__ == "Keywords"
    program = torch.export.export(method.module, method.example_inputs[0], dynamic_shapes=method.dynamic_shapes)
    assert program.graph_signature.user_inputs == ("values", "shift", "factor")


def test_copies_share_state():
    """Weights, buffers and submodules of a module that takes keywords are those of the others that use it."""
    methods = build("builders:two_methods_with_keywords").definition.methods
    cross, own = (methods[name].module for name in ("cross", "own"))
    assert cross.query is own.query
    assert [len(example) for example in methods["cross"].example_inputs] == [3, 3]
    assert list(cross.state_dict()) == ["query.weight", "query.bias", "key.weight", "key.bias"]


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        ("no_such_module:build", "failed: ModuleNotFoundError: No module named"),
        ("faulty:no_such_builder", "failed: AttributeError"),
        ("faulty:raises", "failed: RuntimeError: no checkpoint"),
        ("faulty:wrong_type", "returned dict; it must return a pteforge.ModelDefinition"),
        ("faulty:wrong_pair", r"returned a module and a Tensor; example inputs are a tuple of arguments"),
        ("faulty:no_methods", "defines no method"),
        ("faulty:bad_name", "method name 'two words'"),
        ("faulty:no_module", "method 'forward' has a .* as its module"),
        (
            "faulty:no_examples",
            "example_inputs of 'forward' is an empty list: they are what it is traced with; give at least one example",
        ),
        ("faulty:lists_of_lists", "example_inputs of 'forward' must be a list of tuples, at least one"),
        ("faulty:clash", r"\['forward'\] are methods and constant methods"),
        ("faulty:other_keywords", r"example 1 has the keywords \['factor'\], and the first example of the method"),
        ("faulty:too_few_keywords", "method 'forward' has 2 example_inputs and 1 example_kwarg_inputs"),
        ("faulty:given_twice", "method 'forward' has 'input' by position and by keyword"),
        ("faulty:keywords_of_a_call", r"sequence 0: 'forward' has the keywords \['other'\]"),
        ("faulty:keywords_by_name", "example_kwarg_inputs of 'forward' must be a list of mappings"),
    ],
)
def test_broken_builders(builder, message):
    """Each mistake of a builder has a message that names the builder and what is wrong."""
    with pytest.raises(SourceError, match=message) as caught:
        build(builder)
    assert builder in str(caught.value)


def test_failures_of_builders():
    """Arguments that the builder does not take are its failure; the log shows the builder's own traceback."""
    with pytest.raises(SourceError, match="unexpected keyword argument 'depth'"):
        build("builders:pair", depth=3)
    with pytest.raises(SourceError) as caught:
        build("faulty:raises")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_damaged_program_files(tmp_path):
    """What torch cannot load, and what was saved without inputs, says so and names the file, not its folder."""
    from pteforge.tasks.usercode.model_source import load_program_file

    damaged = tmp_path / "damaged.pt2"
    damaged.write_bytes(b"not a zip file")
    with pytest.raises(SourceError, match=r"^damaged\.pt2 is not a program"):
        load_program_file(damaged)

    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    program.example_inputs = None
    torch.export.save(program, tmp_path / "bare.pt2")
    with pytest.raises(SourceError, match=r"^bare\.pt2 holds no example inputs"):
        load_program_file(tmp_path / "bare.pt2")
