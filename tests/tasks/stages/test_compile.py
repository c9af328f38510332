"""compile: the layout that a recipe asks for, in the file."""

from __future__ import annotations

import pytest
from pteforge.artifacts.pte.reader import read_pte

PORTABLE = {"specializations": [{"target": "portable"}]}
XNNPACK = {"specializations": [{"target": "xnnpack"}]}


def contents(stages, builder, recipe, **options):
    """The file that these options give; it is verified on the way."""
    return read_pte(stages.lower(f"chain_models:{builder}", recipe | {"compile": options}).file)


def test_constants_and_methods(stages):
    """All methods are in one file, and what they share is there once; constant methods return their values."""
    from executorch.runtime import Runtime

    lowered = stages.lower("chain_models:two_methods", PORTABLE)
    pte = read_pte(lowered.file)
    assert sorted(method.name for method in pte.methods) == ["encode", "forward", "sample_rate", "version"]
    shared = [constant for constant in pte.constants if constant.tensor.shape == (6, 6)]
    assert len(shared) == 1

    program = Runtime.get().load_program(lowered.file)
    assert program.load_method("version").execute([]) == [3]
    assert program.load_method("sample_rate").execute([]) == [16000.0]


@pytest.mark.parametrize("recipe", [PORTABLE, XNNPACK], ids=["portable", "xnnpack"])
def test_state_that_depends_on_parameters(recipe, stages):
    """A layer's result may be written to a buffer, and every example starts from the initial state."""
    assert stages.lower("chain_models:smoothing", recipe).file


@pytest.mark.parametrize("alignment", [64, 4096])
def test_segment_alignment(alignment, stages):
    """Segments start where they are asked to."""
    pte = contents(stages, "conv_net", XNNPACK, segment_alignment=alignment)
    assert pte.segments
    assert all(segment.offset % alignment == 0 for segment in pte.segments)


@pytest.mark.parametrize("extract", [True, False])
def test_delegate_segments(extract, stages):
    """Delegates are in segments or inside the program."""
    pte = contents(stages, "two_partitions", XNNPACK, extract_delegate_segments=extract)
    wanted = "segment" if extract else "inline"
    assert [delegate.location for delegate in pte.methods[0].delegates] == [wanted] * 2


def test_unplanned_inputs_and_outputs(stages):
    """Without memory for inputs and outputs the plan is smaller, and the file still runs."""
    planned, without = (
        contents(stages, "constant", PORTABLE, alloc_graph_input=alloc, alloc_graph_output=alloc)
        for alloc in (True, False)
    )
    assert sum(without.methods[0].planned_memory) < sum(planned.methods[0].planned_memory)


def test_stack_traces(stages):
    """Stack traces are in the file where they are asked for, and only there."""
    with_traces = stages.lower("chain_models:conv_net", PORTABLE | {"compile": {"emit_stacktrace": True}}).file
    without = stages.lower("chain_models:conv_net", PORTABLE).file
    assert b"chain_models.py" in with_traces
    assert b"chain_models.py" not in without


def test_state_is_in_the_file(stages):
    """What a mutated buffer holds at first is among the file's constants, marked as what methods change."""
    pte = contents(stages, "counter", PORTABLE)
    assert sorted(constant.tensor.shape for constant in pte.constants if constant.mutable) == [(1,), (2, 4)]
