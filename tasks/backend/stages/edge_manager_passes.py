"""edge_manager_passes: one method from Edge to Edge, by functions of the recipe over all methods' Edge programs."""

from __future__ import annotations

from collections.abc import Mapping

from ...engine import kinds, stage


class ManagerPassParams(stage.CallableParams):
    """A function of the recipe that returns passes, given an `EdgeProgramManager`."""

    takes_program: bool = False  # it is called for each method, with its name and its Edge program


class EdgeManagerPasses(stage.Stage, name="edge_manager_passes"):
    """Runs where the recipe has such functions for the programs before they are partitioned."""

    class Params(stage.Params):
        method: str  # whose program is the result; the functions see all of them
        passes: tuple[ManagerPassParams, ...]  # one after another

    class Inputs(stage.Roles):
        program: Mapping[str, kinds.EdgeProgram]  # by method, of `edge`
        constants: kinds.Constants  # of `export`

    class Outputs(stage.Roles):
        program: kinds.EdgeProgram
        state: kinds.State  # names of the buffers that it changes

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Runs the passes that the functions return; raises SourceError if a function fails or returns no passes."""
        from ...programs.graphs import state_names
        from ...programs.program import load_program, save_program
        from ...programs.values import load_value
        from ...usercode.recipe_functions import run_manager_passes

        programs = {method: load_program(ref, work.store) for method, ref in inputs.program.items()}
        constants = load_value(inputs.constants, work.store)
        passes = [(made, made.takes_program) for made in params.passes]
        program = run_manager_passes(passes, programs, constants)[params.method]
        return EdgeManagerPasses.Outputs(
            program=save_program(program, kind="program/edge", store=work.store),
            state=work.store.put_json("program/state", sorted(state_names(program))),
        )
