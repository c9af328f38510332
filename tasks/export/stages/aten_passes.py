"""aten_passes: one method from ATen to ATen, by functions that the recipe names."""

from __future__ import annotations

from ...engine import kinds, stage


class AtenPasses(stage.Stage, name="aten_passes"):
    """Runs where the recipe has such passes, after `quantize`, as `executorch.export` runs them after its export."""

    class Params(stage.Params):
        method: str  # its name, which the functions get
        passes: tuple[stage.CallableParams, ...]  # applied one after another

    class Inputs(stage.Roles):
        program: kinds.ToLower  # of `export`, `source_transform`, `fold_batch_norms` or `quantize`

    class Outputs(stage.Roles):
        program: kinds.ToLower

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Calls the functions; raises SourceError if one cannot be imported, raises, or does not return a program."""
        from ...programs.program import load_program, save_program
        from ...usercode.recipe_functions import run_aten_passes

        program = load_program(inputs.program, work.store)
        changed = run_aten_passes(params.passes, params.method, program)
        return AtenPasses.Outputs(program=save_program(changed, kind=inputs.program.kind, store=work.store))
