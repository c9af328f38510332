"""What `edge` and `partition` do to a program, by private parts of executorch.exir 1.5.1, each behind a function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from executorch.exir import EdgeCompileConfig
from executorch.exir.backend.backend_api import MethodProgramsPartitionerSpec, to_backend
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.pass_base import ExportedProgramPassBase
from executorch.exir.pass_manager import ExportedProgramPassManager, PassType
from executorch.exir.verification.verifier import EXIREdgeDialectVerifier
from torch.export import ExportedProgram
from torch.fx import Node

from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactRef
from ...errors import StoreError, TargetError, first_line
from ..programs.binding import REFUSED, is_graph
from ..programs.graphs import affine_calls, decompose_affine
from ..programs.program import load_graph, load_program, save_graph, save_program
from ..targets import Target
from ..upstream.absent_weights import WeightRead, no_weight_reads
from ..upstream.compat import delete_constant_placeholder, edge_manager_module, get_fake_program
from ..upstream.exir import declared_bounds, exclude_from_partitions, no_idle_decompositions, take_numbers_as_tensors

_METHOD = "forward"  # programs are handled one by one; the name only labels messages of exir


@declared_bounds()
def to_edge_program(
    program: ExportedProgram,
    partitioners: Sequence[Partitioner],
    config: EdgeCompileConfig,
    passes: Sequence[PassType | ExportedProgramPassBase] = (),
) -> ExportedProgram:
    """The first half of `to_edge_transform_and_lower`: decomposes what partitioners do not keep; goes to edge dialect.

    Relies on `_gen_edge_manager_for_partitioners` (exir/program/_program.py).
    """
    take_numbers_as_tensors(program)
    with no_idle_decompositions():
        manager = edge_manager_module._gen_edge_manager_for_partitioners(  # noqa: SLF001 - see the module's docstring
            {_METHOD: [_Keeping(own, partitioners[after:]) for after, own in enumerate(partitioners, start=1)]},
            {_METHOD: program},
            config,
            None,
        )
    if passes:
        manager = manager.transform(ExportedProgramPassManager(list(passes)))
    edge: ExportedProgram = manager.exported_program(_METHOD)
    return edge


def rewritten(edge: ExportedProgram, target: Target) -> ExportedProgram:
    """An edge program with the target's own operators; raises TargetError where its passes fail.

    Weights that nothing uses any more are removed: its passes have made others of them, and files would have both.
    """
    try:
        program = target.after_edge(edge)
        signature = program.graph_signature
        weights = {*signature.inputs_to_parameters, *signature.inputs_to_lifted_tensor_constants}
        weights |= {
            name for name, of in signature.inputs_to_buffers.items() if of not in signature.buffers_to_mutate.values()
        }
        for node in list(program.graph.nodes):
            if node.name in weights and not node.users:
                delete_constant_placeholder(program, node)
        program.graph_module.recompile()
        return program  # noqa: TRY300 - all of it may fail
    except (MemoryError, OSError, TargetError):
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__:  # exir's pass managers name their passes
            cause = cause.__cause__
        raise TargetError(
            f"the passes of target {target.name!r} fail: {type(cause).__name__}: {first_line(cause)}; leave the layer "
            "that they cannot take in floating point, with `quantize: {exclude: [...]}`"
        ) from error


def decompose_left_affine(program: ExportedProgram, partitioners: Sequence[Partitioner]) -> ExportedProgram:
    """Decomposes torchao's affine quantization where no partitioner takes it.

    What partitioners take shows only in the edge dialect, which has torchao's calls in the order of the ATen program.
    """
    kept: set[Node] = set()
    if partitioners and (calls := affine_calls(program)):
        edge = to_edge_program(program, partitioners, EdgeCompileConfig(_check_ir_validity=False))
        taken: set[str] = set()
        for partitioner in partitioners:
            tagged = partitioner(get_fake_program(edge)).tagged_exported_program
            taken |= {node.name for node in affine_calls(tagged) if node.meta.get("delegation_tag")}
        lowered = affine_calls(edge)
        if [node.target for node in calls] == [node.target._op for node in lowered]:  # noqa: SLF001 - the ATen operator
            kept = {node for node, found in zip(calls, lowered, strict=True) if found.name in taken}
        if len(kept) == len(calls):
            return program
    return decompose_affine(program, kept)


KeptOperators = tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]  # noqa: SLF001 - has no public name
"""Operators to keep whole, and a function that tells which of their calls."""


class WrappedPartitioner(Partitioner):  # type: ignore[misc]  # executorch is untyped here
    """Does the same as another partitioner; subclasses override the rest."""

    def __init__(self, partitioner: Partitioner) -> None:
        super().__init__()
        self._partitioner = partitioner

    def ops_to_not_decompose(self, ep: ExportedProgram) -> KeptOperators:
        kept: KeptOperators = self._partitioner.ops_to_not_decompose(ep)
        return kept

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        return self._partitioner.transform_for_pre_decomposition(exported_program)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        return self._partitioner(exported_program)


class _Keeping(WrappedPartitioner):
    """A partitioner that also keeps whole what those after it keep, while programs are decomposed.

    `_gen_edge_manager_for_partitioners` asks one partitioner after another, and decomposes everything else each time.
    Core ML, told to skip linear layers, would leave none for XNNPACK. Those that check single nodes keep what they can.
    """

    def __init__(self, partitioner: Partitioner, later: Sequence[Partitioner]) -> None:
        super().__init__(partitioner)
        self._later = later

    def ops_to_not_decompose(self, ep: ExportedProgram) -> KeptOperators:
        operators, supported = super().ops_to_not_decompose(ep)
        if supported is not None or not self._later:
            return operators, supported
        kept = dict.fromkeys(operators)
        for partitioner in self._later:
            theirs, check = partitioner.ops_to_not_decompose(ep)
            theirs = edge_manager_module._remove_invalid_ops_for_not_decompose(theirs)  # noqa: SLF001 - as above
            nodes = (node for node in ep.graph.nodes if node.op == "call_function" and node.target in theirs)
            kept |= dict.fromkeys(node.target for node in nodes if check is None or check(node))
        return list(kept), None


@declared_bounds()
def check_preserved_operators_found_delegates(
    program: ExportedProgram, partitioners: Sequence[Partitioner], config: EdgeCompileConfig
) -> None:
    """The last part of `to_edge_transform_and_lower`: an operator kept for a backend must not be left over.

    Relies on `_sanity_check_graph_for_non_decomp_ops` and its neighbours (exir/program/_program.py). Raises
    RuntimeError for an operator that is neither delegated nor decomposed: no kernel would run it.
    """
    kept: set[torch._ops.OpOverload] = set()
    for partitioner in partitioners:
        operators, supported = partitioner.ops_to_not_decompose(program)
        if supported is not None:
            operators = edge_manager_module._remove_invalid_ops_for_not_decompose(operators)  # noqa: SLF001 - as above
        kept |= set(operators)
        edge_manager_module._sanity_check_graph_for_non_decomp_ops(  # noqa: SLF001 - as above
            _METHOD, program, kept, supported, partitioner_name=type(partitioner).__name__, generate_error=True
        )
    if config._check_ir_validity:  # noqa: SLF001 - exir gives this public option a private name
        verifier = EXIREdgeDialectVerifier(
            edge_compile_config=config, class_only=True, preserve_ops=config.preserve_ops + sorted(kept, key=str)
        )
        verifier()(program.graph_module)


class PteforgeUnlinked(BackendDetails):  # type: ignore[misc]  # executorch is untyped here
    """Takes the place of a backend that has not preprocessed its partitions yet.

    exir partitions and preprocesses in one call and looks backends up by class name. Delegation specs that name this
    class make the call do only the first part: each partition becomes a lowered module without bytes, whose first
    compile spec has the id of the backend.
    """

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Leaves the partition as it is: `edge_program` stays in the lowered module."""
        del edge_program, compile_specs
        return PreprocessResult(processed_bytes=b"")

    @classmethod
    def copy_exported_program_for_preprocess(
        cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> ExportedProgram:
        """No copy: `preprocess` does not touch the program."""
        del compile_specs
        return edge_program


UNLINKED = PteforgeUnlinked.__name__
_BACKEND_ID = "pteforge.backend_id"


class _Unlinking(WrappedPartitioner):
    """Another partitioner, with delegation specs that name `PteforgeUnlinked`, and without state of other methods."""

    def __init__(self, partitioner: Partitioner, state: Collection[str]) -> None:
        super().__init__(partitioner)
        self._state = state

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        result = super().partition(exported_program)
        exclude_from_partitions(result.tagged_exported_program, self._state)
        tags = {
            tag: DelegationSpec(UNLINKED, [CompileSpec(_BACKEND_ID, spec.backend_id.encode()), *spec.compile_specs])
            for tag, spec in result.partition_tags.items()
        }
        return PartitionResult(tagged_exported_program=result.tagged_exported_program, partition_tags=tags)


def split_compile_specs(specs: Sequence[CompileSpec]) -> tuple[str, list[CompileSpec]]:
    """The backend id and the compile specs of an unlinked partition."""
    first, *others = specs
    if first.key != _BACKEND_ID:
        raise ValueError(f"not an unlinked partition: its first compile spec is {first.key!r}")
    return first.value.decode(), others


@declared_bounds()
def to_partitioned_program(
    program: ExportedProgram, partitioners: Sequence[Partitioner], state: Collection[str] = ()
) -> ExportedProgram:
    """Runs a target's partitioners in turn, into unlinked lowered modules; buffers in `state` are no constants."""
    for partitioner in partitioners:
        spec = MethodProgramsPartitionerSpec({_METHOD: program}, {_METHOD: _Unlinking(partitioner, state)})
        program = to_backend(spec)[_METHOD]
    return program


def apply_to_stored(
    ref: ArtifactRef, transform: Callable[[ExportedProgram], ExportedProgram], *, kind: str, store: LocalStore
) -> tuple[ExportedProgram | None, ArtifactRef]:
    """Loads a program or a graph, transforms it, and stores the result, again a program or a graph, as `kind`.

    A transform that fails on a graph may succeed with weights, and fails there with the better error. So the result may
    instead be a text of the kind `REFUSED` with the reason, and no program.
    """
    if not is_graph(ref):
        program = transform(load_program(ref, store))
        return program, save_program(program, kind=kind, store=store)
    try:
        program, absent = load_graph(ref, store)
        with no_weight_reads(absent):
            program = transform(program)
        return program, save_graph(program, absent, kind=kind, store=store)
    except (MemoryError, OSError, StoreError):  # the machine's, and gone the next time
        raise
    except (Exception, WeightRead) as error:  # noqa: BLE001 - see above
        return None, store.put_artifact(REFUSED, f"{type(error).__name__}: {first_line(error)}".encode())
