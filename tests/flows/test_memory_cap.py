"""A checkpoint of 135 million weights is exported where its module in float32 has no space in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MIB = 1 << 20
CAP = 448


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_checkpoint_larger_than_memory(project, monkeypatch):
    """The weights, in bfloat16 in their file, are computed with in float32, and are never in memory all at once."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    from checkpoints import CHECKPOINTS, size_of_tensor, write_checkpoint

    geometry = CHECKPOINTS["llama-135m"]
    assert len([*write_checkpoint(geometry, project.folder / "checkpoint", shard=100 * MIB)]) == 3
    assert 2 * sum(map(size_of_tensor, geometry.shapes().values())) > 1.1 * CAP * MIB  # in float32
    source = {"huggingface": "./checkpoint", "sequence": 128, "attention": "custom_sdpa"}
    model = {"source": source, "limits": {"memory": f"{CAP}MiB"}}
    project.write_zoo({"large": model}, ("xnnpack-llm-8da4w",))
    done = project.export("--until", "export")
    assert done.code == 0, done.err
