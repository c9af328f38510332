"""The backend: a container of payloads for each partition."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import final

from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from ..artifacts.nfat.pack import pack_v2
from ..artifacts.pte.contents import Method
from ..errors import PteforgeError
from ..tasks.stages.named_blobs import named_blobs
from .kernels import missing_kernels
from .payloads import Payload, make_fallback, make_payload
from .settings import Resolved, from_compile_specs, resolve
from .signature import signature_of

_METHOD = "forward"

_log = logging.getLogger(__name__)


@final
class NfatBackend(BackendDetails):  # type: ignore[misc]  # executorch is untyped here
    """Lowers each partition to its specializations and the fallback, packed into one NFAT container of version 2.

    ExecuTorch finds it by the name of the class, which is the id of the delegate on the device.
    """

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """A container for one partition of the method `forward`.

        Args:
            edge_program: the partition; it is not changed.
            compile_specs: as `NativePartitioner` makes them.

        Raises:
            InputError: the compile specs are not those; as TargetError where a specialization is unknown, which lists
                what there is.
            PteforgeError: a specialization cannot be lowered, or has another signature than the partition.
        """
        return _preprocess(edge_program, resolve(from_compile_specs(compile_specs)), _METHOD)

    @classmethod
    def preprocess_multimethod(
        cls,
        edge_programs: Mapping[str, Sequence[ExportedProgram]],
        compile_specs: Mapping[str, Sequence[list[CompileSpec]]],
    ) -> dict[str, list[PreprocessResult]]:
        """As `preprocess`, for partitions of any methods: a delegate looks for the payload's method of its own name."""
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
        """No copy, least of all of weights: `preprocess` does not touch the program."""
        del compile_specs
        return edge_program


def _preprocess(partition: ExportedProgram, specializations: Sequence[Resolved], method: str) -> PreprocessResult:
    signature = signature_of(partition, method)
    fallback = make_fallback(partition, signature)
    if missing := missing_kernels(fallback[1]):
        _log.warning(
            "the fallback of a partition of method %s calls %s, for which ExecuTorch brings no kernels: where no "
            "specialization can do without, the file loads only if your runtime registers some",
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
        name = resolved.specialization.payload
        try:
            payload = make_payload(resolved, partition, signature)
        except Exception as error:
            where = f"specialization {name} of a partition of method {signature.name}"
            if resolved.specialization.required:
                raise PteforgeError(
                    f"{where} cannot be made: {_reasons(error)}; "
                    "give it `required=False` to leave it out where this happens"
                ) from error
            _log.warning("%s is left out: %s", where, _reasons(error))
            continue
        if payload is not None:
            yield payload


def _reasons(error: BaseException) -> str:
    """Its message and that of what it came from: exir's pass manager says which pass failed, and not why."""
    return f"{error}: {_reasons(error.__cause__)}" if error.__cause__ else str(error)
