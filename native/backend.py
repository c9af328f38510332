"""The backend: lowers each partition to a container of payloads."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import final

from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from torch.export import ExportedProgram

from ..configs.recipe import CompileOptions
from ..errors import PteforgeError, TargetError
from ..formats.nfat.contents import Description
from ..formats.nfat.pack import pack_v2
from ..formats.pte.contents import Method
from ..formats.pte.reader import read_pte
from ..runtime.signature import signature_mismatch
from ..tasks.backend import kernels  # noqa: F401 - the forms of quantized operators that files name
from ..tasks.backend.emission import backend_config
from ..tasks.backend.exir import KeptOperators, WrappedPartitioner, decompose_left_affine
from ..tasks.backend.file_programs import named_blobs
from ..tasks.programs.graphs import check_no_affine, graph_modules
from ..tasks.programs.payload import check_file
from ..tasks.targets.base import Target
from ..tasks.upstream.torch_lowering import no_pending_symbols
from .aten import signature_of, to_aten
from .settings import FALLBACK, Resolved, from_compile_specs, resolve
from .support import is_affine, missing_kernels

Payload = tuple[Description, bytes]

# The delegate binds the memory of the fat program's inputs and outputs, so payloads allocate none for them.
_OPTIONS = CompileOptions(alloc_graph_input=False, alloc_graph_output=False)

_log = logging.getLogger(__name__)


@final
class NfatBackend(BackendDetails):  # type: ignore[misc]  # executorch is untyped here
    """Lowers partitions to NFAT containers of specializations and the fallback; its name is the delegate's id."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """A container for one partition of the method `forward`.

        Raises InputError for other compile specs than NativePartitioner's and unknown specializations, and
        PteforgeError if one cannot be lowered, needs a backend that its target does not name, or has another signature.
        """
        return _preprocess(edge_program, resolve(from_compile_specs(compile_specs)), "forward")

    @classmethod
    def preprocess_multimethod(
        cls,
        edge_programs: Mapping[str, Sequence[ExportedProgram]],
        compile_specs: Mapping[str, Sequence[list[CompileSpec]]],
    ) -> dict[str, list[PreprocessResult]]:
        """Does what `preprocess` does, for any methods; a payload's method has the name of its partition's."""
        return {
            method: [
                _preprocess(partition, resolve(from_compile_specs(specs)), method)
                for partition, specs in zip(partitions, compile_specs[method], strict=True)
            ]
            for method, partitions in edge_programs.items()
        }

    @classmethod
    def copy_exported_program_for_preprocess(
        cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> ExportedProgram:
        """Returns the program itself: `preprocess` does not change it."""
        del compile_specs
        return edge_program


def _preprocess(partition: ExportedProgram, specializations: Sequence[Resolved], method: str) -> PreprocessResult:
    signature = signature_of(partition, method)
    fallback = _checked(FALLBACK, (), signature, _lower(partition, signature.name, None))
    if missing := missing_kernels(fallback[1]):
        _log.warning(
            "the fallback of a partition of method %s calls %s, for which ExecuTorch has no kernels: where it has to "
            "run, the file loads only if your runtime registers some",
            method,
            ", ".join(missing),
        )
    payloads = [*_specialized(partition, specializations, signature), fallback]
    packed = pack_v2(payloads)
    return PreprocessResult(processed_bytes=packed.container, data_store_output=named_blobs(packed))


def _specialized(
    partition: ExportedProgram, specializations: Sequence[Resolved], signature: Method
) -> Iterator[Payload]:
    for resolved in specializations:
        name, target = resolved.specialization.payload, resolved.target
        try:
            payload = _checked(name, target.backends, signature, _lower(partition, signature.name, target))
        except Exception as error:
            where = f"specialization {name} of a partition of method {signature.name}"
            if resolved.specialization.required:
                raise PteforgeError(
                    f"{where} cannot be made: {_reasons(error)}; give it `required=False` to leave it out in this case"
                ) from error
            _log.warning("%s is left out: %s", where, _reasons(error))
            continue
        if payload[0].backends:  # else the target claimed nothing
            yield payload


def _reasons(error: BaseException) -> str:
    """The messages of an error and its causes: exir's pass manager says which pass failed, its cause says why."""
    return f"{error}: {_reasons(error.__cause__)}" if error.__cause__ else str(error)


def _lower(partition: ExportedProgram, method: str, target: Target | None) -> bytes:
    program = to_aten(partition)
    partitioners = wrap_partitioners(target, program) if target else []
    passes = list(target.edge_passes()) if target else []
    if (target is None or target.leaves_affine) and is_affine(program):
        program = decompose_left_affine(program, partitioners)
    with no_pending_symbols(program):
        lowered = to_edge_transform_and_lower(
            {method: program},
            transform_passes=passes or None,  # an empty list would cost one more trace
            partitioner={method: partitioners},
            compile_config=EdgeCompileConfig(_check_ir_validity=False),  # the partition was checked with its program
        )
        check_no_affine(method, lowered.exported_program(method))
        content: bytes = lowered.to_executorch(backend_config(_OPTIONS, [method])).buffer
    return content


def _checked(name: str, backends: Sequence[str], signature: Method, content: bytes) -> Payload:
    pte = read_pte(content)
    check_file(pte, methods=[signature.name], backends=backends, what=f"payload {name!r}")
    (method,) = pte.methods
    if problem := signature_mismatch(signature, method):
        raise PteforgeError(
            f"payload {name!r} does not fit the partition of method {signature.name!r}: {problem}; "
            "its target must not change inputs and outputs"
        )
    return Description(name, pte.backends, (signature.name,), version("executorch").partition("+")[0]), content


def wrap_partitioners(target: Target, program: ExportedProgram) -> list[Partitioner]:
    """The target's partitioners, which keep no operators whole in branches; the first one may raise TargetError."""
    partitioners: list[Partitioner] = list(target.partitioners())
    if partitioners:
        partitioners[0] = _Refusing(partitioners[0], target)
    if len(list(graph_modules(program.graph_module))) == 1:
        return partitioners
    return [
        partitioner if partitioner.ops_to_not_decompose(program)[1] is not None else _OutsideBranches(partitioner)
        for partitioner in partitioners
    ]


class _Refusing(WrappedPartitioner):
    """Raises TargetError for programs that a target refuses."""

    def __init__(self, partitioner: Partitioner, target: Target) -> None:
        super().__init__(partitioner)
        self._target = target

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        if problem := self._target.refuses(exported_program):
            raise TargetError(problem)
        return super().partition(exported_program)


class _OutsideBranches(WrappedPartitioner):
    """Lets operators in branches be decomposed."""

    def ops_to_not_decompose(self, ep: ExportedProgram) -> KeptOperators:
        operators, _ = super().ops_to_not_decompose(ep)
        return operators, lambda node: node.graph is ep.graph
