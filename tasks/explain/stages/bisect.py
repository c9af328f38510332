"""bisect: compares the operators of two programs, one made from the other, on the same inputs."""

from __future__ import annotations

from ...engine import kinds, stage
from ...results.numerics import NodeLosses


class Bisect(stage.Stage, name="bisect"):
    """Finds the operators that lose quality, once `ladder` has found the rung that does."""

    reads_traces = True

    class Params(stage.Params):
        exported_anew: bool = False  # whether the second program was exported separately, and not made from the first
        inputs: int = 4  # how many of the examples to run at most
        host: str = ""  # CPU capability of the machine

    class Inputs(stage.Roles):
        before: kinds.ToCompare  # the program before the one that loses
        after: kinds.ToCompare  # the one that loses
        # the exported program, in which the histories of the others' nodes begin, and whose nodes have the model's
        # stack traces; `before` if `after` was exported separately
        origin: kinds.AtenProgram
        examples: kinds.Examples  # of `export`

    class Outputs(stage.Roles):
        nodes: kinds.NodeLosses

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Matches the nodes of the programs, and runs both on the examples."""
        from ...programs.graphs import origin_of
        from ...programs.program import load_program
        from ...programs.values import load_value
        from ...usercode.inputs import stored_cases
        from ...verify.running import StoredProgram
        from ..node_losses import Comparison, count_operators, match_by_module, match_nodes

        before, after = StoredProgram(inputs.before, work.store), StoredProgram(inputs.after, work.store)
        renamed = match_by_module(before.module.graph, after.module.graph) if params.exported_anew else {}
        matches = match_nodes(before.module.graph, after.module.graph, renamed)
        matches = tuple(match for match in matches if match.after.op == "call_function")
        comparison = Comparison(before, after, matches)
        real = [case.inputs for case in stored_cases(load_value(inputs.examples, work.store), drawn=0)]
        for flat in real[: params.inputs]:
            comparison.add(flat)
        origins = {node.name: origin_of(node) for node in load_program(inputs.origin, work.store).graph.nodes}
        losses = NodeLosses(comparison.losses(origins), operators=count_operators(after.module.graph))
        return Bisect.Outputs(nodes=work.store.put_json("report/nodes", losses.to_json()))
