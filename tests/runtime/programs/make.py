"""Makes fat programs, sound and damaged ones: `make.py FOLDER`.

A program NAME is NAME.pte; NAME.payload is the plain one that should run, empty if none should; NAME.calls.pt has the
inputs of calls by method.
"""

import copy
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.passes import MemoryPlanningPass
from pteforge.artifacts.digest import digest_bytes
from pteforge.formats.nfat.container import pack_v1, write_v2
from pteforge.formats.nfat.contents import Description
from pteforge.formats.nfat.golden import GoldenCase, GoldenCheck, golden_tensors, read_cases, write_cases
from pteforge.formats.nfat.pack import PackedContainer, pack_sections, pack_v2
from pteforge.formats.nfat.sharing import sections
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.backend.file_programs import write_fat
from pteforge.tests.mutations import damage_inline
from pteforge.tests.zoo.networks import FunctionOfLayers
from torch.export import Dim, ExportedProgram, export

_EDGE = EdgeCompileConfig(_check_ir_validity=False)
_BATCH = Dim("batch", min=1, max=8)
_UNPLANNED = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)

Programs = Mapping[str, ExportedProgram]
Calls = Mapping[str, Sequence[tuple[Any, ...]]]


def payload(programs: Programs, *, xnnpack: bool, planned: bool = False) -> bytes:
    lowered = to_edge_transform_and_lower(
        {name: copy.deepcopy(program) for name, program in programs.items()},
        partitioner={name: [XnnpackPartitioner()] for name in programs} if xnnpack else None,
        compile_config=_EDGE,
    )
    config = ExecutorchBackendConfig() if planned else ExecutorchBackendConfig(memory_planning_pass=_UNPLANNED)
    return lowered.to_executorch(config).buffer


def linear(compute: Callable[..., Any] = lambda net, x: net.second(net.first(x).relu())) -> torch.nn.Module:
    """Large enough for its weights to be blobs."""
    return FunctionOfLayers(compute, first=torch.nn.Linear(64, 128), second=torch.nn.Linear(128, 8)).eval()


def convolutions() -> torch.nn.Module:
    """XNNPACK keeps weights of each of its convolutions in another order than portable."""
    layers = {"first": torch.nn.Conv2d(3, 32, 3, padding=1), "depthwise": torch.nn.Conv2d(32, 64, 3, groups=32)}
    layers["last"] = torch.nn.ConvTranspose2d(64, 6, 3, groups=2)
    return FunctionOfLayers(lambda net, x: net.last(net.depthwise(net.first(x).relu()).relu()), **layers).eval()


def half_linear() -> torch.nn.Module:
    """Computes with 16-bit numbers."""
    return linear(lambda net, x: net.second(net.first(x.half()).relu()).float())


def both() -> torch.nn.Module:
    """Takes what it does not use; returns an input, and one result twice."""
    return linear(lambda net, _, x: ((result := net.second(net.first(x).relu())), x, result))


def counter() -> torch.nn.Module:
    """Keeps state from call to call."""

    def count(net: Any, x: torch.Tensor) -> torch.Tensor:
        net.total.add_(x)
        return net.total * 2

    return FunctionOfLayers(count, total=torch.zeros(4)).eval()


class FaultyBackend(BackendDetails):
    """Tells native/faulty_backends.cpp how to fail."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        del edge_program
        return PreprocessResult(processed_bytes=compile_specs[0].value)


class Faults(Partitioner):
    """Delegates each operator to the faulty backend, with what goes wrong there."""

    def __init__(self, faults: Sequence[str]) -> None:
        specs = (DelegationSpec("FaultyBackend", [CompileSpec("fault", fault.encode())]) for fault in faults)
        self._specs = {f"fault{number}": spec for number, spec in enumerate(specs)}

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        nodes = (node for node in exported_program.graph.nodes if node.op == "call_function")
        for tag, node in zip(self._specs, nodes, strict=True):
            node.meta["delegation_tag"] = tag
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=self._specs)


class Maker:
    """Writes programs into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: list[str] = []

    def write(self, name: str, signature: bytes, packed: PackedContainer, calls: Calls, expected: bytes = b"") -> None:
        """Writes a fat file with the methods of `signature`, inputs for them, and the payload that should run."""
        nowhere = self.folder / "empty.ptd"  # so that a program without blobs has no list of them either
        write_fat(packed, signature, self.folder / f"{name}.pte", data_path=None if packed.blobs else nowhere)
        (self.folder / f"{name}.payload").write_bytes(expected)
        torch.save(dict(calls), self.folder / f"{name}.calls.pt")
        self._names.append(name)

    def finish(self) -> None:
        (self.folder / "programs.json").write_text(json.dumps(sorted(self._names)))


