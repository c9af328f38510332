"""Small real `.pte` files, lowered once per session, and a container of two of them."""

import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pteforge.artifacts.local_store import LocalStore
from pteforge.formats.nfat.contents import Description
from pteforge.formats.nfat.pack import PackedContainer, pack_v2


@dataclass(frozen=True)
class Samples:
    """Real files.

    Attributes:
        files: by what is special about them.
        program: the exported program of the net in most of them.
        weights: bytes of the net's weights, by name.
    """

    files: dict[str, bytes]
    program: Any
    weights: dict[str, bytes]


NAMES = ("portable", "xnnpack", "methods", "dynamic", "mutable", "stateless", "inline", "external", "lists")


@pytest.fixture(scope="session")
def samples() -> Samples:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # upstream's, while it lowers
        return _lower()


@pytest.fixture(params=NAMES)
def sample(request, samples) -> bytes:
    return samples.files[request.param]


@pytest.fixture(scope="session")
def payloads(samples) -> list[tuple[Description, bytes]]:
    """The net for XNNPACK and for portable kernels."""
    return [
        (Description(name, backends, ("forward",), "1.5.1", {"quantization": "none"}), samples.files[name])
        for name, backends in (("xnnpack", ("XnnpackBackend",)), ("portable", ()))
    ]


@pytest.fixture(scope="session")
def packed(payloads) -> PackedContainer:
    return pack_v2(payloads, metadata={"made-by": "pteforge"})


@pytest.fixture
def store(tmp_path) -> LocalStore:
    return LocalStore.open(tmp_path / "store")


@pytest.fixture
def allocates_less_than() -> Callable[[int], AbstractContextManager[None]]:
    """Checks that a block has less than so many bytes of Python's memory at any time."""

    @contextmanager
    def check(limit: int) -> Iterator[None]:
        tracemalloc.start()
        try:
            yield
            assert tracemalloc.get_traced_memory()[1] < limit
        finally:
            tracemalloc.stop()

    return check


def _lower() -> Samples:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
    from pteforge.tests.zoo.networks import Function, FunctionOfLayers
    from torch.export import Dim, export

    def count(net, x):
        net.count.add_(x.sum())
        net.zero.add_(1.0)
        return x + net.count[:64] + net.zero[0, :64]

    def lower(programs, *, partitioner=None, constants=None, **config):
        edge = to_edge_transform_and_lower(programs, partitioner=partitioner, constant_methods=constants)
        return bytes(edge.to_executorch(ExecutorchBackendConfig(**config)).buffer)

    torch.manual_seed(0)
    layers = {"conv": torch.nn.Conv2d(8, 16, 3), "linear": torch.nn.Linear(16 * 6 * 6, 128)}
    net = FunctionOfLayers(lambda net, x: net.linear(torch.relu(net.conv(x)).flatten(1)), **layers).eval()
    counter = FunctionOfLayers(count, count=torch.arange(512.0), zero=torch.zeros(1, 700)).eval()
    index = Function(lambda x, i: (torch.cat([x[i], x[:, i].permute(1, 0)]), 3, x.sum()))
    image = torch.randn(1, 8, 8, 8)
    linear, rows = torch.nn.Linear(64, 64).eval(), torch.randn(2, 64)
    program = export(net, (image,))
    xnnpack = [XnnpackPartitioner()]
    constants = {
        "max_length": 128,
        "title": "ü",
        "scale": 0.5,
        "flag": True,
        "sizes": [1, 2],
        "limit": float("inf"),
        "ids": torch.arange(300),
    }
    initial = [InitializedMutableBufferPass(["count", "zero"])]
    files = {
        "portable": lower(program),
        "xnnpack": lower(program, partitioner=xnnpack),
        "methods": lower(
            {"forward": program, "encode": export(linear, (rows,))}, partitioner=xnnpack, constants=constants
        ),
        "dynamic": lower(export(linear, (rows,), dynamic_shapes=({0: Dim("batch", min=1, max=16)},))),
        "mutable": lower(export(counter, (torch.randn(64),)), passes=initial),
        "stateless": lower(export(Function(lambda x: x + x), (image,))),
        "inline": lower(program, partitioner=xnnpack, extract_delegate_segments=False),
        "external": lower(program, external_constants=True),
        "lists": lower(export(index, (torch.randn(4, 4), torch.tensor([0, 2])))),
    }
    weights = {
        name: bytes(tensor.detach().contiguous().untyped_storage().tolist())
        for name, tensor in net.state_dict().items()
    }
    return Samples(files, program, weights)
