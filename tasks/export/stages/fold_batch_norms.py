"""fold_batch_norms: one method from ATen to ATen, without the batch norms that the layers before them can take in."""

from __future__ import annotations

from ...engine import kinds, stage


class FoldBatchNorms(stage.Stage, name="fold_batch_norms"):
    """Runs where `export` found such norms. Backends would fold them, too, each into weights of its own."""

    class Params(stage.Params):
        """None: which norms can be folded is the program's to say."""

    class Inputs(stage.Roles):
        program: kinds.AtenProgram  # of `export` or `source_transform`

    class Outputs(stage.Roles):
        program: kinds.AtenProgram

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        from ...programs.program import load_program, save_program
        from ..batch_norms import fold_batch_norms

        del params
        program = load_program(inputs.program, work.store)
        fold_batch_norms(program)
        return FoldBatchNorms.Outputs(program=save_program(program, kind="program/aten", store=work.store))
