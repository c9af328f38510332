"""Dynamic shapes: as zoo files write them, and the bounds that reach a file."""

import re
from dataclasses import replace

import pytest
import torch
from pteforge.errors import InputError, SourceError, VerificationFailed
from pteforge.formats.pte.contents import DimensionSizes
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.explain.stages.diagnose import Diagnose
from pteforge.tasks.export.stages.export import Export
from pteforge.tests.lowering import PORTABLE, recipe


def dims(*inputs):
    from pteforge.tasks.export.method import to_dims

    return to_dims(list(inputs))


def bounds(low, high, name=None):
    return {"min": low, "max": high, "name": name}


def test_entries():
    """None stays None; the dimension's index, a string in JSON, becomes a number, and the bounds a Dim's."""
    none, shape, fixed = dims(None, {"0": bounds(1, 8, "batch"), "2": bounds(2, 5, "length")}, {"0": bounds(3, 3)})
    assert (none, fixed) == (None, {0: 3})
    found = {index: (dim.__name__, dim.min, dim.max) for index, dim in shape.items()}
    assert found == {0: ("batch", 1, 8), 2: ("length", 2, 5)}


def test_one_name_is_one_dimension():
    """Dimensions of one name are one Dim, in inputs that are tuples too; without a name each is its own."""
    first, (second, third) = dims({"0": bounds(1, 8, "batch")}, [{"1": bounds(1, 8, "batch")}, {"1": bounds(1, 8)}])
    assert first[0] is second[1]
    assert third[1] is not first[0]
    assert third[1].__name__ != first[0].__name__


def test_multiples():
    """Sizes that are multiples of a number are such of a Dim, whose bounds are lower; those of one name are equal."""
    (first, second) = dims(
        {"0": bounds(8, 64, "rows") | {"multiple_of": 8}, "1": bounds(3, 9) | {"multiple_of": 3}},
        {"2": bounds(8, 64, "rows") | {"multiple_of": 8}},
    )
    assert first[0] is second[2]
    assert [(dim.root.min, dim.root.max, dim.fn(1)) for dim in first.values()] == [(1, 8, 8), (1, 3, 3)]


def test_a_file_takes_multiples(lower):
    """The file is verified with such sizes only, at both bounds; as a builder gives them, or the zoo file."""
    found = []
    for source, shapes in (
        ({"builder": "builders:skips", "kwargs": {"step": 4}}, None),
        ("builders:skips", {"forward": {"image": {2: {"min": 8, "max": 32, "multiple_of": 4}}}}),
    ):
        lowered = lower(source, PORTABLE, dynamic_shapes=shapes)
        found.append([flat[0].shape[2] for flat in lowered.value("export", "examples")["inputs"]])
    for *ends, between in found:
        assert ends == [16, 8, 32]
        assert between in range(12, 32, 4)


@pytest.mark.parametrize("named", [0, 1])
def test_names_do_not_clash_with_made_up_ones(named):
    """A user's dimension may have any name, also one that an unnamed dimension would get."""
    entries = [{"0": bounds(1, 8)}, {"0": bounds(2, 4)}]
    entries[named] = {"0": bounds(3, 6, "dim0")}
    found = [entry[0] for entry in dims(*entries)]
    assert found[0].__name__ != found[1].__name__
    assert (found[named].min, found[named].max) == (3, 6)


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
@pytest.mark.parametrize(
    ("builder", "largest"), [("images", (64, 3, 8, 8)), ("halves", (8, 6)), ("sequences", (8, 4, 32))]
)
def test_a_file_takes_the_largest_size(lower, builder, largest, target):
    """The file is verified at both bounds, and plans memory for the upper one, whatever the example's size is."""
    lowered = lower(f"builders:{builder}", recipe(target))
    (method,) = read_pte(lowered.file).methods
    assert method.inputs[0].shape == largest
    *ends, between = [flat[0].shape[0] for flat in lowered.value("export", "examples")["inputs"]]
    assert ends == [2, 1, largest[0]]
    assert 1 < between < largest[0]


