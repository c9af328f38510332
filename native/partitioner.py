"""Claims what the native backend can run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import final

import torch
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.graph_module import get_control_flow_submodules
from pydantic import ValidationError
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ..configs.recipe import Specialization
from ..errors import TargetError
from ..tasks.stages.operators import find_operators
from ..tasks.stages.preprocess import find_backend
from .backend import NfatBackend
from .constants import tag_constants
from .grouping import group
from .settings import Settings, problems, resolve, to_compile_specs
from .support import NON_CORE_OPERATORS, Support, calls, is_functional, is_lowered


@final
class NativePartitioner(Partitioner):  # type: ignore[misc]  # executorch is untyped here
    """Gives the native backend core ATen, some more operators, and every `torch.cond` with supported branches.

    Each partition becomes a delegate `NfatBackend` with a container of its specializations and the portable fallback.
    What a program was delegated to before stays as it is.

    Args:
        specializations: what each partition is lowered to, by preference: names of targets, or `Specialization`s, which
            have options. The fallback is always there.
        preserve_operators: further operators to keep whole and to claim, such as ``aten.hardswish.default``.

    Raises:
        TargetError: a target or an operator is unknown or cannot be used; the message lists what there is.
    """

    def __init__(
        self, specializations: Sequence[str | Specialization] = (), *, preserve_operators: Iterable[str] = ()
    ) -> None:
        super().__init__()
        settings = _settings(specializations)
        find_backend(NfatBackend.__name__)
        self._partitioners = [each for found in resolve(settings) for each in found.target.partitioners()]
        self._listed = tuple(_listed(preserve_operators))
        self.delegation_spec = DelegationSpec(NfatBackend.__name__, to_compile_specs(settings))

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Operators of the program to keep whole: those listed, and those that a specialization wants whole.

        One that could not be claimed wherever it is called is decomposed. None is kept in a program that was lowered.
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
        """Tags what is claimed. Constants go with it; buffers that the program changes stay outside."""
        tags: dict[str, DelegationSpec] = {}
        for nodes in self._groups(exported_program.graph_module):
            tag = f"nfat{len(tags)}"
            tags[tag] = self.delegation_spec
            for node in nodes:
                node.meta["delegation_tag"] = tag
        tag_constants(exported_program)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)

    def _groups(self, graph_module: GraphModule) -> Iterator[list[Node]]:
        """Partitions of a graph module, then those inside of control flow that was not claimed as a whole."""
        claimed: set[Node] = set()
        for nodes in group(graph_module, self._listed):
            claimed.update(nodes)
            yield nodes
        for _, inner, caller in get_control_flow_submodules(graph_module):
            if caller not in claimed:
                yield from self._groups(inner)


def _settings(specializations: Sequence[str | Specialization]) -> Settings:
    if isinstance(specializations, str):
        raise TypeError(f"{specializations!r} has to be in a list, also if it is the only one")
    try:
        return Settings(
            specializations=tuple(
                Specialization(target=each) if isinstance(each, str) else each for each in specializations
            )
        )
    except ValidationError as error:
        raise TargetError(f"specializations: {problems(error)}") from error


def _listed(names: Iterable[str]) -> Iterator[torch._ops.OpOverload]:
    """The operators to keep whole, those of the user last."""
    yield from find_operators(NON_CORE_OPERATORS)
    for operator in find_operators(tuple(names)):
        if not is_functional(operator):
            raise TargetError(
                f"operator {operator} cannot be kept whole: it returns nothing, writes to what it takes, or returns a "
                "view of it; leave it out of preserve_operators"
            )
        yield operator