def fat(programs: Programs, *, planned: bool = False) -> tuple[bytes, bytes, PackedContainer]:
    """The payloads of XNNPACK and portable, and the container of both."""
    accelerated = payload(programs, xnnpack=True, planned=planned)
    portable = payload(programs, xnnpack=False, planned=planned)
    return accelerated, portable, pack_v2([_xnnpack(accelerated), (Description("portable"), portable)])


def golden(
    content: bytes, calls: Sequence[tuple[str, Sequence[Any], Sequence[Any]]], *, stateful: bool = False
) -> GoldenCheck:
    """A check by calls of a payload's methods: name, inputs and outputs."""
    methods = {method.name: method for method in read_pte(content).methods}
    cases = [
        GoldenCase(
            name, golden_tensors(inputs, methods[name].inputs), golden_tensors(outputs, methods[name].outputs), stateful
        )
        for name, inputs, outputs in calls
    ]
    return GoldenCheck(memoryview(write_cases(cases)), 1e-4, 3)


def _planned(programs: Programs) -> bytes:
    """The signature of fat files that plan memory for inputs and outputs."""
    return payload(programs, xnnpack=False, planned=True)


def _v1(*entries: tuple[str, bytes]) -> PackedContainer:
    return PackedContainer(pack_v1(entries), {}, 128)


def _pack_anything(payloads: Sequence[tuple[Description, bytes]]) -> PackedContainer:
    """A container with payloads that `pack_v2` refuses."""
    descriptions, contents = zip(*payloads, strict=True)
    found = [section for index, content in enumerate(contents) for section in sections(index, read_pte(content))]
    return pack_sections(descriptions, [memoryview(content) for content in contents], found, 128, {})


def _xnnpack(content: bytes) -> tuple[Description, bytes]:
    return Description("xnnpack", ("XnnpackBackend",), ("forward",), "1.5.1", {"made": "for tests"}), content


def main(folder: Path) -> None:
    torch.manual_seed(0)
    maker = Maker(folder)
    _write_linear(maker)
    _write_signatures(maker)
    _write_large(maker)
    _write_convolutions(maker)
    _write_halves(maker)
    _write_checked(maker)
    maker.finish()
    (folder / "faulty").mkdir()
    _write_faulty(Maker(folder / "faulty"))


