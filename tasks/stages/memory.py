"""Memory planning: one plan for all methods, or one for each, with or without state in common."""

from __future__ import annotations

from collections.abc import Collection

from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy, naive
from executorch.exir.passes import MemoryPlanningPass

from ...configs.compile_options import CompileOptions
from ..params import CompileParams, MethodMemory


class _PlanningOnce(MemoryPlanningPass):  # type: ignore[misc]  # executorch is untyped here
    """Memory planning of one method of several that share their state.

    `to_executorch` asks each method's pass for the plan across methods (exir/program/_program.py); with one collection
    of state behind all of them, the first one makes it and leaves nothing to do for the others.
    """

    def run_multimethod(self) -> None:
        """Places the state that has not been placed yet."""
        super().run_multimethod()
        self.state.mutable_buffers.clear()
        self.state.maybe_mutable_buffers.clear()
        self.state.graph_modules.clear()


def memory_planning(
    params: CompileParams, methods: Collection[str]
) -> MemoryPlanningPass | dict[str, MemoryPlanningPass]:
    """The pass for all methods, or a pass for each where any has options of its own.

    Args:
        params: of `compile`.
        methods: all of them.
    """
    options = params.options
    usual = MethodMemory(alloc_graph_input=options.alloc_graph_input, alloc_graph_output=options.alloc_graph_output)
    if not params.methods:
        return _planning(MemoryPlanningPass, usual, options)
    passes = {method: _planning(_PlanningOnce, params.methods.get(method, usual), options) for method in methods}
    first, *others = passes.values()
    for each in others:
        each.state = first.state
    return passes


_ALGORITHMS = {"greedy": greedy, "naive": naive}


def _planning(kind: type[MemoryPlanningPass], memory: MethodMemory, options: CompileOptions) -> MemoryPlanningPass:
    return kind(
        memory_planning_algo=MemoryPlanningAlgorithmSuite([_ALGORITHMS[options.memory_planning_algo]]),
        allow_lifetime_and_storage_overlap=options.allow_lifetime_and_storage_overlap,
        alloc_graph_input=memory.alloc_graph_input,
        alloc_graph_output=memory.alloc_graph_output,
        alloc_mutable_buffers=options.alloc_mutable_buffers,
        share_mutable_buffers=options.share_mutable_buffers,
        alignment=options.tensor_alignment,
    )
