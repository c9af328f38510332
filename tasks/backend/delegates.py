"""Delegates: made of partitions by their backends, and linked into programs; and weights in a file of their own."""

from __future__ import annotations

import gc
import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

import torch
from executorch.exir import ExecutorchProgramManager
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx import Node

from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactRef
from ...errors import SourceError, TargetError
from ...formats.pte.reader import map_file
from ..engine.stage import Workspace
from ..programs.delegates import DelegateResult, keep_named_data, stored_buffer
from ..programs.graphs import SHARED, lowered_modules
from ..programs.payload import save_data_file
from ..upstream.compat import DataPayload, NamedDataStoreOutput
from ..upstream.exir import declared_bounds
from ..upstream.exir_emission import named_data_stored
from .exir import split_compile_specs

Partition = tuple[int, ExportedProgram, list[CompileSpec]]  # position, program, compile specs
Preprocessed = tuple[str, int, list[CompileSpec], PreprocessResult]  # method, position, compile specs, result

_COLLECT_AFTER = 128 << 20  # bytes of weights


@declared_bounds()
def preprocess_all(programs: Mapping[str, ExportedProgram], store: LocalStore) -> dict[str, tuple[DelegateResult, ...]]:
    """Delegates by method, in the order of its partitions; TargetError if a backend is unknown, or loses some."""
    by_backend: dict[str, dict[str, list[Partition]]] = defaultdict(lambda: defaultdict(list))
    for method, program in programs.items():
        for position, (_, _, lowered) in enumerate(lowered_modules(program)):
            backend, specs = split_compile_specs(lowered.compile_specs)
            by_backend[backend][method].append((position, lowered.original_module, specs))
    results: dict[str, dict[int, DelegateResult]] = {method: {} for method in programs}
    for backend, methods in by_backend.items():
        details = find_backend(backend)
        own, default = (inspect.getattr_static(kind, "preprocess_multimethod") for kind in (details, BackendDetails))
        preprocess = _one_by_one if own is default else _in_one_call  # as the default goes through partitions
        with named_data_stored(partial(stored_buffer, store=store)):
            for method, position, specs, result in preprocess(details, methods):
                results[method][position] = _delegate(backend, specs, result, store)
    return {method: tuple(done[position] for position in sorted(done)) for method, done in results.items()}


def _one_by_one(details: type[BackendDetails], methods: Mapping[str, list[Partition]]) -> Iterator[Preprocessed]:
    """Works like the default, but frees each partition's copy and result before the next partition begins."""
    copied = 0
    for method, parts in methods.items():
        for position, program, specs in parts:
            copy = _copy(details, program, specs)
            yield method, position, specs, details.preprocess(copy, specs)
            copied += sum(tensor.untyped_storage().nbytes() for tensor in program.state_dict.values())
            del copy
            if copied > _COLLECT_AFTER:  # graphs refer to themselves, so only the collector frees their copies
                copied = 0
                gc.collect()


_READERS = frozenset({"VulkanBackend", "XnnpackBackend"})
"""Backends that put new weights in the place of those they change, and write to none."""


def _copy(details: type[BackendDetails], program: ExportedProgram, specs: list[CompileSpec]) -> ExportedProgram:
    """A partition for its backend to change; weights that the backend only reads are not copied from their files.

    Upstream's copy has parameters without the rest of their storage, which some backends would also write.
    """
    if details.__name__ not in _READERS:
        return details.copy_exported_program_for_preprocess(program, specs)
    weights = (*program.state_dict.values(), *program.constants.values())
    return deepcopy(program, {id(value): value for value in weights if _is_whole(value)})


def _is_whole(value: object) -> bool:
    """Whether a tensor is all of its storage, in order."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return bool(value.is_contiguous() and value.nbytes == value.untyped_storage().nbytes())


def _in_one_call(details: type[BackendDetails], methods: Mapping[str, list[Partition]]) -> Iterator[Preprocessed]:
    by_method: Mapping[str, list[PreprocessResult]] = details.preprocess_multimethod(
        {method: [_copy(details, program, specs) for _, program, specs in parts] for method, parts in methods.items()},
        {method: [specs for _, _, specs in parts] for method, parts in methods.items()},
    )
    for method, parts in methods.items():
        results = by_method.get(method, [])
        if len(results) != len(parts):
            raise TargetError(
                f"backend {details.__name__!r} gave {len(results)} results for the {len(parts)} partitions of method "
                f"{method!r}; its preprocess_multimethod must give one for each"
            )
        for (position, _, specs), result in zip(parts, results, strict=True):
            yield method, position, specs, result


def find_backend(name: str) -> type[BackendDetails]:
    """The only class of this name; TargetError if there are two, of which exir would take one silently."""
    classes: list[type[BackendDetails]] = [cls for cls in BackendDetails.__subclasses__() if cls.__name__ == name]
    if len(classes) != 1:
        where = ", ".join(cls.__module__ for cls in classes) or "none"
        raise TargetError(f"the partitioner names backend {name!r}; classes of that name: {where}; there must be one")
    return classes[0]


def _delegate(backend: str, specs: list[CompileSpec], result: PreprocessResult, store: LocalStore) -> DelegateResult:
    named = result.data_store_output
    return DelegateResult(
        backend_id=backend,
        processed_bytes=result.processed_bytes,
        compile_specs=tuple((spec.key, spec.value) for spec in specs),
        named_data=None if named is None else keep_named_data(named, store),
        debug_handle_map=result.debug_handle_map,
        delegate_info_meta=result._delegate_info_meta,  # noqa: SLF001 - exir's own name for a public hand-over
    )


TAG = "_default_external_constant"
"""The name of the file of all weights in exir.passes.external_constants_pass; delegates' data goes to it too."""

