"""Several methods in one payload: lowered differently where a recipe says so, sharing state, and constant ones."""

import pytest
import torch
from pteforge.errors import SourceError, VerificationFailed
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import PORTABLE
from pteforge.tests.lowering import recipe as recipe_for

KEEP_SHUFFLE = {"edge": {"preserve_operators": ["aten.pixel_shuffle.default"]}}
CACHED = "builders:cached"


def recipe(target="portable", share=True, **methods):
    """A recipe that treats methods differently, and may share their state."""
    return {
        "specializations": [{"target": target, "methods": methods}],
        "compile": {"share_mutable_buffers": share},
    }


@pytest.fixture
def methods(lower):
    """Methods of the file of a model of two, by name, given what the recipe says of them."""

    def lowered(builder, target, **differing):
        pte = read_pte(lower(f"builders:{builder}", recipe(target, share=False, **differing)).file)
        return {method.name: method for method in pte.methods}

    return lowered


def test_methods_of_different_models(lower):
    """Methods are exported from a build each; where the builder makes another model each time, no file is made."""
    with pytest.raises(SourceError, match=r"'0\.bias' of .*'encode' had other values .*'encode' was"):
        lower("builders:unseeded", PORTABLE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "decode", "delegates"),
    [
        pytest.param("xnnpack", {"delegate": False}, (2, 0), id="without partitioner"),
        pytest.param("portable", {"target": "xnnpack"}, (0, 2), id="another target"),
        pytest.param("xnnpack", {"options": {"per_operator": True}}, (2, 3), id="other options"),
    ],
)
def test_delegation_by_method(target, decode, delegates, methods):
    """One method may have no partitioner, another target's, or other options; the other method keeps the recipe's."""
    made = methods("two_stacks", target, decode=decode)
    assert (len(made["encode"].delegates), len(made["decode"].delegates)) == delegates
    assert {delegate.id for method in made.values() for delegate in method.delegates} == {"XnnpackBackend"}


@pytest.mark.slow
def test_a_method_with_an_edge_config_of_its_own(methods):
    """An operator is kept whole in the method that says so, and the file runs."""
    made = methods("two_shuffles", "portable", two=KEEP_SHUFFLE)
    keeps = {name: "aten::pixel_shuffle" in str(method.operators) for name, method in made.items()}
    assert keeps == {"one": False, "two": True}


@pytest.mark.slow
def test_a_method_with_memory_of_its_own(methods):
    """Without memory for its inputs and outputs its plan is smaller; the other's is what it was."""
    usual = methods("waves", "portable")
    made = methods("waves", "portable", plain={"alloc_graph_input": False, "alloc_graph_output": False})
    assert made["forward"].planned_memory == usual["forward"].planned_memory
    assert sum(made["plain"].planned_memory) < sum(usual["plain"].planned_memory)


def load(file):
    """A function that calls a method of a file with ones, and returns a number of its output."""
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(file)
    return lambda method: program.load_method(method).execute([torch.ones(2, 4)])[0][0, 0].item()


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
def test_one_writes_and_others_read(target, lower):
    """All methods see one state, also XNNPACK in a method that only reads it; verified in sequence against eager."""
    lowered = lower(CACHED, recipe(target))
    call = load(lowered.file)
    assert [call(method) for method in ("prefill", "peek", "decode", "peek")] == [2.0, 2.5, 2.5, 3.5]
    labels = {case["label"] for case in lowered.json("verify", "figures")["cases"]}
    expected = {f"sequence 0, call {n}" for n in range(7)} | {f"sequence 1, call {n}" for n in range(2)}
    assert {label for label in labels if label.startswith("sequence")} == expected
    call = load(lower(CACHED, recipe(target, decode={"alloc_graph_input": False})).file)
    assert [call(method) for method in ("prefill", "decode", "peek")] == [2.0, 2.5, 3.5]


