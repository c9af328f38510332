"""Makes fat programs, good and bad ones, and what they should give: `make.py FOLDER`.

A program NAME is NAME.pte; NAME.payload is the plain one that should run, empty if none should; NAME.calls.pt has
inputs by method.
"""

from __future__ import annotations

import copy
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge, to_edge_transform_and_lower
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_api import to_backend
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.passes import MemoryPlanningPass
from pteforge.artifacts.nfat.contents import Description
from pteforge.artifacts.nfat.pack import PackedContainer, pack_stretches, pack_v2
from pteforge.artifacts.nfat.stretches import stretches
from pteforge.artifacts.nfat.v1 import pack_v1
from pteforge.artifacts.nfat.v2 import write_v2
from pteforge.artifacts.pte.reader import read_pte
from torch.export import Dim, ExportedProgram, export

_EDGE = EdgeCompileConfig(_check_ir_validity=False)
_UNPLANNED = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)

Programs = Mapping[str, ExportedProgram]
Calls = Mapping[str, Sequence[tuple[Any, ...]]]


def payload(programs: Programs, *, xnnpack: bool, planned: bool = False) -> bytes:
    """A plain program."""
    lowered = to_edge_transform_and_lower(
        {name: copy.deepcopy(program) for name, program in programs.items()},
        partitioner={name: [XnnpackPartitioner()] for name in programs} if xnnpack else None,
        compile_config=_EDGE,
    )
    config = ExecutorchBackendConfig() if planned else ExecutorchBackendConfig(memory_planning_pass=_UNPLANNED)
    return lowered.to_executorch(config).buffer


class NfatBackend(BackendDetails):
    """Delegates a whole program to the container at hand.

    There must be only one class of this name: exir looks backends up by it.
    """

    container: bytes
    blobs: Mapping[str, Any]

    @staticmethod
    def preprocess(edge_program: ExportedProgram, specs: object) -> PreprocessResult:
        """The container, whatever the program is."""
        del edge_program, specs
        return PreprocessResult(processed_bytes=NfatBackend.container, data_store_output=named_data(NfatBackend.blobs))


def wrap(programs: Programs, container: bytes, blobs: Mapping[str, Any]) -> bytes:
    """The outer program, all of whose methods delegate to the container."""
    NfatBackend.container = container
    NfatBackend.blobs = blobs
    wrapped = {}
    for name, program in programs.items():
        lowered = to_backend(NfatBackend.__name__, _edge(program), [])
        inputs, _ = program.example_inputs
        shapes = _shapes(program, inputs)
        wrapped[name] = export(_Call(lowered), inputs, dynamic_shapes=shapes, strict=False)
    return to_edge(wrapped, compile_config=_EDGE).to_executorch().buffer


@functools.cache
def _edge(program: ExportedProgram) -> ExportedProgram:
    return to_edge_transform_and_lower(copy.deepcopy(program), compile_config=_EDGE).exported_program()


def named_data(blobs: Mapping[str, Any]) -> Any:
    """Blobs as a backend returns them."""
    store = NamedDataStore()
    for key, blob in blobs.items():
        store.add_named_data(key, bytes(blob), alignment=128)
    return store.get_named_data_store_output()


class _Call(torch.nn.Module):
    def __init__(self, lowered: torch.nn.Module) -> None:
        super().__init__()
        self.lowered = lowered

    def forward(self, *inputs: Any) -> Any:
        return self.lowered(*inputs)


def _shapes(program: ExportedProgram, inputs: tuple[Any, ...]) -> Any:
    """Dynamic shapes for the wrapper: those first dimensions that the program has dynamic."""
    if not program.range_constraints:
        return None
    batch = Dim("batch", min=1, max=8)
    return (tuple({0: batch} for _ in inputs),)


class Linear(torch.nn.Module):
    """Large enough for its weights to be blobs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 128)
        self.second = torch.nn.Linear(128, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102  # the class says it
        return self.second(self.first(x).relu())


class Both(Linear):
    """Takes what it does not use; returns an input, and one result twice."""

    def forward(self, unused: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: ARG002, D102  # see above
        result = super().forward(x)
        return result, x, result


class Counter(torch.nn.Module):
    """Keeps state from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102  # the class says it
        self.total.add_(x)
        return self.total * 2


