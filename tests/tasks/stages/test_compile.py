"""compile: the layout that a recipe asks for, in the file."""

import pytest
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import PORTABLE, XNNPACK


def contents(lower, builder, recipe, **options):
    """The file that these options give; it is verified on the way."""
    return read_pte(lower(f"builders:{builder}", recipe | {"compile": options}).file)


def test_constants_and_methods(lower):
    """All methods are in one file, and what they share is there once; constant methods return their values."""
    from executorch.runtime import Runtime

    lowered = lower("builders:two_methods", PORTABLE)
    pte = read_pte(lowered.file)
    assert sorted(method.name for method in pte.methods) == ["encode", "forward", "sample_rate", "version"]
    shared = [constant for constant in pte.constants if constant.tensor.shape == (6, 6)]
    assert len(shared) == 1

    program = Runtime.get().load_program(lowered.file)
    assert program.load_method("version").execute([]) == [3]
    assert program.load_method("sample_rate").execute([]) == [16000.0]


@pytest.mark.parametrize("alignment", [64, 4096])
def test_segment_alignment(alignment, lower):
    """Segments start where they are asked to."""
    pte = contents(lower, "conv_net", XNNPACK, segment_alignment=alignment)
    assert pte.segments
    assert all(segment.offset % alignment == 0 for segment in pte.segments)


def test_unplanned_inputs_and_outputs(lower):
    """Without memory for inputs and outputs the plan is smaller, and the file still runs."""
    planned, without = (
        contents(lower, "constant", PORTABLE, alloc_graph_input=alloc, alloc_graph_output=alloc)
        for alloc in (True, False)
    )
    assert sum(without.methods[0].planned_memory) < sum(planned.methods[0].planned_memory)


def test_state_is_in_the_file(lower):
    """What a mutated buffer holds at first is among the file's constants, marked as what methods change."""
    pte = contents(lower, "counter", PORTABLE)
    assert sorted(constant.tensor.shape for constant in pte.constants if constant.mutable) == [(1,), (2, 4)]
