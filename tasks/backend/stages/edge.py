"""edge: one method from ATen to the edge dialect, decomposed except for what the target keeps, after its passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine import kinds, stage
from ...programs.binding import ON_GRAPHS
from ...targets import TargetParams
from ...targets.find import target_classes
from ...upstream import lean_lowering

if TYPE_CHECKING:
    from executorch.exir import EdgeCompileConfig
    from torch.export import ExportedProgram


class PassParams(stage.CallableParams):
    """A callable that makes passes of a recipe."""

    # name of the method, given to the callable together with its program; None where it takes neither
    method: str | None = None


class Edge(stage.Stage, name="edge"):
    """Depends on a target only through `decomposition_options` and `pass_options`, so targets may share results."""

    class Params(stage.Params):
        """How the method becomes an edge program. Equal params share one run, whichever target they come from."""

        # the target whose operators are not decomposed, with the options that matter here; None: all are decomposed
        preserve_for: TargetParams | None = None
        # the target that changes programs, with only those of its options that matter here; None: none does
        passes_of: TargetParams | None = None
        preserve_operators: tuple[str, ...] = ()  # further operators to keep, such as ``aten.hardswish.default``
        check_ir_validity: bool = True
        skip_dim_order: bool = False  # leave memory formats to the operators instead of dim-order operators
        decompose_affine: bool = False  # decompose torchao's affine quantization where the target does not take it
        core_aten_exceptions: tuple[str, ...] = ()  # operators that need not be core ATen
        passes: tuple[PassParams, ...] = ()  # the recipe's own passes, which run after the target's
        # why the stage takes the weights, and runs again with each change of them; empty where it takes the graph
        takes_weights: str = ""

        def plugins(self) -> tuple[type[stage.Plugin], ...]:
            return target_classes(target.name for target in (self.preserve_for, self.passes_of) if target)

        def config(self) -> EdgeCompileConfig:
            """Exir's edge configuration; raises TargetError for an operator that is not registered."""
            from executorch.exir import EdgeCompileConfig

            from ...programs.graphs import find_operators

            return EdgeCompileConfig(
                _check_ir_validity=self.check_ir_validity,
                _skip_dim_order=self.skip_dim_order,
                _core_aten_ops_exception_list=find_operators(self.core_aten_exceptions),
                preserve_ops=find_operators(self.preserve_operators),
            )

    class Inputs(stage.Roles):
        program: kinds.ToLower

    class Outputs(stage.Roles):
        program: kinds.MadeEdge
        state: kinds.State  # names of the buffers that it changes

    @classmethod
    def shares_process(cls, params: Params) -> bool:
        """Shares a process unless the recipe has passes of its own."""
        return not params.passes

    @classmethod
    def takes_weights(cls, params: Params) -> str:
        """Why the stage cannot take graphs; empty if it can."""
        if params.passes:
            return "the recipe's passes may read weights"
        if params.passes_of:
            return f"the passes of target {params.passes_of.name!r} may read weights"
        if params.preserve_for and params.preserve_for.name not in ON_GRAPHS:
            return f"target {params.preserve_for.name!r} may read weights"
        return ""

    @staticmethod
    @lean_lowering()
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Decomposes, goes to the edge dialect, and runs the target's passes and then the recipe's."""
        from ...programs.graphs import state_names
        from ...targets.find import find_target
        from ...usercode.recipe_functions import recipe_passes
        from ..exir import apply_to_stored, decompose_left_affine, rewritten, to_edge_program

        def to_edge(program: ExportedProgram) -> ExportedProgram:
            keeper, rewriter = params.preserve_for, params.passes_of
            target = find_target(rewriter.name, rewriter.options) if rewriter else None
            program = target.before_edge(program) if target else program
            partitioners = find_target(keeper.name, keeper.options).partitioners() if keeper else ()
            if params.decompose_affine:
                program = decompose_left_affine(program, partitioners)
            passes = target.edge_passes() if target else ()
            passes = [*passes, *recipe_passes([(made, made.method) for made in params.passes], program)]
            edge = to_edge_program(program, partitioners, params.config(), passes)
            return rewritten(edge, target) if target else edge

        edge, ref = apply_to_stored(inputs.program, to_edge, kind="program/edge", store=work.store)
        state = sorted(state_names(edge)) if edge else []
        return Edge.Outputs(program=ref, state=work.store.put_json("program/state", state))
