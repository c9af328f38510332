"""Weights beside the file: what of a payload goes to its `.ptd`, and under which names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from executorch.exir import ExecutorchProgramManager
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize.data_serializer import DataPayload
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx import Node

from ...artifacts.nfat.named_data import map_file
from ...artifacts.nfat.stored import save_data_file
from ...artifacts.ref import ArtifactRef
from ...errors import TargetError
from ..stage import Workspace
from .state import SHARED

TAG = "_default_external_constant"
"""What exir.passes.external_constants_pass calls the file of all weights; delegates' data goes to the same."""

_WEIGHTS = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}


def file_of(placeholder: Node) -> str | None:
    """Which file has a constant: what `external_constants=True` says (exir/passes/external_constants_pass.py).

    State that methods share stays inside also where a method only reads it: else loading that method would set it back.
    """
    return None if placeholder.meta.get(SHARED) else TAG


def place_named_data(output: NamedDataStoreOutput | None, *, outside: bool) -> NamedDataStoreOutput | None:
    """A delegate's named data where the recipe wants it, wherever its backend has put it.

    Nothing changes for the delegate: at run time it finds data by key, in the `.pte` or beside it.
    """
    if output is None:
        return None
    entries = dict(output.pte_data)
    for others in output.external_data.values():
        entries |= others
    external = {TAG: entries} if outside and entries else {}
    return replace(output, pte_data={} if outside else entries, external_data=external)


def tell_weights_apart(programs: Mapping[str, ExportedProgram]) -> None:
    """Gives weights of one name names of their own where methods have different ones: in a `.ptd` a name is a key.

    The emitter writes the last method's over those of the others (`_save_to_external_constant_map` of
    exir/emit/_emitter.py in executorch 1.5.1).
    """
    taken = {spec.target for program in programs.values() for spec in program.graph_signature.input_specs}
    for method, _, name in list(_clashes(programs)):
        new = f"{method}.{name}"
        while new in taken:
            new = f"{method}.{new}"
        taken.add(new)
        _rename(programs[method], name, new)


def save_data(emitted: ExecutorchProgramManager, work: Workspace) -> ArtifactRef:
    """Stores what a payload keeps outside, as one file (payload/ptd): an empty one where it has no weights.

    Raises:
        TargetError: a pass of `to_executorch` has made different constants of one name for different methods.
    """
    clash = next(_clashes({method: emitted.exported_program(method) for method in sorted(emitted.methods)}), None)
    if clash:
        method, owner, name = clash
        raise TargetError(
            f"the methods {owner!r} and {method!r} have different constants that are both called {name!r}, so that a "
            ".ptd file cannot hold them; leave compile.do_quant_fusion_and_const_prop or output.external_data out"
        )
    folder = work.scratch / "data"
    folder.mkdir()
    path = folder / f"{TAG}.ptd"
    if emitted._tensor_data:  # noqa: SLF001 - `write_tensor_data_to_file` asserts that there is any
        emitted.write_tensor_data_to_file(folder)
    else:
        path.write_bytes(bytes(FlatTensorSerializer().serialize(DataPayload([], {}))))
    return save_data_file(map_file(path), work.store)


def _clashes(programs: Mapping[str, ExportedProgram]) -> Iterator[tuple[str, str, str]]:
    """Weights that differ from those of the same name of an earlier method: method, the earlier one, name."""
    owners: dict[str, tuple[str, torch.Tensor]] = {}
    for method, program in programs.items():
        for spec, value in _weights(program):
            owner, theirs = owners.setdefault(spec.target, (method, value))
            if owner != method and not _same(value, theirs):
                yield method, owner, spec.target


def _weights(program: ExportedProgram) -> Iterator[tuple[InputSpec, torch.Tensor]]:
    """The inputs of a program that go outside: no state, and none of the constants that are written in code.

    Those have names of torch's, by which exir.passes.external_constants_pass knows them.
    """
    changed = set(program.graph_signature.buffers_to_mutate.values())
    for spec in program.graph_signature.input_specs:
        name = spec.target
        if spec.kind in _WEIGHTS and name not in changed and "_lifted_tensor" not in spec.arg.name:
            yield spec, program.state_dict[name] if name in program.state_dict else program.constants[name]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.dtype, one.shape, one.stride()) != (other.dtype, other.shape, other.stride()):
        return False
    return one.data_ptr() == other.data_ptr() or bool(torch.equal(one, other))


def _rename(program: ExportedProgram, name: str, new: str) -> None:
    for spec in program.graph_signature.input_specs:
        if spec.kind in _WEIGHTS and spec.target == name:
            spec.target = new
    for values in (program.state_dict, program.constants):
        if name in values:
            values[new] = values.pop(name)
