"""edge: one method from ATen to the edge dialect, decomposed except for what the target keeps, after its passes."""

from __future__ import annotations

from .. import kinds, stage
from ..upstream.lean import lean_lowering


class PassParams(stage.CallableParams):
    """A callable that makes passes of a recipe."""

    # name of the method, given to the callable together with its program; None where it takes neither
    method: str | None = None


class Edge(stage.Stage, name="edge"):
    """Depends on a target only through `decomposition_options` and `pass_options`, so targets may share results."""

    class Params(stage.Params):
        """How the method becomes an edge program. Equal params share one run, whichever target they come from."""

        # the target whose operators are not decomposed, with only those of its options that matter here; None where
        # everything is decomposed
        preserve_for: stage.TargetParams | None = None
        # the target whose passes run, with only those of its options that matter here; None: none run
        passes_of: stage.TargetParams | None = None
        preserve_operators: tuple[str, ...] = ()  # further operators to keep, such as ``aten.hardswish.default``
        check_ir_validity: bool = True
        skip_dim_order: bool = False  # leave memory formats to the operators instead of dim-order operators
        decompose_affine: bool = False  # decompose torchao's affine quantization, since nothing is delegated
        core_aten_exceptions: tuple[str, ...] = ()  # operators that need not be core ATen
        passes: tuple[PassParams, ...] = ()  # the recipe's own passes, which run after the target's

        def target_names(self) -> tuple[str, ...]:
            return tuple(dict.fromkeys(target.name for target in (self.preserve_for, self.passes_of) if target))

    class Inputs(stage.Roles):
        program: kinds.ToLower

    class Outputs(stage.Roles):
        program: kinds.EdgeProgram
        state: kinds.State  # names of the buffers that it changes

    @classmethod
    def shares_process(cls, params: Params) -> bool:
        """Unless the recipe has passes of its own."""
        return not params.passes

    @staticmethod
    @lean_lowering()
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Decomposes, goes to the edge dialect, and runs the target's passes and then the recipe's."""
        from ...artifacts.digest import canonical_json
        from ..codecs.program import load_program, save_program
        from ..programs.exir import edge_config, to_edge_program
        from ..programs.graphs import decompose_affine
        from ..programs.recipe_passes import recipe_passes
        from ..programs.state import state_names
        from ..targets.find import find_target

        program = load_program(inputs.program, work.store)
        if params.decompose_affine:
            program = decompose_affine(program)
        config = edge_config(params)
        keeper, transformer = params.preserve_for, params.passes_of
        partitioners = find_target(keeper.name, keeper.options).partitioners() if keeper else ()
        passes = find_target(transformer.name, transformer.options).edge_passes() if transformer else ()
        passes = [*passes, *recipe_passes(params.passes, program)]
        edge = to_edge_program(program, partitioners, config, passes)
        return Edge.Outputs(
            program=save_program(edge, kind="program/edge", store=work.store),
            state=work.store.put_artifact("program/state", canonical_json(sorted(state_names(edge)))),
        )
