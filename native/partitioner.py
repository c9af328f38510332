"""The partitioner: claims the nodes that the native backend can run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import final

import torch
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from pydantic import ValidationError
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner

from ..configs.base import describe_errors
from ..configs.recipe import Specialization
from ..errors import TargetError
from ..tasks.backend.delegates import find_backend
from ..tasks.backend.exir import KeptOperators
from ..tasks.programs.graphs import find_operators
from ..tasks.upstream.compat import get_control_flow_submodules
from .aten import tag_constants
from .backend import NfatBackend
from .settings import Settings, resolve, to_compile_specs
from .support import NON_CORE_OPERATORS, Support, branch_nodes, calls, is_functional, is_lowered, is_symbolic


@final
class NativePartitioner(Partitioner):  # type: ignore[misc]  # executorch is untyped here
    """Claims core ATen, some more operators, and every `torch.cond` with supported branches for the native backend.

    A partition becomes a delegate `NfatBackend` with its specializations and the portable fallback; delegates stay.

    Args:
        specializations: of each partition, by preference: names of targets, or `Specialization`s with options. The
            fallback is always added.
        preserve_operators: further operators to keep whole and to claim, such as ``aten.hardswish.default``.

    Raises:
        TargetError: a target or an operator is unknown or cannot be used; the message lists the known ones.
    """

    def __init__(
        self, specializations: Sequence[str | Specialization] = (), *, preserve_operators: Iterable[str] = ()
    ) -> None:
        super().__init__()
        settings = _settings(specializations)
        find_backend(NfatBackend.__name__)
        targets = [resolved.target for resolved in resolve(settings)]
        self._partitioners = [partitioner for target in targets for partitioner in target.partitioners()]
        self._listed = tuple(_listed(preserve_operators))
        self.delegation_spec = DelegationSpec(NfatBackend.__name__, to_compile_specs(settings))

    def ops_to_not_decompose(self, ep: ExportedProgram) -> KeptOperators:
        """Operators to keep whole: those listed, and those that a specialization's partitioner keeps whole.

        An operator with a call that cannot be claimed is decomposed. A program that was lowered keeps none.
        """
        if is_lowered(ep.graph_module):
            return [], None
        wanted = set(self._listed)
        for partitioner in self._partitioners:
            wanted.update(partitioner.ops_to_not_decompose(ep)[0])
        support = Support(self._listed)
        claimed: dict[torch._ops.OpOverload, bool] = {}
        for operator, node in calls(ep.graph_module):
            if operator in wanted and support.can_keep(operator):
                claimed[operator] = claimed.get(operator, True) and support.is_node_supported({}, node)
        return [operator for operator, everywhere in claimed.items() if everywhere], None

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags the claimed nodes and their constants, but no buffers that the program changes."""
        tags: dict[str, DelegationSpec] = {}
        for nodes in self._groups(exported_program.graph_module):
            tag = f"nfat{len(tags)}"
            tags[tag] = self.delegation_spec
            for node in nodes:
                node.meta["delegation_tag"] = tag
        tag_constants(exported_program)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)

    def _groups(self, graph_module: GraphModule) -> Iterator[list[Node]]:
        """Partitions of a graph module, then those inside control flow that was not claimed as a whole."""
        claimed: set[Node] = set()
        for nodes in _group(graph_module, self._listed):
            claimed.update(nodes)
            yield nodes
        for _, inner, caller in get_control_flow_submodules(graph_module):
            if caller not in claimed:
                yield from self._groups(inner)


def _settings(specializations: Sequence[str | Specialization]) -> Settings:
    if isinstance(specializations, str):
        raise TypeError(f"{specializations!r} has to be in a list, also if it is the only one")
    try:
        named = (Specialization(target=item) if isinstance(item, str) else item for item in specializations)
        return Settings(specializations=tuple(named))
    except ValidationError as error:
        raise TargetError(f"specializations: {describe_errors(error)}") from error


def _listed(names: Iterable[str]) -> Iterator[torch._ops.OpOverload]:
    yield from find_operators(NON_CORE_OPERATORS)
    for operator in find_operators(tuple(names)):
        if not is_functional(operator):
            raise TargetError(
                f"operator {operator} cannot be kept whole: it returns nothing, or writes to or returns a view of an "
                "argument; leave it out of preserve_operators"
            )
        yield operator


def _group(graph_module: GraphModule, listed: Collection[torch._ops.OpOverload]) -> list[list[Node]]:
    """The partitions of one graph module (without those it calls), each with its nodes in graph order.

    Only tensors may cross the border of a partition: a payload is a program, and the runtime fixes a program's numbers
    when it is made. Leaves out nodes that take or return a number across borders, which may split them, until none is.
    """
    position = {node: index for index, node in enumerate(graph_module.graph.nodes)}
    refused: set[Node] = set()
    while True:
        support = Support(listed, refused)
        partitioner = CapabilityBasedPartitioner(graph_module, support, allows_single_node_partition=True)
        proposed = partitioner.propose_partitions()
        partitions = [sorted(partition.nodes, key=position.__getitem__) for partition in proposed]
        crossing = {node for nodes in partitions for node in _crossing(nodes)}
        if not crossing:
            computing = [nodes for nodes in partitions if not all(map(is_symbolic, nodes))]
            complete = [[*(branch for node in nodes for branch in branch_nodes(node)), *nodes] for nodes in computing]
            return sorted(complete, key=lambda nodes: position[nodes[-1]])
        refused |= crossing


def _crossing(nodes: Collection[Node]) -> Iterator[Node]:
    members = set(nodes)
    for node in nodes:
        takes = any(is_symbolic(source) and source not in members for source in node.all_input_nodes)
        returns = is_symbolic(node) and not members.issuperset(node.users)
        if takes or returns:
            yield node