def _write_linear(maker: Maker) -> None:
    """One model in sound and in damaged containers."""
    x = torch.randn(4, 64)
    program = {"forward": export(linear(), (x,))}
    calls = {"forward": [(x,), (x + 1,)]}
    accelerated, plain, packed = fat(program)
    portable = Description("portable"), plain
    signature = _planned(program)

    def write(name: str, container: PackedContainer, expected: bytes = b"") -> None:
        maker.write(name, signature, container, calls, expected)

    write("v1", _v1(("XnnpackBackend", accelerated), ("portable", plain)), accelerated)
    write("v1-garbage-first", _v1(("XnnpackBackend", b"\x07" * 999), ("portable", plain)), plain)
    write("v1-none-fits", _v1(("MLXBackend", accelerated), ("HexagonBackend", plain)))
    write("v2", packed, accelerated)
    mlx = Description("mlx", ("MLXBackend",)), plain[:-16] + bytes(16)
    write("v2-mlx-first", pack_v2([mlx, _xnnpack(accelerated), portable]), accelerated)
    write("v2-none-fits", pack_v2([mlx], fallback=False))
    assert b"XnnpackBackend" in accelerated
    liar = Description("vulkan"), accelerated.replace(b"XnnpackBackend", b"VulkanBackend\0")
    write("v2-mislabelled-first", pack_v2([liar, portable]), plain)
    write("v2-damaged-first", damage_inline(packed, "xnnpack"), plain)
    write("v2-blobs-missing", replace(packed, blobs={}))
    write("v2-blobs-short", replace(packed, blobs={key: blob[:-1] for key, blob in packed.blobs.items()}))
    write("v2-cut-short", replace(packed, container=packed.container[:-1]))
    planned, _, packed_planned = fat(program, planned=True)
    write("v2-planned", packed_planned, planned)
    nested = Description("fat"), (maker.folder / "v2.pte").read_bytes()
    write("v2-nested", _pack_anything([nested, _xnnpack(accelerated)]), accelerated)
    nested = Description("fat", ("NfatBackend",)), nested[1]
    write("v2-nested-and-says-so", _pack_anything([nested, _xnnpack(accelerated)]), accelerated)
    whole = packed.open().manifest
    undigested = replace(whole, payloads=tuple(replace(each, parts_sha256=None) for each in whole.payloads))
    without = replace(packed, container=write_v2(undigested, bytes(packed.open().inline)))
    write("v2-no-parts-digest", without, accelerated)
    write("v2-no-parts-digest-damaged-first", damage_inline(without, "xnnpack"), plain)
    _, _, narrow = fat({"forward": export(torch.nn.Linear(64, 4).eval(), (x,))})
    write("v2-other-outputs", narrow)


def _write_signatures(maker: Maker) -> None:
    """Models with other signatures than one tensor of one size."""
    x = torch.randn(4, 64)
    model = linear()
    dynamic = {"forward": export(model, (x,), dynamic_shapes=(({0: _BATCH},),))}
    accelerated, plain, packed = fat(dynamic)
    sizes = {"forward": [(torch.randn(size, 64),) for size in (4, 8, 1, 3)]}
    maker.write("v2-dynamic", _planned(dynamic), packed, sizes, accelerated)
    maker.write("v1-dynamic-portable", _planned(dynamic), _v1(("portable", plain)), sizes, plain)

    program = {"forward": export(both(), (torch.ones(2), x))}
    _, _, packed = fat(program)
    # Not the payload itself: where nothing is planned, the runtime takes the memory of an input that is returned away.
    planned = payload(program, xnnpack=True, planned=True)
    several = {"forward": [(torch.ones(2), x), (torch.zeros(2), x * 2)]}
    maker.write("v2-aliases", _planned(program), packed, several, planned)

    methods = {"forward": export(model, (x,)), "encode": export(model.first, (x,))}
    accelerated, _, packed = fat(methods)
    named = {"forward": [(x,)], "encode": [(x,)]}
    maker.write("v2-two-methods", _planned(methods), packed, named, accelerated)

    only_encode = Description("encoder"), payload({"encode": methods["encode"]}, xnnpack=False)
    plain = payload(methods, xnnpack=False)
    packed = pack_v2([only_encode, (Description("portable"), plain)])
    maker.write("v2-method-missing-first", _planned(methods), packed, {"encode": [(x,)], "forward": [(x,)]}, plain)

    ones = torch.ones(4)
    program = {"forward": export(counter(), (ones,))}
    accelerated, _, packed = fat(program)
    steps = {"forward": [(ones,), (ones,), (ones * 3,)]}
    maker.write("v2-state", _planned(program), packed, steps, accelerated)


