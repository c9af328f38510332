"""Weights that are absent can be looked at, computed with and copied, and not read."""

import copy
from typing import Any

import pytest
import torch
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.store import open_store
from pteforge.tasks.programs.binding import graph_of
from pteforge.tasks.programs.program import load_graph, save_program
from pteforge.tasks.upstream.absent_weights import WeightRead, no_weight_reads
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


@pytest.fixture
def loaded(tmp_path):
    """The graph of a linear layer whose bias is part of a larger storage, and its absent weights."""
    layer = torch.nn.Linear(4, 4)
    layer.bias = torch.nn.Parameter(torch.randn(8)[4:])
    layer.register_buffer("low", torch.arange(4.0))
    layer.register_buffer("lower", layer.low[:2])
    program = torch.export.export(layer, (torch.zeros(1, 4),))
    store = LocalStore.open(tmp_path / "store")
    ref = save_program(program, kind="program/test", store=store)
    with open_store(str(store.root)) as opened:
        return load_graph(graph_of(ref, opened), store)


def test_looked_at(loaded):
    """Type, shape and memory are those of the weights; they can be viewed, and computed with."""
    program, absent = loaded
    state = program.state_dict
    with no_weight_reads(absent):
        weight, bias = state["weight"], state["bias"]
        assert isinstance(weight, FakeTensor)
        assert isinstance(weight, torch.nn.Parameter)
        assert (weight.shape, weight.dtype, weight.device.type, weight.requires_grad) == (
            (4, 4),
            torch.float32,
            "cpu",
            1,
        )
        assert bias.storage_offset() == 4
        assert absent.slot(weight.t().untyped_storage()) == absent.slot(weight.untyped_storage())
        assert (weight.t().contiguous() + bias).shape == (4, 4)
        assert absent.slot(state["low"].untyped_storage()) == absent.slot(state["lower"].untyped_storage())


@pytest.mark.parametrize(
    "read",
    [
        lambda weight: weight[0, 0].item(),
        lambda weight: weight.tolist(),
        lambda weight: weight.data_ptr(),
        lambda weight: (weight.clone() * 2).sum().item(),
        lambda weight: torch.equal(weight, weight),
        torch.nonzero,
        lambda weight: weight.detach().mul_(2),
        lambda weight: bool((weight + torch.ones(4, 4) > 0).all()),
        lambda weight: weight @ weight[:3],
    ],
)
def test_read(loaded, read):
    """Reading or writing a weight, or something computed from it, raises what `except Exception` does not catch."""
    program, absent = loaded
    with no_weight_reads(absent), pytest.raises(WeightRead):
        read(program.state_dict["weight"])


def test_copied(loaded):
    """A copy is another weight with the same bytes; tensors that share memory still do, unless parameters."""
    program, absent = loaded
    weight, low = program.state_dict["weight"], program.state_dict["low"]
    with no_weight_reads(absent):
        copied = copy.deepcopy(weight)
        copies = copy.deepcopy({name: program.state_dict[name] for name in ("low", "lower")})
        with pytest.raises(WeightRead, match="part of a larger storage"):
            copy.deepcopy(program.state_dict["bias"])
    assert isinstance(copied, torch.nn.Parameter)
    assert copied.untyped_storage()._cdata != weight.untyped_storage()._cdata
    assert absent.slot(copied.untyped_storage()) == absent.slot(weight.untyped_storage())
    storages = [each.untyped_storage() for each in copies.values()]
    assert storages[0]._cdata == storages[1]._cdata != low.untyped_storage()._cdata
    assert absent.slot(storages[0]) == absent.slot(low.untyped_storage())


def test_afterwards(loaded):
    """Afterwards, and for other fake tensors, everything is as torch has it."""

    def state() -> Any:
        owners = FakeTensor, FakeTensorMode, torch.UntypedStorage
        return [{name: value for name, value in vars(owner).items() if callable(value)} for owner in owners]

    program, absent = loaded
    before = state()
    with no_weight_reads(absent):
        other = torch.empty_like(next(node.meta["val"] for node in program.graph.nodes))
        assert other.mul_(2).add(1).shape == other.shape
    assert state() == before
