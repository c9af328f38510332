"""State that methods share: what one writes the others read, in one loaded program, and verification runs it so."""

from __future__ import annotations

import pytest
from pteforge.errors import SourceError, VerificationFailed


def recipe(target="portable", share=True, **methods):
    """A recipe whose methods share their state."""
    return {
        "specializations": [{"target": target, "methods": methods}],
        "compile": {"share_mutable_buffers": share},
    }


def load(file):
    """The file in the runtime, and a function that calls a method with ones and gives a number of its output."""
    import torch
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(file)
    return lambda method: program.load_method(method).execute([torch.ones(2, 4)])[0][0, 0].item()


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
def test_one_writes_and_others_read(target, stages):
    """All methods see one state, also XNNPACK in a method that only reads it; verified in sequence against eager."""
    import json

    lowered = stages.lower("method_models:cached", recipe(target))
    call = load(lowered.file)
    assert [call(method) for method in ("prefill", "peek", "decode", "peek")] == [2.0, 2.5, 2.5, 3.5]

    cases = json.loads(stages.store.read_artifact(lowered.outputs["verify/tested"]["figures"]))["cases"]
    labels = {case["label"] for case in cases if case["label"].startswith("sequence")}
    assert labels == {f"sequence 0, call {n}" for n in range(7)} | {f"sequence 1, call {n}" for n in range(2)}


def test_loading_a_method_late_leaves_the_state(stages):
    """Only the model's first method says what the state is at first, so that loading another resets nothing."""
    call = load(stages.lower("method_models:cached", recipe()).file)
    assert call("prefill") == 2.0  # loads it
    assert call("decode") == 0.5 + 1 + 1  # loaded now, after the state was written


def test_state_beside_memory_of_a_methods_own(stages):
    """Methods whose memory is planned in different ways still share their state."""
    lowered = stages.lower("method_models:cached", recipe(decode={"alloc_graph_input": False}))
    call = load(lowered.file)
    assert [call(method) for method in ("prefill", "decode", "peek")] == [2.0, 2.5, 3.5]


def test_state_that_is_not_shared_fails_the_sequences(stages):
    """A model that says what its calls give in sequence is not delivered in a file where they give something else."""
    with pytest.raises(VerificationFailed, match=r"method '\w+', sequence 0, call 2, output 0"):
        stages.lower("method_models:cached", recipe(share=False))


def test_buffers_that_cannot_be_one(stages):
    """Buffers of one name that hold different values are two states, and sharing them is refused."""
    source = {"builder": "method_models:cached", "kwargs": {"one_cache": False}}
    with pytest.raises(SourceError, match=r"the buffer 'cache\.rows' of 'peek' is not that of 'prefill'"):
        stages.lower(source, recipe())


def test_calls_of_unknown_methods(stages):
    """A sequence that names a method the model does not have is refused before anything is lowered."""
    with pytest.raises(SourceError, match=r"sequence 0 calls 'decode'; the model's methods are \['forward'\]"):
        stages.export("method_models:unknown_call")
