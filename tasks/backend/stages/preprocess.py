"""preprocess: a backend turns all partitions of all methods into delegates, in one call where it asks for that."""

from __future__ import annotations

from collections.abc import Mapping

from ...engine import kinds, stage
from ...targets import TargetParams
from ...targets.find import target_classes
from ...upstream import lean_lowering


class Preprocess(stage.Stage, name="preprocess"):
    """Backends and compile specs are those in the partitioned programs."""

    class Params(stage.Params):
        targets: tuple[TargetParams, ...]  # their imports register the backends with ExecuTorch

        def plugins(self) -> tuple[type[stage.Plugin], ...]:
            return target_classes(target.name for target in self.targets)

    class Inputs(stage.Roles):
        program: Mapping[str, kinds.PartitionedProgram]  # by method, where the target delegates anything

    class Outputs(stage.Roles):
        delegates: kinds.Delegates

    @classmethod
    def shares_process(cls, params: Params) -> bool:  # noqa: ARG003 - the base's
        return True

    @staticmethod
    @lean_lowering()
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Calls the backends; raises TargetError for unknown ones, and unless each partition gets a result."""
        from ...programs.delegates import Delegates, save_delegates
        from ...programs.program import load_program
        from ...targets.find import find_target
        from ..delegates import preprocess_all

        for target in params.targets:
            find_target(target.name, target.options).partitioners()  # its imports register the backends
        programs = {method: load_program(ref, work.store) for method, ref in inputs.program.items()}
        delegates = Delegates(preprocess_all(programs, work.store))
        return Preprocess.Outputs(delegates=save_delegates(delegates, kind="delegates", store=work.store))