class Encoded(torch.nn.Module):
    """Another method of a linear model."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102  # the class says it
        return self.linear.first(x)


class Maker:
    """Writes programs into a folder."""

    def __init__(self, folder: Path) -> None:
        """Takes the folder, which has to be there."""
        self._folder = folder
        self._names: list[str] = []

    def write(self, name: str, content: bytes, calls: Calls, expected: bytes = b"") -> None:
        """A program, inputs for its methods, and the payload whose outputs it should have."""
        (self._folder / f"{name}.pte").write_bytes(content)
        (self._folder / f"{name}.payload").write_bytes(expected)
        torch.save(dict(calls), self._folder / f"{name}.calls.pt")
        self._names.append(name)

    def finish(self) -> None:
        """Lists all programs."""
        (self._folder / "programs.json").write_text(json.dumps(sorted(self._names)))


def fat(programs: Programs, *, planned: bool = False) -> tuple[bytes, bytes, PackedContainer]:
    """The payloads of XNNPACK and portable, and the container of both."""
    accelerated = payload(programs, xnnpack=True, planned=planned)
    portable = payload(programs, xnnpack=False, planned=planned)
    return accelerated, portable, pack_v2([_xnnpack(accelerated), (Description("portable"), portable)])


def _pack_anything(payloads: Sequence[tuple[Description, bytes]]) -> PackedContainer:
    """A container with payloads that `pack_v2` refuses."""
    descriptions, contents = zip(*payloads, strict=True)
    every = [each for index, content in enumerate(contents) for each in stretches(index, read_pte(content))]
    return pack_stretches(descriptions, [memoryview(content) for content in contents], every, 128, {})


def _xnnpack(content: bytes) -> tuple[Description, bytes]:
    return Description("xnnpack", ("XnnpackBackend",), ("forward",), "1.5.1", {"made": "for tests"}), content


def main(folder: Path) -> None:
    """Writes everything."""
    torch.manual_seed(0)
    maker = Maker(folder)
    _write_linear(maker)
    _write_signatures(maker)
    _write_large(maker)
    maker.finish()


def _write_linear(maker: Maker) -> None:
    """One model in sound and in bad containers."""
    x = torch.randn(4, 64)
    program = {"forward": export(Linear().eval(), (x,))}
    calls = {"forward": [(x,), (x + 1,)]}
    accelerated, plain, packed = fat(program)
    portable = Description("portable"), plain

    def v1(name: str, entries: Sequence[tuple[str, bytes]], expected: bytes = b"") -> None:
        maker.write(name, wrap(program, pack_v1(entries), {}), calls, expected)

    v1("v1", [("XnnpackBackend", accelerated), ("portable", plain)], accelerated)
    v1("v1-garbage-first", [("XnnpackBackend", b"\x07" * 999), ("portable", plain)], plain)
    v1("v1-none-fits", [("MLXBackend", accelerated), ("HexagonBackend", plain)])

    def v2(name: str, fat_file: PackedContainer, expected: bytes = b"") -> None:
        maker.write(name, wrap(program, fat_file.container, fat_file.blobs), calls, expected)

    v2("v2", packed, accelerated)
    mlx = Description("mlx", ("MLXBackend",)), plain[:-16] + bytes(16)
    v2("v2-mlx-first", pack_v2([mlx, _xnnpack(accelerated), portable]), accelerated)
    v2("v2-none-fits", pack_v2([mlx], fallback=False))
    assert b"XnnpackBackend" in accelerated
    liar = Description("vulkan"), accelerated.replace(b"XnnpackBackend", b"VulkanBackend\0")
    v2("v2-mislabelled-first", pack_v2([liar, portable]), plain)
    v2("v2-damaged-first", replace(packed, container=_damage(packed, "xnnpack")), plain)
    v2("v2-blobs-missing", replace(packed, blobs={}))
    v2("v2-blobs-short", replace(packed, blobs={key: blob[:-1] for key, blob in packed.blobs.items()}))
    v2("v2-cut-short", replace(packed, container=packed.container[:-1]))
    planned, _, packed_planned = fat(program, planned=True)
    v2("v2-planned", packed_planned, planned)
    nested = Description("fat"), wrap(program, packed.container, packed.blobs)
    v2("v2-nested", _pack_anything([nested, _xnnpack(accelerated)]), accelerated)
    nested = Description("fat", ("NfatBackend",)), nested[1]
    v2("v2-nested-and-says-so", _pack_anything([nested, _xnnpack(accelerated)]), accelerated)
    whole = packed.open().manifest
    undigested = replace(whole, payloads=tuple(replace(each, parts_sha256=None) for each in whole.payloads))
    without = replace(packed, container=write_v2(undigested, bytes(packed.open().inline)))
    v2("v2-no-parts-digest", without, accelerated)
    v2("v2-no-parts-digest-damaged-first", replace(without, container=_damage(without, "xnnpack")), plain)
    _, _, narrow = fat({"forward": export(torch.nn.Linear(64, 4).eval(), (x,))})
    v2("v2-other-outputs", narrow)


def _write_signatures(maker: Maker) -> None:
    """Models that take and return more than one tensor of one size."""
    x = torch.randn(4, 64)
    model = Linear().eval()
    dynamic = {"forward": export(model, (x,), dynamic_shapes=({0: Dim("batch", min=1, max=8)},))}
    accelerated, plain, packed = fat(dynamic)
    sizes = {"forward": [(torch.randn(size, 64),) for size in (4, 8, 1, 3)]}
    maker.write("v2-dynamic", wrap(dynamic, packed.container, packed.blobs), sizes, accelerated)
    maker.write("v1-dynamic-portable", wrap(dynamic, pack_v1([("portable", plain)]), {}), sizes, plain)

    both = {"forward": export(Both().eval(), (torch.ones(2), x))}
    _, _, packed = fat(both)
    # Not the payload itself: where nothing is planned, the runtime takes the memory of an input that is returned away.
    planned = payload(both, xnnpack=True, planned=True)
    several = {"forward": [(torch.ones(2), x), (torch.zeros(2), x * 2)]}
    maker.write("v2-aliases", wrap(both, packed.container, packed.blobs), several, planned)

    methods = {"forward": export(model, (x,)), "encode": export(Encoded(model).eval(), (x,))}
    accelerated, _, packed = fat(methods)
    named = {"forward": [(x,)], "encode": [(x,)]}
    maker.write("v2-two-methods", wrap(methods, packed.container, packed.blobs), named, accelerated)

    only_encode = Description("encoder"), payload({"encode": methods["encode"]}, xnnpack=False)
    plain = payload(methods, xnnpack=False)
    packed = pack_v2([only_encode, (Description("portable"), plain)])
    maker.write(
        "v2-method-missing-first",
        wrap(methods, packed.container, packed.blobs),
        {"encode": [(x,)], "forward": [(x,)]},
        plain,
    )

    ones = torch.ones(4)
    accelerated, _, packed = fat({"forward": export(Counter().eval(), (ones,))})
    steps = {"forward": [(ones,), (ones,), (ones * 3,)]}
    maker.write("v2-state", wrap(_stateless(), packed.container, packed.blobs), steps, accelerated)


def _write_large(maker: Maker) -> None:
    """More weights than are verified by default; a program and an accelerator's data are in blobs of their own."""
    x = torch.randn(1, 128)
    layers = [torch.nn.Linear(128, 128) for _ in range(40)]  # so many that what describes them is a blob, too
    program = {"forward": export(torch.nn.Sequential(*layers).eval(), (x,))}
    calls = {"forward": [(x,)]}
    accelerated, plain, packed = fat(program)
    maker.write("large", wrap(program, packed.container, packed.blobs), calls, accelerated)
    container = packed.open()
    digests = [blob.digest for blob in container.manifest.blobs]
    used = [{digests[index] for index in each.blobs} for each in container.payloads]
    weights = max(used[0] & used[1], key=lambda key: len(packed.blobs[key]))
    parsed = max(used[0] - used[1], key=lambda key: len(packed.blobs[key]))
    for name, key, expected in (("weights", weights, b""), ("parsed", parsed, plain)):
        damaged = bytearray(packed.blobs[key])
        damaged[len(damaged) // 2] ^= 1
        content = wrap(program, packed.container, {**packed.blobs, key: damaged})
        maker.write(f"large-{name}-damaged", content, calls, expected)


def _stateless() -> Programs:
    """A program with the signature of Counter: the state is the payload's affair."""
    return {"forward": export(torch.nn.ReLU(), (torch.ones(4),))}


def _damage(packed: PackedContainer, name: str) -> bytes:
    """The container with another last byte in a payload's first inline stretch."""
    container = packed.open()
    extent = next(each for each in container.payload(name).extents if each.source.name == "INLINE")
    damaged = bytearray(packed.container)
    damaged[len(damaged) - len(container.inline) + extent.offset + extent.size - 1] ^= 1
    return bytes(damaged)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
