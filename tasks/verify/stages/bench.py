"""bench: times how long a payload takes to load and to be called, on a place or on this process's runtime."""

from __future__ import annotations

from ...engine import kinds, stage
from ...programs.payload import write_delivered
from .prove import PlaceParams, Prove


class Bench(stage.Stage, name="bench"):
    """Its output depends on the machine's load, and is no other stage's input. It is stored like all others."""

    alone = True

    class Params(stage.Params):
        place: PlaceParams | None  # None: the runtime of this process
        machine: str  # the processor where the run was started, by which times of other machines are told apart
        seconds: float = 1.0  # of calls, for each method

    Inputs = Prove.Inputs

    class Outputs(stage.Roles):
        timings: kinds.Finding

    @staticmethod
    def run(inputs: Prove.Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Times every method on its first example, unless the place lacks its backends, or is emulated."""
        from ...programs.values import load_value
        from ..measure import programs_on, time_methods
        from ..places import processor

        path, data_files = write_delivered(inputs.file, inputs.data, work)
        examples = {method: load_value(ref, work.store)["inputs"][0] for method, ref in inputs.examples.items()}
        machine = (params.place.machine if params.place else "") or processor()  # of the process that measures
        timings = [
            timing.to_json() | {"machine": machine}
            for _, program in programs_on(params.place, path, data_files, {})
            for timing in time_methods(program, examples, params.seconds)
        ]
        return Bench.Outputs(timings=work.store.put_json("finding", timings))
