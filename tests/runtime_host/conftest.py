"""Payloads of one small model, lowered once per session, fat files of them, and the command line in this process."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pteforge.formats.nfat.container import open_fat, pack_v1
from pteforge.formats.nfat.contents import DEFAULT_ALIGNMENT, Description
from pteforge.formats.nfat.pack import PackedContainer, pack_v2
from pteforge.formats.pte.reader import read_pte
from pteforge.runtime.quiet import quiet

BACKENDS = {"vulkan": ("VulkanBackend",), "xnnpack": ("XnnpackBackend",), "portable": ()}


@pytest.fixture(scope="session")
def payloads(tmp_path_factory) -> Mapping[str, Path]:
    """Plain files by name, by priority: a model of two methods with one weight in common, and constants.

    The batch may vary from 1 to 8. Vulkan cannot run here, as MLX and Core ML cannot.
    """
    folder = tmp_path_factory.mktemp("payloads")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # upstream's, while it lowers; nothing here is about them
        contents = _lower()
    for name, content in contents.items():
        (folder / f"{name}.pte").write_bytes(content)
    with quiet():  # what the runtime says when it runs for the first time in a process
        direct(folder / "xnnpack.pte", "forward", [batch(1)])
    return {name: folder / f"{name}.pte" for name in BACKENDS}


def _lower() -> dict[str, bytes]:
    import torch
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from torch.export import Dim, export

    torch.manual_seed(0)
    first = torch.nn.Linear(64, 128)
    model = torch.nn.Sequential(first, torch.nn.ReLU(), torch.nn.Linear(128, 32)).eval()
    shapes = ({0: Dim("batch", min=1, max=8)},)
    programs = {
        name: export(module, (batch(2),), dynamic_shapes=shapes)
        for name, module in (("forward", model), ("hidden", first.eval()))
    }
    partitioners = {"vulkan": VulkanPartitioner, "xnnpack": XnnpackPartitioner, "portable": None}
    return {
        name: bytes(
            to_edge_transform_and_lower(
                programs,
                partitioner={method: [partitioner()] for method in programs} if partitioner else None,
                constant_methods={"rate": 16000, "label": "speech"},
            )
            .to_executorch()
            .buffer
        )
        for name, partitioner in partitioners.items()
    }


def batch(size: int, features: int = 64) -> Any:
    """An input of the model: the same for the same size."""
    import torch

    return torch.randn(size, features, generator=torch.Generator().manual_seed(size))


def direct(file: Path, method: str, inputs: Sequence[Any]) -> list[Any]:
    """What ExecuTorch's own runtime gives for a plain file."""
    from executorch.runtime import Runtime

    return list(Runtime.get().load_program(file).load_method(method).execute(inputs))


@pytest.fixture
def inputs() -> Callable[..., Any]:
    """Makes an input of a batch size."""
    return batch


@pytest.fixture
def plainly() -> Callable[..., list[Any]]:
    """Runs a method of a plain file with ExecuTorch's own runtime."""
    return direct


@pytest.fixture(scope="session")
def lower() -> Callable[..., bytes]:
    """Lowers a module for the portable kernels: a plain file with one method."""

    def lower(module: Any, *shape: int, method: str = "forward") -> bytes:
        import torch
        from executorch.exir import to_edge_transform_and_lower
        from torch.export import export

        program = export(module.eval(), (torch.ones(shape),))
        return bytes(to_edge_transform_and_lower({method: program}).to_executorch().buffer)

    return lower


Entry = tuple[Description, bytes]


