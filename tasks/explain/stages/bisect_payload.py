"""bisect_payload: finds the operators of a payload that lose quality against the edge program that it was made from."""

from __future__ import annotations

from ...engine import kinds, stage
from ...targets import TargetParams
from ...targets.find import target_classes


class BisectPayload(stage.Stage, name="bisect_payload"):
    """Looks inside of delegates, once `ladder` has found that only the payload loses quality."""

    reads_traces = True

    class Params(stage.Params):
        method: str
        target: TargetParams  # whose import registers the backends
        least_db: float  # SQNR that the method's outputs must reach, against those of the edge program
        drop_db: float  # see `PayloadSearch`
        inputs: int = 2  # how many inputs to run at most, examples first
        drawn_inputs: int = 0  # of the ladder
        lowerings: int = 200  # how many parts to lower at most
        host: str = ""  # CPU capability of the machine

        def plugins(self) -> tuple[type[stage.Plugin], ...]:
            return target_classes([self.target.name])

    class Inputs(stage.Roles):
        program: kinds.ToEmit  # of `partition`; of `edge` if nothing is delegated
        payload: kinds.PteFile
        examples: kinds.Examples  # of `export`
        data: kinds.PtdFile | None = None  # weights of a payload that keeps them in a file of its own

    class Outputs(stage.Roles):
        losses: kinds.PayloadLosses

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Lowers and runs delegates and parts of them."""
        from ...programs.payload import write_delivered
        from ...programs.program import load_program
        from ...programs.values import load_value
        from ...targets.find import find_target
        from ...usercode.inputs import stored_cases
        from ...verify.running import ExpectedCall, Loadable
        from ..payload_search import PartLowering, PayloadSearch

        find_target(params.target.name, params.target.options).partitioners()  # its imports register the backends
        path, data = write_delivered(inputs.payload, inputs.data, work)
        payload = Loadable(path, next(iter(data), None))
        cases = list(stored_cases(load_value(inputs.examples, work.store), params.drawn_inputs))
        search = PayloadSearch(
            load_program(inputs.program, work.store),
            [case.inputs for case in cases[: params.inputs]],
            PartLowering(work.scratch, params.lowerings),
            params.least_db,
            params.drop_db,
        )
        losses = search.losses(lambda flat: next(iter(payload.run([ExpectedCall(params.method, flat, (), "")]))))
        ref = work.store.put_json("report/payload_losses", losses.to_json())
        return BisectPayload.Outputs(losses=ref)
