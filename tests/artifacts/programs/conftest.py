"""What tests of programs share: upstream imported without its warnings, a store, and fixed random numbers."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # only while upstream is imported
    import executorch.backends.xnnpack.partition.xnnpack_partitioner
    import executorch.exir  # noqa: F401
    import torch
    import torchao.quantization.pt2e.quantize_pt2e  # noqa: F401

from pteforge.artifacts.local_store import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """An empty store."""
    return LocalStore.open(tmp_path / "store")


@pytest.fixture(autouse=True)
def _same_numbers():
    """Models have the same weights in every test, whatever ran before."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
