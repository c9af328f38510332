"""What tests of programs share: upstream imported without its warnings, a store, round trips, fixed random numbers."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # only while upstream is imported
    import executorch.backends.xnnpack.partition.xnnpack_partitioner
    import executorch.exir  # noqa: F401
    import torch
    import torchao.quantization.pt2e.quantize_pt2e  # noqa: F401

from pteforge.artifacts.local_store import LocalStore
from pteforge.tasks.programs.program import load_program, save_program
from pteforge.tests.lowering import program_digest
from torch.export import ExportedProgram


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """An empty store."""
    return LocalStore.open(tmp_path / "store")


@pytest.fixture
def round_trip(store: LocalStore) -> Callable[..., ExportedProgram]:
    """Saves and loads a program; the digest must stay."""

    def save_and_load(program: ExportedProgram, kind: str = "program/test") -> ExportedProgram:
        loaded = load_program(save_program(program, kind=kind, store=store), store)
        assert program_digest(loaded) == program_digest(program)
        return loaded

    return save_and_load


@pytest.fixture(autouse=True)
def _same_numbers():
    """Models have the same weights in every test, whatever ran before."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
