"""preprocess: a backend turns all partitions of all methods into delegates, in one call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from torch.export import ExportedProgram

from ...artifacts.programs.codec import load_program
from ...artifacts.programs.delegates import DelegateResult, Delegates, save_delegates
from ...artifacts.ref import ArtifactRef
from ...errors import TargetError
from ..params import PreprocessParams
from ..stage import Workspace
from ..targets.find import find_target
from .exir import split_compile_specs
from .lowered import lowered_modules

Partition = tuple[int, ExportedProgram, list]  # type: ignore[type-arg]  # position, program, executorch's compile specs


def run(inputs: Mapping[str, ArtifactRef], params: PreprocessParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `program/<method>` (program/partitioned) of every method that has any, gives `delegates`."""
    for target in params.targets:
        find_target(target.name, target.options).partitioners()  # its imports register the backends
    programs = {role.partition("/")[2]: load_program(ref, work.store) for role, ref in sorted(inputs.items())}
    delegates = Delegates(_preprocess_all(programs))
    return {"delegates": save_delegates(delegates, kind="delegates", store=work.store)}


def _preprocess_all(programs: Mapping[str, ExportedProgram]) -> dict[str, tuple[DelegateResult, ...]]:
    by_backend: dict[str, dict[str, list[Partition]]] = defaultdict(lambda: defaultdict(list))
    for method, program in programs.items():
        for position, (_, _, lowered) in enumerate(lowered_modules(program)):
            backend, specs = split_compile_specs(lowered.compile_specs)
            by_backend[backend][method].append((position, lowered.original_module, specs))
    results: dict[str, dict[int, DelegateResult]] = {method: {} for method in programs}
    for backend, methods in by_backend.items():
        for method, done in _preprocess_backend(backend, methods).items():
            results[method].update(done)
    return {method: tuple(done[position] for position in sorted(done)) for method, done in results.items()}


def _preprocess_backend(backend: str, methods: Mapping[str, list[Partition]]) -> dict[str, dict[int, DelegateResult]]:
    details = find_backend(backend)
    made: Mapping[str, list[PreprocessResult]] = details.preprocess_multimethod(
        {
            method: [details.copy_exported_program_for_preprocess(p, s) for _, p, s in parts]
            for method, parts in methods.items()
        },
        {method: [specs for _, _, specs in parts] for method, parts in methods.items()},
    )
    return {
        method: {
            position: _delegate(backend, specs, result)
            for (position, _, specs), result in zip(parts, made[method], strict=True)
        }
        for method, parts in methods.items()
    }


def find_backend(name: str) -> type[BackendDetails]:
    """The class of a backend; raises TargetError unless there is exactly one of that name.

    Exir looks backends up by bare class name (backend_api.py); two of one name would mis-lower silently.
    """
    found: list[type[BackendDetails]] = [cls for cls in BackendDetails.__subclasses__() if cls.__name__ == name]
    if len(found) != 1:
        where = ", ".join(cls.__module__ for cls in found) or "none"
        raise TargetError(f"the partitioner names backend {name!r}; classes of that name: {where}; there must be one")
    return found[0]


def _delegate(backend: str, specs: list, result: PreprocessResult) -> DelegateResult:  # type: ignore[type-arg]
    return DelegateResult(
        backend_id=backend,
        processed_bytes=result.processed_bytes,
        compile_specs=tuple((spec.key, spec.value) for spec in specs),
        named_data=result.data_store_output,
        debug_handle_map=result.debug_handle_map,
        delegate_info_meta=result._delegate_info_meta,  # noqa: SLF001 - exir's own name for a public hand-over
    )