_INSIDE = "pteforge_inside"
"""Marks placeholders of weights that stay in the `.pte`."""

_WEIGHTS = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}


def file_of(placeholder: Node) -> str | None:
    """The file of a constant, as with `external_constants=True` (exir/passes/external_constants_pass.py).

    State that methods share stays in the `.pte`, even if a method only reads it: loading that method would reset it.
    """
    return None if placeholder.meta.get(SHARED) or placeholder.meta.get(_INSIDE) else TAG


def keep_inside(programs: Mapping[str, ExportedProgram], patterns: Sequence[str]) -> None:
    """Marks weights whose names match no pattern; TargetError for a pattern without weights outside delegates."""
    unused = {*patterns}
    for program in programs.values():
        names = {spec.arg.name: spec.target for spec, _ in _weights(program)}
        for node in program.graph.find_nodes(op="placeholder"):
            matching = {pattern for pattern in patterns if fnmatchcase(names.get(node.name, ""), pattern)}
            node.meta[_INSIDE] = not matching
            unused -= matching
    if unused:
        raise TargetError(
            f"output.external_data: no weight outside of delegates is called {min(unused)}; `pteforge inspect` lists "
            "the weights of a file that was made with `external_data: true`"
        )


def group_named_data(output: NamedDataStoreOutput | None, *, external: bool) -> NamedDataStoreOutput | None:
    """A delegate's named data, all in the `.pte` or all in the file of weights: at run time, it finds both by key."""
    if output is None:
        return None
    entries = dict(output.pte_data)
    for others in output.external_data.values():
        entries |= others
    external_data = {TAG: entries} if external and entries else {}
    return replace(output, pte_data={} if external else entries, external_data=external_data)


def rename_clashing_weights(programs: Mapping[str, ExportedProgram]) -> None:
    """Renames weights that have one name but differ between methods: in a `.ptd`, a name is a key.

    The emitter keeps only the last method's (`_save_to_external_constant_map`, exir/emit/_emitter.py, 1.5.1).
    """
    taken = {spec.target for program in programs.values() for spec in program.graph_signature.input_specs}
    for method, _, name in list(_clashes(programs)):
        new = f"{method}.{name}"
        while new in taken:
            new = f"{method}.{new}"
        taken.add(new)
        program = programs[method]
        for spec in program.graph_signature.input_specs:
            if spec.kind in _WEIGHTS and spec.target == name:
                spec.target = new
        for values in (program.state_dict, program.constants):
            if name in values:
                values[new] = values.pop(name)


def save_data(emitted: ExecutorchProgramManager, work: Workspace) -> ArtifactRef:
    """Stores external weights as one file (payload/ptd), maybe empty; TargetError for one name with two values."""
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
            owner, other = owners.setdefault(spec.target, (method, value))
            layouts = {(tensor.dtype, tensor.shape, tensor.stride()) for tensor in (value, other)}
            same = len(layouts) == 1 and (value.data_ptr() == other.data_ptr() or torch.equal(value, other))
            if owner != method and not same:
                yield method, owner, spec.target


def _weights(program: ExportedProgram) -> Iterator[tuple[InputSpec, torch.Tensor]]:
    """The weights of a program that are external: neither state nor constants written in code.

    exir.passes.external_constants_pass knows the constants by the names that torch gives them.
    """
    changed = set(program.graph_signature.buffers_to_mutate.values())
    for spec in program.graph_signature.input_specs:
        name = spec.target
        if spec.kind in _WEIGHTS and name not in changed and "_lifted_tensor" not in spec.arg.name:
            yield spec, program.state_dict[name] if name in program.state_dict else program.constants[name]


def check_outputs(method: str, program: ExportedProgram) -> None:
    """Raises SourceError for an output that the emitter does not take (exir/emit/_emitter.py, `_emit_spec`)."""
    for position, spec in enumerate(program.graph_signature.output_specs):
        value = getattr(spec.arg, "value", None)
        if value is not None and not isinstance(value, bool | int | float):
            raise SourceError(
                f"output {position} of method {method!r} is {value!r}, a {type(value).__name__}: files return tensors, "
                "numbers, bool and None; leave it out, or make it a constant method"
            )


def link_delegates(program: ExportedProgram, delegates: Sequence[DelegateResult], *, external: bool) -> None:
    """Replaces partitions by their delegates, in order; see `group_named_data`."""
    for (owner, name, unlinked), delegate in zip(list(lowered_modules(program)), delegates, strict=True):
        lowered = LoweredBackendModule(
            edge_program=unlinked.original_module,
            backend_id=delegate.backend_id,
            processed_bytes=delegate.processed_bytes,
            compile_specs=[CompileSpec(key, value) for key, value in delegate.compile_specs],
            named_data_store_output=group_named_data(delegate.named_data, external=external),
        )
        lowered.meta = {"debug_handle_map": delegate.debug_handle_map}
        if delegate.delegate_info_meta is not None:
            lowered.meta["_delegate_info_meta"] = delegate.delegate_info_meta
        setattr(owner, name, lowered)