def _write_large(maker: Maker) -> None:
    """More weights than are verified by default; programs and delegates' data are in blobs."""
    x = torch.randn(1, 128)
    layers = [torch.nn.Linear(128, 128) for _ in range(40)]  # so many that what describes them is a blob, too
    program = {"forward": export(torch.nn.Sequential(*layers).eval(), (x,))}
    calls = {"forward": [(x,)]}
    accelerated, plain, packed = fat(program)
    signature = _planned(program)
    maker.write("large", signature, packed, calls, accelerated)
    container = packed.open()
    digests = [blob.digest for blob in container.manifest.blobs]
    used = [{digests[index] for index in each.blobs} for each in container.payloads]
    weights = max(used[0] & used[1], key=lambda key: len(packed.blobs[key]))
    parsed = max(used[0] - used[1], key=lambda key: len(packed.blobs[key]))
    for name, key, expected in (("weights", weights, b""), ("parsed", parsed, plain)):
        damaged = bytearray(packed.blobs[key])
        damaged[len(damaged) // 2] ^= 1
        changed = replace(packed, blobs={**packed.blobs, key: damaged})
        maker.write(f"large-{name}-damaged", signature, changed, calls, expected)


def _write_convolutions(maker: Maker) -> None:
    """Weights that are stored once for two layouts."""
    x = torch.randn(1, 3, 12, 10)
    program = {"forward": export(convolutions(), (x,))}
    accelerated, plain, packed = fat(program)
    payloads = packed.open().payloads
    assert len(payloads[0].transposes) == 3
    assert payloads[0].transposed_bytes > 10_000
    signature = _planned(program)
    maker.write("transposed", signature, packed, {"forward": [(x,), (-x,)]}, accelerated)
    whole = packed.open().manifest
    undigested = replace(whole, payloads=tuple(replace(each, parts_sha256=None) for each in whole.payloads))
    without = replace(packed, container=write_v2(undigested, bytes(packed.open().inline)))
    maker.write("transposed-no-parts-digest", signature, without, {"forward": [(x,)]}, accelerated)
    first, last = whole.payloads
    wrong = first.transposes[0]
    wrong = replace(wrong, shape=wrong.shape.swapped)
    damaged = replace(whole, payloads=(replace(first, transposes=(wrong, *first.transposes[1:])), last))
    container = write_v2(damaged, bytes(packed.open().inline))
    maker.write("transposed-damaged-first", signature, replace(packed, container=container), {"forward": [(x,)]}, plain)


def _write_halves(maker: Maker) -> None:
    """Weights that are stored once as 32-bit numbers, and are 16-bit ones in a payload."""
    x = torch.randn(4, 64)
    model, half = linear(), half_linear()
    half.load_state_dict(model.state_dict())
    program = {"forward": export(model, (x,))}
    accelerated = payload({"forward": export(half.half(), (x,))}, xnnpack=True)
    plain = payload(program, xnnpack=False)
    packed = pack_v2([_xnnpack(accelerated), (Description("portable"), plain)])
    whole = packed.open().manifest
    first, last = whole.payloads
    assert sum(first.extents[index].size for index in first.halves) == 2 * (64 * 128 + 128 * 8)
    signature = _planned(program)
    maker.write("halves", signature, packed, {"forward": [(x,), (-x,)]}, accelerated)
    undigested = replace(whole, payloads=(replace(first, parts_sha256=None), last))
    without = replace(packed, container=write_v2(undigested, bytes(packed.open().inline)))
    maker.write("halves-no-parts-digest", signature, without, {"forward": [(x,)]}, accelerated)
    extents = list(first.extents)
    place = first.halves[0]
    extents[place] = replace(extents[place], offset=extents[place].offset + 16)
    damaged = replace(whole, payloads=(replace(first, extents=tuple(extents)), last))
    container = write_v2(damaged, bytes(packed.open().inline))
    maker.write("halves-damaged-first", signature, replace(packed, container=container), {"forward": [(x,)]}, plain)


def _write_checked(maker: Maker) -> None:
    """Payloads that check themselves, also some whose check is wrong or missing."""
    x = torch.randn(4, 64)
    net = linear()
    program = {"forward": export(net, (x,))}
    accelerated, plain, _ = fat(program)
    payloads = [_xnnpack(accelerated), (Description("portable"), plain)]
    check = golden(plain, [("forward", (x,), (net(x),)), ("forward", (x + 1,), (net(x + 1),))])
    wrong = golden(plain, [("forward", (x,), (net(x) + 1,))])

    def write(name: str, expected: bytes, *checks: GoldenCheck, **blobs: bytes) -> None:
        packed = pack_v2(payloads, checks=dict(zip(("xnnpack", "portable"), checks, strict=True)))
        packed = replace(packed, blobs={key: blobs.get(key, blob) for key, blob in packed.blobs.items()})
        maker.write(name, _planned(program), packed, {"forward": [(x,), (x - 1,)]}, expected)

    write("checked", accelerated, check, check)
    write("checked-wrong-first", plain, wrong, check)
    write("checked-all-wrong", b"", wrong, wrong)
    write("checked-no-cases", b"", *[replace(check, blob=memoryview(bytes(8)))] * 2)
    write("checked-damaged", b"", check, check, **{digest_bytes(check.blob): bytes(len(check.blob))})
    other_sizes = golden(plain, [("forward", (x[:2],), (net(x[:2]),))])
    write("checked-other-sizes-first", plain, other_sizes, check)
    write("checked-other-method", accelerated, replace(wrong, blob=_renamed(wrong.blob)), check)

    ones = torch.ones(4)
    counting = {"forward": export(counter(), (ones,))}
    accelerated, plain, _ = fat(counting)
    check = golden(plain, [("forward", (ones,), (ones * 2,))], stateful=True)
    packed = pack_v2(
        [_xnnpack(accelerated), (Description("portable"), plain)], checks={"xnnpack": check, "portable": check}
    )
    maker.write("checked-state", _planned(counting), packed, {"forward": [(ones,), (ones,), (ones * 3,)]}, accelerated)


def _renamed(blob: memoryview) -> memoryview:
    """Golden cases of method `backward`, which no file has."""
    (case,) = read_cases(blob)
    return memoryview(write_cases([replace(case, method="backward")]))


_FAULTS = {
    "none": "none",
    **{f"init-{how}": f"init {how}" for how in ("throw", "throw-number", "error", "nothing", "hang")},
    **{f"execute-{how}": f"execute 1 {how}" for how in ("throw", "throw-number", "error", "nothing", "hang")},
    **{f"third-{how}": f"execute 3 {how}" for how in ("throw", "throw-number", "error", "nothing")},
    "execute-abort": "execute 1 abort",
    **{f"answer-{what}": f"answer {what}" for what in (
        *("zeros", "nan", "infinity", "shifted", "last", "sign", "noise", "echo", "half", "part", "resized", "slow"),
        *("later", "first", "second", "alternating", "stale", "cached"),
    )},
}  # fmt: skip


def _write_faulty(maker: Maker) -> None:
    """(x + x) + x, whose payloads are one with a delegate for each sum, the second of which fails, and portable.

    Those called checked-NAME check themselves.
    """
    shapes = ({0: Dim("numbers", min=2, max=8)},)
    net = FunctionOfLayers(lambda _, x: (x + x) + x)
    program = {"forward": export(net, (torch.ones(4),), dynamic_shapes=(shapes,))}
    plain, signature = payload(program, xnnpack=False), _planned(program)
    inputs = torch.tensor([1.37, -2.11, 0.1, 3.29])
    calls = [("forward", (x,), (net(x),)) for x in (inputs, inputs + 1)]

    portable = Description("portable"), plain

    def write(name: str, backend: str, faulty: bytes, *others: tuple[Description, bytes]) -> None:
        payloads = [(Description("faulty", (backend,)), faulty), *others]
        maker.write(name, signature, pack_v2(payloads, fallback=False), {})
        check = golden(plain, calls if name.endswith("cached") else calls[:1])  # which one case cannot find
        checks = {description.name: check for description, _ in payloads}
        maker.write(f"checked-{name}", signature, pack_v2(payloads, fallback=False, checks=checks), {})

    for name, fault in _FAULTS.items():
        lowered = to_edge_transform_and_lower(
            copy.deepcopy(program), partitioner=[Faults(["none", fault])], compile_config=_EDGE
        )
        faulty = lowered.to_executorch(ExecutorchBackendConfig(memory_planning_pass=_UNPLANNED)).buffer
        assert b"FaultyBackend" in faulty
        write(name, "FaultyBackend", faulty, portable)
        if name in ("init-throw", "answer-zeros"):
            write(f"alone-{name}", "FaultyBackend", faulty)
        for other in ("UnsureBackend", "IdlingBackend") if name == "none" else ():
            write(other, other, faulty.replace(b"FaultyBackend", other.encode()), portable)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