def test_state_that_is_not_shared_fails_the_sequences(lower):
    """A model that says what its calls give in sequence is not delivered in a file where they give something else."""
    with pytest.raises(VerificationFailed, match=r"'\w+', sequence 0, call 2, output 0.+share_mutable_buffers"):
        lower(CACHED, recipe(share=False))


@pytest.mark.parametrize("made", [PORTABLE, recipe_for("xnnpack", "portable")], ids=["plain", "fat"])
def test_state_of_one_method(lower, tmp_path, made):
    """It is kept while other methods run, in verification and by a host in Python."""
    from pteforge.runtime.host import load

    (tmp_path / "model.pte").write_bytes(lower("builders:counter_and_filter", made).file)
    program = load(tmp_path / "model.pte")
    counts = []
    for _ in range(3):
        counts += {float(value) for value in program.run("count", [torch.ones(64)])[0]}
        program.run("smooth", [torch.randn(1, 3, 8, 8)])
    assert counts == [1, 2, 3]


@pytest.mark.parametrize("output", [{}, {"external_data": True}], ids=["plain", "external data"])
def test_buffers_that_cannot_be_one(output, lower):
    """Buffers of one name that hold different values are two states, and sharing them is refused."""
    with pytest.raises(SourceError, match=r"'cache\.rows' of 'peek' .*'prefill'"):
        lower({"builder": CACHED, "kwargs": {"one_cache": False}}, recipe() | {"output": output})


def test_constants_of_every_type(lower, tmp_path):
    """Numbers, flags, text, types, tensors of any strides, and trees of these come back as they were, flat."""
    from executorch.runtime import Runtime
    from pteforge.tasks.verify.verification import check_constants

    path = tmp_path / "model.pte"
    path.write_bytes(lower("builders:constants", PORTABLE).file)
    program = Runtime.get().load_program(path)

    def returned(name):
        return program.load_method(name).execute([])

    assert [returned(name) for name in ("integer", "real", "flag", "text")] == [[2**40], [0.5], [True], ["caf\u00e9"]]
    assert [returned(name) for name in ("type", "memory", "nothing")] == [[5], [0], []]  # 5 is Half in ScalarType
    assert returned("not_a_number")[0] != returned("not_a_number")[0]
    assert torch.equal(returned("tensor")[0], torch.arange(6).reshape(2, 3))
    assert torch.equal(returned("transposed")[0], torch.arange(6.0).reshape(2, 3).t())
    assert returned("half")[0].dtype == torch.bfloat16
    assert returned("several") == [1, 2.5, "x", False, torch.ones(1)]
    assert returned("named") == [-1, 2]

    check_constants(path, {"integer": 2**40})
    wrong = {"integer": 3, "flag": 1, "text": "cafe", "several": [1], "named": {"low": -1, "high": 3}}
    for name, other in wrong.items():
        with pytest.raises(VerificationFailed, match=f"the constant method '{name}' returns"):
            check_constants(path, {name: other})
    with pytest.raises(VerificationFailed, match="run the constant method 'width'"):
        check_constants(path, {"width": 3})


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        ("odd_constant", "constant method 'odd' has a complex"),
        ("unknown_call", r"sequence 0 calls 'decode'; the model's methods are \['forward'\]"),
    ],
)
def test_refused_by_export(builder, message, stages):
    """Constants that no file can hold, and calls of methods that are not there, are refused before lowering."""
    with pytest.raises(SourceError, match=message):
        stages.export(f"faulty:{builder}")


def test_quantized_methods_read_what_others_write(lower):
    """State that another method changes is no constant to the quantizer, and neither is what is computed from it."""
    dynamic = {"quantize": {"quantizer": "xnnpack", "options": {"dynamic": True}}, "verify": {"min_sqnr_db": 25}}
    lowered = lower("builders:notes", recipe("xnnpack") | dynamic)
    assert min(case["sqnr_db"] for case in lowered.figures["cases"] if "sequence" in case["label"]) > 25