@dataclass(frozen=True)
class Maker:
    """Makes fat files in a folder."""

    folder: Path
    payloads: Mapping[str, Path]

    def entry(self, name: str) -> Entry:
        """A payload as it is."""
        return (
            Description(name, BACKENDS[name], ("forward", "hidden", "rate", "label"), "1.5.1"),
            self.payloads[name].read_bytes(),
        )

    def pack(self, *entries: str | Entry) -> PackedContainer:
        """A container of payloads, those that are known by name."""
        known = [self.entry(entry) if isinstance(entry, str) else entry for entry in entries]
        return pack_v2(known, fallback=False)

    def write(
        self, packed: PackedContainer, signature: bytes | None = None, name: str = "fat.pte", data: Path | None = None
    ) -> Path:
        """The fat file of a container; its methods are those of the model, unless another signature is given."""
        with quiet():
            from pteforge.tasks.backend.file_programs import write_fat
        path = self.folder / name
        write_fat(packed, signature or self.payloads["portable"].read_bytes(), path, data_path=data)
        return path

    def fat(self, *entries: str | Entry, name: str = "fat.pte") -> Path:
        """The fat file of some payloads."""
        return self.write(self.pack(*entries), name=name)

    def damaged_blob(self, name: str) -> tuple[Path, str]:
        """A fat file whose first payload has a damaged blob that `portable`, the other one, does not use.

        Returns the file and the blob's digest.
        """
        packed = self.pack((Description(name), self.other_weights()), "portable")
        container = packed.open()
        first, portable = (set(payload.blobs) for payload in container.payloads)
        digest = container.manifest.blobs[min(first - portable)].digest
        changed = bytearray(packed.blobs[digest])
        changed[100] ^= 1
        blobs = {**packed.blobs, digest: memoryview(changed)}
        return self.write(replace(packed, blobs=blobs), name="damaged.pte"), digest

    def version_1(self, *entries: tuple[str, bytes], name: str = "fat.pte", **named: memoryview) -> Path:
        """The fat file of a container of version 1, with named data."""
        return self.write(PackedContainer(pack_v1(entries), named, DEFAULT_ALIGNMENT), name=name)

    def external(self, *names: str) -> Path:
        """The fat file model.pte of some payloads, with its weights in model.ptd."""
        return self.write(self.pack(*names), name="model.pte", data=self.folder / "model.ptd")

    def other_weights(self) -> bytes:
        """The portable payload with other weights: every byte of its constants has its lowest bit changed."""
        content = bytearray(self.payloads["portable"].read_bytes())
        for constant in read_pte(bytes(content)).constants:
            weights = slice(constant.extent.offset, constant.extent.end)
            content[weights] = bytes(byte ^ 1 for byte in content[weights])
        return bytes(content)


@pytest.fixture(scope="session")
def convolutions(tmp_path_factory) -> tuple[Path, Path, Any]:
    """A convolution for XNNPACK and for portable, and an input."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from torch.export import export

    torch.manual_seed(0)
    model, x = torch.nn.Conv2d(32, 64, 3).eval(), torch.randn(1, 32, 6, 6)
    folder = tmp_path_factory.mktemp("convolutions")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # upstream's, while it lowers
        for name, partitioner in (("xnnpack", [XnnpackPartitioner()]), ("portable", None)):
            program = export(model, (x,))
            lowered = to_edge_transform_and_lower(program, partitioner=partitioner).to_executorch()
            (folder / f"{name}.pte").write_bytes(lowered.buffer)
    return folder / "xnnpack.pte", folder / "portable.pte", x


@pytest.fixture
def make(tmp_path, payloads) -> Maker:
    return Maker(tmp_path, payloads)


@pytest.fixture(scope="session")
def fat(tmp_path_factory, payloads) -> Path:
    """A fat file of all payloads. Never changed by a test."""
    path = Maker(tmp_path_factory.mktemp("fat"), payloads).fat(*payloads, name="model.pte")
    assert [payload.name for payload in open_fat(path).container.payloads] == list(payloads)
    return path


@pytest.fixture
def pteforge(tmp_path, payloads, run_here) -> Callable[..., Any]:
    """Runs the command line in this process, in the test's folder."""
    del payloads  # what is printed while they are made is no command's
    return partial(run_here, tmp_path)
