"""Constant methods: every type that ExecuTorch emits is in the file, and what it returns is verified."""

from __future__ import annotations

import pytest
from pteforge.errors import SourceError, VerificationFailed

PORTABLE = {"specializations": [{"target": "portable"}]}


def test_every_type(stages):
    """Numbers, flags, text, types, tensors of any strides, and trees of these come back as they were, flat."""
    import torch
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(stages.lower("method_models:constants", PORTABLE).file)

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


def test_wrong_and_missing_constants_fail_verification(stages, tmp_path):
    """A file that returns something else, of another type, or nothing under that name, is not delivered."""
    from pteforge.tasks.stages.constants import check_constants

    path = tmp_path / "model.pte"
    path.write_bytes(stages.lower("method_models:constants", PORTABLE).file)
    check_constants(path, {"integer": 2**40})
    for name, other in {
        "integer": 3,
        "flag": 1,
        "text": "cafe",
        "several": [1],
        "named": {"low": -1, "high": 3},
    }.items():
        with pytest.raises(VerificationFailed, match=f"the constant method '{name}' returns"):
            check_constants(path, {name: other})
    with pytest.raises(VerificationFailed, match="cannot run the constant method 'width'"):
        check_constants(path, {"width": 3})


def test_what_a_file_cannot_hold(stages):
    """Other types are refused where the model is exported, in words."""
    with pytest.raises(SourceError, match="constant method 'odd' has a complex"):
        stages.export("method_models:odd_constant")
