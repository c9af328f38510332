"""Preprocessing of partitions by their backends, in one call for all methods where a backend implements that."""

from __future__ import annotations

import gc
import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping

from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from torch.export import ExportedProgram

from ...artifacts.local_store import LocalStore
from ...errors import TargetError
from ..codecs.delegates import DelegateResult, keep_named_data
from ..upstream.exir import declared_bounds
from .exir import split_compile_specs
from .graphs import lowered_modules

Partition = tuple[int, ExportedProgram, list]  # type: ignore[type-arg]  # position, program, executorch's compile specs

Made = tuple[str, int, list, PreprocessResult]  # type: ignore[type-arg]  # method, position, compile specs, result

_COLLECT_AFTER = 128 << 20  # bytes of weights


@declared_bounds()
def preprocess_all(programs: Mapping[str, ExportedProgram], store: LocalStore) -> dict[str, tuple[DelegateResult, ...]]:
    """Delegates by method, in the order of its partitions; TargetError where a backend loses some, or is unknown."""
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
        for method, position, specs, result in preprocess(details, methods):
            results[method][position] = _delegate(backend, specs, result, store)
    return {method: tuple(done[position] for position in sorted(done)) for method, done in results.items()}


def _one_by_one(details: type[BackendDetails], methods: Mapping[str, list[Partition]]) -> Iterator[Made]:
    """As the default, but frees each partition's copy and result before the next partition begins."""
    copied = 0
    for method, parts in methods.items():
        for position, program, specs in parts:
            copy = details.copy_exported_program_for_preprocess(program, specs)
            yield method, position, specs, details.preprocess(copy, specs)
            copied += sum(tensor.untyped_storage().nbytes() for tensor in program.state_dict.values())
            del copy
            if copied > _COLLECT_AFTER:  # graphs refer to themselves, so only the collector frees their copies
                copied = 0
                gc.collect()


def _in_one_call(details: type[BackendDetails], methods: Mapping[str, list[Partition]]) -> Iterator[Made]:
    made: Mapping[str, list[PreprocessResult]] = details.preprocess_multimethod(
        {
            method: [details.copy_exported_program_for_preprocess(p, s) for _, p, s in parts]
            for method, parts in methods.items()
        },
        {method: [specs for _, _, specs in parts] for method, parts in methods.items()},
    )
    for method, parts in methods.items():
        results = made.get(method, [])
        if len(results) != len(parts):
            raise TargetError(
                f"backend {details.__name__!r} gave {len(results)} results for the {len(parts)} partitions of method "
                f"{method!r}; its preprocess_multimethod must give one for each"
            )
        for (position, _, specs), result in zip(parts, results, strict=True):
            yield method, position, specs, result


def find_backend(name: str) -> type[BackendDetails]:
    """The class of a backend; raises TargetError unless there is exactly one of that name.

    Exir looks backends up by bare class name (backend_api.py); two of one name would mis-lower silently.
    """
    found: list[type[BackendDetails]] = [cls for cls in BackendDetails.__subclasses__() if cls.__name__ == name]
    if len(found) != 1:
        where = ", ".join(cls.__module__ for cls in found) or "none"
        raise TargetError(f"the partitioner names backend {name!r}; classes of that name: {where}; there must be one")
    return found[0]


def _delegate(
    backend: str,
    specs: list,  # type: ignore[type-arg]  # executorch's CompileSpec
    result: PreprocessResult,
    store: LocalStore,
) -> DelegateResult:
    named = result.data_store_output
    return DelegateResult(
        backend_id=backend,
        processed_bytes=result.processed_bytes,
        compile_specs=tuple((spec.key, spec.value) for spec in specs),
        named_data=None if named is None else keep_named_data(named, store),
        debug_handle_map=result.debug_handle_map,
        delegate_info_meta=result._delegate_info_meta,  # noqa: SLF001 - exir's own name for a public hand-over
    )