@pytest.mark.parametrize(
    ("kind", "sizes", "said"),
    [
        ("free", (1, 4, 1), ""),
        ("one value", (1, 2, 1), ""),
        ("not one", (2, 4, 1), "dimension 0 of input 0 was to take 1 to 4, and the program takes 2 to 4"),
        ("two only", None, "was to take 1 to 2, and the program takes 2 only: its code depends on the size"),
        ("even", (2, 8, 2), "was to take 2 to 8, and the program takes 2 to 8 in steps of 2"),
        ("few", (1, 5, 1), "was to take 1 to 8, and the program takes 1 to 5"),
        ("example", None, "was to take 1 to 4, and the program takes 1 only: give an example of 2 or more"),
        ("halves", (2, 8, 2), ""),
    ],
)
def test_sizes_that_are_not_kept(stages, tmp_path, kind, sizes, said):
    """The file says which sizes it takes and refuses others; what hints asked for and torch.export left out is said."""
    from pteforge.runtime import load

    lowered = stages.lower({"builder": "builders:hinted_sizes", "kwargs": {"kind": kind}}, PORTABLE)
    notes = lowered.figures["notes"]
    assert [said in note for note in notes] == [True] * bool(said)
    ((spec,),) = (method.inputs for method in read_pte(lowered.file).methods)
    (tmp_path / "model.pte").write_bytes(lowered.file)
    program, rows = load(tmp_path / "model.pte"), lowered.value("export", "examples")["inputs"][0][0]
    if sizes is None:
        assert (spec.dynamism, spec.sizes) == ("static", ())
    else:
        assert spec.sizes == (DimensionSizes(0, *sizes),)
        least, most, step = sizes
        program.run("forward", [rows[:1].expand(least, 8).contiguous()])
        for size in {least - 1, most + 1, least + 1 if step > 1 else most + 1}:
            with pytest.raises(InputError, match=f"size {size} .*the method takes {least} to {most}"):
                program.run("forward", [rows[:1].expand(size, 8).contiguous()])


@pytest.mark.parametrize(
    ("kind", "first", "said"),
    [
        ("repeated", (1, 4), ""),
        ("masked", (1, 4), ""),
        ("guarded", (1, 4), ""),
        ("refused", (1, 4), ""),
        ("free", (1, 4), ""),
        ("few", None, r"and the program takes 2 only: the model does not take .*: \[\(4, 8\), .*: ValueError: 4 rows"),
    ],
)
def test_sizes_that_eager_refuses(stages, kind, first, said):
    """Sizes left to torch.export are equal if eager or the program is only for equal ones, and else stay the example's.

    The file names the sizes that it was compared with eager for, and a warning says which are left out and why.
    """
    lowered = stages.lower({"builder": "builders:hinted_batches", "kwargs": {"kind": kind}}, PORTABLE)
    assert [bool(re.search(said, note)) for note in lowered.figures["notes"]] == [True] * bool(said)
    (inputs,) = (method.inputs for method in read_pte(lowered.file).methods)
    varying = (DimensionSizes(0, 1, 4, 1),)
    assert [spec.sizes[:1] for spec in inputs] == [varying if first else (), varying]
    drawn = [[len(value) for value in flat] for flat in lowered.value("export", "examples")["inputs"][1:]]
    assert drawn[:2] == ([[1, 1], [4, 4]] if first else [[2, 1], [2, 4]])
    assert all(one == other for one, other in drawn) == (kind not in ("free", "few"))


def test_branches_on_sizes_that_turn_out_equal(stages):
    """A guard on a size counts as well where torch found out later that it is another one's."""
    lowered = stages.lower({"builder": "builders:hinted_batches", "kwargs": {"kind": "branches"}}, PORTABLE)
    assert all("takes 4 only" in note for note in lowered.figures["notes"]), lowered.figures["notes"]
    (inputs,) = (method.inputs for method in read_pte(lowered.file).methods)
    assert [spec.shape for spec in inputs] == [(4, 8), (4, 8)]


def test_declared_sizes_that_eager_refuses(stages):
    """A size that a `Dim` asks for and eager refuses is an error, also where other sizes are left to torch.export."""
    with pytest.raises(SourceError, match=r"inputs drawn for .*'forward' .*: ValueError: 1 rows"):
        stages.export("builders:hinted_batches", kwargs={"kind": "declared"})


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        ("branches_on_one", "for a size of 1 in dimension 0 of input 0, the exported program computes something else"),
        ("example_of_one", "dimension 0 of input 0 of the example is 1: give 2 or more"),
        ("example_of_one_pair", "dimension 0 of input 0 of the example is 2: give 4 or more"),
    ],
)
def test_sizes_that_cannot_be_kept(stages, builder, message):
    """What a `Dim` asks for and the model cannot be exported for is an error, which `export` and `diagnose` share."""
    source = {"builder": f"faulty:{builder}", "kwargs": {}}
    for stage in (Export, Diagnose):
        with pytest.raises(SourceError, match=message):
            stages.run(stage, stage.Params(source=source))


@pytest.mark.parametrize("kind", ["one value", "two only"])
@pytest.mark.parametrize("dynamic", [True, False])
def test_quantized_for_few_sizes(lower, kind, dynamic):
    """Sizes of which tracing leaves one are one after quantization, too."""
    asked = recipe("xnnpack", quantize={"quantizer": "xnnpack", "options": {"dynamic": dynamic}})
    lowered = lower(
        {"builder": "builders:hinted_sizes", "kwargs": {"kind": kind}}, asked | {"verify": {"min_sqnr_db": 20}}
    )
    (method,) = read_pte(lowered.file).methods
    assert bool(method.inputs[0].sizes) == (kind == "one value")


def test_a_file_that_says_other_sizes(lower):
    """A file is not verified that does not say which sizes it takes, or refuses some that it was made for."""
    from pteforge.tasks.verify.verification import check_sizes

    lowered = lower({"builder": "builders:hinted_sizes", "kwargs": {"kind": "halves"}}, PORTABLE)
    pte, examples = read_pte(lowered.file), {"forward": lowered.value("export", "examples")}
    check_sizes(pte, examples)
    (method,) = pte.methods
    (spec,) = method.inputs
    for sizes, message in (
        ((), "does not say which sizes it takes"),
        ((DimensionSizes(0, 4, 8, 2),), "refuses a size that it was run with: it has size 2 in dimension 0"),
    ):
        other = replace(pte, methods=(replace(method, inputs=(replace(spec, sizes=sizes),)),))
        with pytest.raises(VerificationFailed, match=message):
            check_sizes(other, examples)


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
@pytest.mark.parametrize("network", ["Padded", "Prefixed", "Recent"])
def test_arithmetic_on_sizes(lower, network, target):
    """Remainders of negative numbers, empty tensors and maxima depend on sizes at run time as they do in eager."""
    source = {"builder": "builders:of_any_length", "kwargs": {"network": network}}
    lowered = lower(source, recipe(target))
    (method,) = read_pte(lowered.file).methods
    assert method.inputs[0].shape == (8, 32)


def test_comparing_a_size_does_not_narrow_it():
    """Inside, a comparison leaves bounds alone, but those of sizes that depend on data; afterwards torch narrows."""
    from pteforge.tasks.upstream.exir import declared_bounds
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    env = ShapeEnv()
    symbol = env.create_symbol(4, ConstantSource("size"), dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
    size = env.create_symintnode(symbol, hint=4)
    unbacked = env.create_unbacked_symint()
    with declared_bounds():
        assert size < 16
        torch._check(unbacked < 8)
    assert env.var_to_range[symbol].upper > 16
    assert env.var_to_range[unbacked.node.expr].upper == 7
    assert size < 32
    assert env.var_to_range[symbol].upper == 31
